//! Requests that were checked once, as a type that layers and stores pass on.

use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use crate::model::{Take, TakeError};

/// Requests that every store can decide: each cost is at least 1, and several limits have different keys and no sliding
/// window.
///
/// A [`Limiter`](crate::Limiter), or a method of a [`Store`](crate::Store) that callers use, checks each request once. Layers
/// and stores pass on what was checked.
///
/// ```
/// use tollgate::{model::Checked, Key, Take, TakeError};
///
/// let take = Take::from(Key::try_from("user:42")?);
/// assert_eq!(Checked::try_from(&take)?.get_cost(), 1);
/// assert_eq!(Checked::try_from(&take.cost(0)).unwrap_err(), TakeError::ZeroCost);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Checked<T>(T);

impl<T> Deref for Checked<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'a> TryFrom<&'a Take> for Checked<&'a Take> {
    type Error = TakeError;

    #[inline]
    fn try_from(take: &'a Take) -> Result<Self, TakeError> {
        take.check()?;
        Ok(Self(take))
    }
}

impl<'a> Checked<&'a Take> {
    #[inline]
    pub(crate) fn get(self) -> &'a Take {
        self.0
    }

    #[inline]
    pub(crate) fn cloned(self) -> Checked<Take> {
        Checked(self.0.clone())
    }

    pub(crate) fn as_slice(self) -> Checked<&'a [Take]> {
        Checked(std::slice::from_ref(self.0))
    }

    /// The request without its unlimited buckets, and the places of the others. `None` if no bucket is unlimited.
    pub(crate) fn limited(self) -> Option<(Checked<Take>, SmallVec<[usize; 4]>)> {
        let (limited, places) = self.0.limited()?;
        Some((Checked(limited), places))
    }
}

impl Checked<Take> {
    /// The request for the limits at some places, all of them enforced.
    pub(crate) fn part(take: Checked<&Take>, places: &[usize]) -> Self {
        Self(take.0.part(places))
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> Checked<&Take> {
        Checked(&self.0)
    }

    pub(crate) fn set_max_wait(&mut self, max_wait: Duration) {
        self.0.max_wait = max_wait;
    }

    pub(crate) fn max_wait(self, max_wait: Duration) -> Self {
        Self(self.0.max_wait(max_wait))
    }

    /// The request at another cost, at least 1, regardless of its limit's own cost.
    pub(crate) fn costing(self, cost: u64) -> Self {
        Self(self.0.costing(cost.max(1)))
    }

    pub(crate) fn refundable(self) -> Self {
        Self(self.0.refundable())
    }

    pub(crate) fn without_id(self) -> Self {
        Self(Take { id: None, ..self.0 })
    }
}

impl<'a> Checked<&'a [Take]> {
    /// `None` if one of the requests cannot be decided.
    pub(crate) fn all(takes: &'a [Take]) -> Option<Self> {
        takes.iter().all(|take| take.check().is_ok()).then_some(Self(takes))
    }

    /// The request, if there is one alone.
    pub(crate) fn one(self) -> Option<Checked<&'a Take>> {
        if let [take] = self.0 { Some(Checked(take)) } else { None }
    }

    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = Checked<&'a Take>> {
        self.0.iter().map(Checked)
    }
}

impl Checked<Vec<Take>> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn as_slice(&self) -> Checked<&[Take]> {
        Checked(&self.0)
    }

    pub(crate) fn push(&mut self, take: Checked<Take>) {
        self.0.push(take.0);
    }
}

impl Default for Checked<Vec<Take>> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl IntoIterator for Checked<Vec<Take>> {
    type Item = Checked<Take>;
    type IntoIter = std::iter::Map<std::vec::IntoIter<Take>, fn(Take) -> Checked<Take>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(Checked)
    }
}

impl FromIterator<Checked<Take>> for Checked<Vec<Take>> {
    fn from_iter<I: IntoIterator<Item = Checked<Take>>>(takes: I) -> Self {
        Self(takes.into_iter().map(|take| take.0).collect())
    }
}

impl Extend<Checked<Take>> for Checked<Vec<Take>> {
    fn extend<I: IntoIterator<Item = Checked<Take>>>(&mut self, takes: I) {
        self.0.extend(takes.into_iter().map(|take| take.0));
    }
}
