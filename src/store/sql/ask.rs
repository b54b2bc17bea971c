use uuid::Uuid;

use crate::model::bucket::Request;
use crate::model::{Key, Quota, Rule, Take, TakeError, Window};

/// A request as the database sees it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// For its bucket; of several, for the first.
    pub(super) request: Request,
    pub(super) take: Take,
    /// It stands for so many equal requests, decided one after the other.
    pub(super) times: i64,
}

impl Ask {
    pub(super) fn key(&self) -> &Key {
        self.take.key()
    }

    /// What is asked of the bucket at a place.
    pub(super) fn request_at(&self, place: usize) -> Request {
        self.take.request_at(place)
    }

    /// The terms that come with the request, for the bucket at a place.
    pub(super) fn quota(&self, place: usize) -> Option<&Quota> {
        self.take.limits[place].rule.quota()
    }

    /// The plan that the request names, for the bucket at a place.
    pub(super) fn plan(&self, place: usize) -> Option<&str> {
        self.take.limits[place].rule.plan().map(Key::as_str)
    }

    /// The sliding window that the request is under.
    pub(super) fn window(&self) -> Result<&Window, sqlx::Error> {
        self.take.window().ok_or_else(|| sqlx::Error::InvalidArgument("a request without a window".into()))
    }

    /// A request that is only counted: perhaps for nothing, to read what was.
    pub(super) fn counting(key: &Key, window: &Window, cost: i64) -> Self {
        let take = Take::from(key.clone()).rule(Rule::Window(*window));
        Self { request: Request { cost, max_wait: 0, keep: 0 }, take, times: 1 }
    }

    /// Whether another request is this one over again: each is decided now, and nothing is remembered of it.
    pub(super) fn is_repeated_by(&self, other: &Self) -> bool {
        self.take.is_momentary() && self.take == other.take
    }

    /// Whether another request differs from this one in its bucket and how often it is asked only, and each is decided now,
    /// under terms that come with it or are a plan's.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (limit, others) = (&self.take.limits[0], &other.take.limits[0]);
        self.take.is_momentary()
            && other.take.is_momentary()
            && self.request == other.request
            && limit.rule == others.rule
            && matches!(limit.rule, Rule::Quota(_) | Rule::Plan(_))
    }

    pub(super) fn id(&self) -> Option<Uuid> {
        self.take.id
    }

    /// For how many nanoseconds the id is remembered.
    pub(super) fn hold(&self) -> i64 {
        self.take.hold_ns()
    }
}

impl TryFrom<&Take> for Ask {
    type Error = TakeError;

    fn try_from(take: &Take) -> Result<Self, TakeError> {
        Ok(Self { request: take.request()?, take: take.clone(), times: 1 })
    }
}
