use crate::model::{Key, Quota, Rule};

/// One of the limits of a request: a bucket, its terms, and how many of its tokens are taken.
///
/// It is [added to a request](crate::Take::and_limit) for tokens of another bucket, and has that request's cost and what it
/// keeps, unless it says its own. A request can begin with one as well.
///
/// ```
/// use tollgate::{Key, Limit, Rule};
///
/// let requests = Limit::new(Key::try_from("account:requests")?, Rule::try_from("50/min")?).cost(1);
/// assert_eq!((requests.key().as_str(), requests.tokens(), requests.kept()), ("account:requests", 1, 0));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) key: Key,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    pub(crate) keep: u64,
    /// Whether these are its own, and not the request's.
    pub(crate) own_cost: bool,
    own_keep: bool,
    /// Boxed, as few say it, and all are moved about.
    pub(crate) local: Option<Box<Quota>>,
}

impl Limit {
    /// A bucket and its terms.
    #[must_use]
    pub fn new(key: Key, rule: Rule) -> Self {
        Self::of(key, rule, 1, 0)
    }

    #[inline]
    pub(crate) fn of(key: Key, rule: Rule, cost: u64, keep: u64) -> Self {
        Self { key, rule, cost, keep, own_cost: false, own_keep: false, local: None }
    }

    /// How many tokens to take, 1 or more, whatever the request takes of others: of other things, perhaps, so it keeps none
    /// unless it [says so](Self::keep).
    ///
    /// What such a request used is told for [each of its limits](crate::Reservation::settle_each).
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        let keep = if self.own_keep { self.keep } else { 0 };
        Self { cost, keep, own_cost: true, own_keep: true, ..self }
    }

    /// How many tokens must remain for others, whatever the request keeps elsewhere.
    #[must_use]
    pub fn keep(self, keep: u64) -> Self {
        Self { keep, own_keep: true, ..self }
    }

    /// What holds in this process while the store does not answer, if the limiter's fallback is a
    /// [local quota](crate::Fallback::Local): instead of that, or of the terms that the request states.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Quota, Rule};
    ///
    /// // For twenty processes; it holds the largest request.
    /// let tokens = Limit::new(Key::try_from("account:tokens")?, Rule::try_from("40000/min")?)
    ///     .cost(1200)
    ///     .locally(Quota::per_minute(2000).burst(4000).build()?);
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn locally(self, quota: Quota) -> Self {
        Self { local: Some(Box::new(quota)), ..self }
    }

    /// The bucket.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Under which terms.
    #[must_use]
    #[inline]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// How many tokens are taken.
    #[must_use]
    #[inline]
    pub fn tokens(&self) -> u64 {
        self.cost
    }

    /// How many must remain for others.
    #[must_use]
    #[inline]
    pub fn kept(&self) -> u64 {
        self.keep
    }

    /// Returns whether the limit states a [cost](Self::cost) of its own, whatever the request costs.
    #[must_use]
    #[inline]
    pub fn has_own_cost(&self) -> bool {
        self.own_cost
    }

    /// Has what its request has, but for what is its own.
    #[inline]
    pub(crate) fn follow(&mut self, cost: u64, keep: u64) {
        self.cost = if self.own_cost { self.cost } else { cost };
        self.keep = if self.own_keep { self.keep } else { keep };
    }

    /// Whether it limits nothing.
    #[inline]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.rule == Rule::Quota(Quota::unlimited())
    }
}
