use std::fmt::Debug;
use std::pin::Pin;

use crate::admin::{BucketLevel, Denials, Explanation, Filter, Override, Plan, Swept, Switch};
use crate::model::answer::Word;
use crate::model::bucket::Hold;
use crate::model::{Key, Quota, Rule, WindowLevel};

/// A row, or why it cannot be read.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type Read<T> = Result<T, sqlx::Error>;

/// Where a page begins: after a key, and after so many rows behind it that cannot be read and so name none.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Debug)]
pub struct After {
    pub key: Option<Key>,
    pub skip: i64,
}

/// A conversation on a connection that the caller lends.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type Conversation<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// What an operator does, on one kind of database. Each takes its arguments as one value, so that one function can run, and
/// repeat, them all.
pub trait Operations: sqlx::Database {
    /// Whose clock decides: if the server's own, `()`, or what else a call has to be told.
    type Clock: Clone + Debug + Default + Send + Sync;

    #[doc(hidden)]
    /// The time by which an end is past before the database is asked: the host's, if the server has a clock of its own.
    fn now(clock: &Self::Clock) -> i64;

    #[doc(hidden)]
    /// Provisions a bucket, or changes its terms.
    fn create_bucket<'c>(
        connection: &'c mut Self::Connection,
        bucket: &'c (Key, Quota),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, ()>;

    #[doc(hidden)]
    /// A bucket, if it exists.
    fn peek<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Option<Read<BucketLevel>>>;

    #[doc(hidden)]
    /// A window, if anything was counted in it.
    fn peek_window<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Option<Read<WindowLevel>>>;

    #[doc(hidden)]
    /// A page of buckets, in the order of their keys.
    fn list<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (Filter, After, u32),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Vec<Read<BucketLevel>>>;

    #[doc(hidden)]
    /// A page of windows in which anything was counted, in the order of their keys.
    fn windows<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (Filter, After, u32),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Vec<Read<WindowLevel>>>;

    #[doc(hidden)]
    /// Makes a bucket full.
    fn reset<'c>(connection: &'c mut Self::Connection, key: &'c Key, clock: &'c Self::Clock) -> Conversation<'c, bool>;

    #[doc(hidden)]
    /// Forgets a bucket.
    fn delete<'c>(connection: &'c mut Self::Connection, key: &'c Key, clock: &'c Self::Clock)
    -> Conversation<'c, bool>;

    #[doc(hidden)]
    /// What rules a key, under a plan if one is named.
    fn explain<'c>(
        connection: &'c mut Self::Connection,
        whose: &'c (Key, Option<Key>),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Read<Explanation>>;

    #[doc(hidden)]
    /// Makes a plan, or changes its quota.
    fn create_plan<'c>(
        connection: &'c mut Self::Connection,
        plan: &'c (Key, Quota),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, ()>;

    #[doc(hidden)]
    /// Gives a plan a mode, or takes it away.
    fn set_plan_mode<'c>(
        connection: &'c mut Self::Connection,
        plan: &'c (Key, Option<Switch>),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, bool>;

    #[doc(hidden)]
    /// A plan, if it exists.
    fn plan<'c>(
        connection: &'c mut Self::Connection,
        name: &'c Key,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Option<Read<Plan>>>;

    #[doc(hidden)]
    /// A page of plans, in the order of their names.
    fn plans<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (After, u32),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Vec<Read<Plan>>>;

    #[doc(hidden)]
    /// Forgets a plan.
    fn delete_plan<'c>(
        connection: &'c mut Self::Connection,
        name: &'c Key,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, bool>;

    #[doc(hidden)]
    /// Sets the mode of every key.
    fn set_mode<'c>(
        connection: &'c mut Self::Connection,
        switch: &'c Switch,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, ()>;

    #[doc(hidden)]
    /// The mode of every key.
    fn mode<'c>(
        connection: &'c mut Self::Connection,
        nothing: &'c (),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Read<Switch>>;

    #[doc(hidden)]
    /// Makes an override, or replaces it.
    fn set_override<'c>(
        connection: &'c mut Self::Connection,
        over: &'c (Key, Override),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, ()>;

    #[doc(hidden)]
    /// Takes an override away.
    fn clear_override<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, bool>;

    #[doc(hidden)]
    /// A page of overrides, in the order of their keys.
    fn overrides<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (After, u32),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Vec<Read<(Key, Override)>>>;

    #[doc(hidden)]
    #[expect(clippy::ptr_arg, reason = "the arguments are one value")]
    /// Adds how often keys were denied, in the order of their keys.
    fn count_denials<'c>(
        connection: &'c mut Self::Connection,
        denials: &'c Vec<(Key, i64)>,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, ()>;

    #[doc(hidden)]
    /// The keys that were denied most.
    fn most_denied<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (After, u32),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Vec<Read<Denials>>>;

    #[doc(hidden)]
    /// Sweeps, one step.
    fn sweep<'c>(
        connection: &'c mut Self::Connection,
        limit: &'c u32,
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Swept>;

    #[doc(hidden)]
    /// Lowers a bucket, made if its rule may make it, and says whether it held more; `None` if it never refills.
    fn hold_back<'c>(
        connection: &'c mut Self::Connection,
        what: &'c (Key, Rule, Hold),
        clock: &'c Self::Clock,
    ) -> Conversation<'c, Lowered>;
}

/// Whether a bucket held more than it was lowered to, or why it was not.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type Lowered = Result<Option<bool>, Word>;
