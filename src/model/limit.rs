//! One limit of a request: a key, its rule and a cost.

use crate::model::{Key, LimitName, Limits, Mode, NamedLimit, Quota, QuotaBuilder, QuotaError, Window};

/// One limit of a request: a bucket, its rule, and how many tokens to take from it.
///
/// [`Take::and_limit`](crate::Take::and_limit) adds it to a request. It has the request's cost and minimum remaining, unless it
/// states its own. A request can also be built from a limit.
///
/// ```
/// use tollgate::{Key, Limit, Rule};
///
/// let requests = Limit::new(Key::try_from("account:requests")?, Rule::try_from("50/min")?).cost(1);
/// assert_eq!((requests.key().as_str(), requests.get_cost(), requests.get_min_remaining()), ("account:requests", 1, 0));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) key: Key,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    pub(crate) min_remaining: u64,
    /// Whether the cost is its own, and not the request's.
    pub(crate) own_cost: bool,
    own_min_remaining: bool,
    pub(crate) mode: Mode,
    /// Boxed, because few limits have any and every limit is moved.
    details: Option<Box<Details>>,
}

/// Settings that few limits have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Details {
    /// The quota of this process while the store does not answer.
    local: Option<Quota>,
    name: Option<LimitName>,
    /// The name of the cost that the limit counts.
    cost_name: Option<LimitName>,
}

impl Limit {
    /// Creates a limit of one token of the bucket `key` under a rule.
    #[must_use]
    pub fn new(key: Key, rule: Rule) -> Self {
        Self::of(key, rule, 1, 0)
    }

    #[inline]
    pub(crate) fn of(key: Key, rule: Rule, cost: u64, min_remaining: u64) -> Self {
        Self {
            key,
            rule,
            cost,
            min_remaining,
            own_cost: false,
            own_min_remaining: false,
            mode: Mode::Enforce,
            details: None,
        }
    }

    /// Sets how many tokens to take from this bucket, 1 or more, regardless of the request's cost.
    ///
    /// The minimum remaining becomes 0 unless [`min_remaining`](Self::min_remaining) sets it, because the bucket can count
    /// another unit. To settle such a request, state the use of [each limit](crate::Reservation::settle_each).
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        let min_remaining = if self.own_min_remaining { self.min_remaining } else { 0 };
        Self { cost, min_remaining, own_cost: true, own_min_remaining: true, ..self }
    }

    /// Sets how many tokens must remain in this bucket, regardless of the request's minimum.
    #[must_use]
    pub fn min_remaining(self, min_remaining: u64) -> Self {
        Self { min_remaining, own_min_remaining: true, ..self }
    }

    /// Sets the mode of this limit in this request, whatever the [mode of its key](Mode) in the store is. Default:
    /// [`Enforce`](Mode::Enforce), which leaves the mode to the store.
    ///
    /// In [`Shadow`](Mode::Shadow), the limit takes its tokens only after the other limits have granted the request, in a further
    /// call of the store. If it has too few, or never enough, it takes none and the request passes. If the store does not answer, it
    /// has no answer in [`Decision::each`](crate::Decision::each). A limit that is [`Off`](Mode::Off) takes nothing.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, MemoryStore, Mode, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "100/s")?;
    /// let tried = Limit::new(Key::try_from("tenant:7")?, Rule::try_from("1/h")?).mode(Mode::Shadow);
    /// for would_pass in [true, false] {
    ///     let decision = limiter.decide(&limiter.request("user:42")?.and_limit(tried.clone())).await?;
    ///     assert!(decision.is_granted());
    ///     assert_eq!(decision.each()[1].mode() == Mode::Enforce, would_pass);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the quota in this process while the store does not answer, if the limiter's fallback is a
    /// [local quota](crate::Fallback::Local). It replaces the fallback's quota and the rule of the request.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Quota, Rule};
    ///
    /// // For twenty processes; it holds the largest request.
    /// let tokens = Limit::new(Key::try_from("account:tokens")?, Rule::try_from("40000/min")?)
    ///     .cost(1200)
    ///     .fallback_quota(Quota::per_minute(2000).burst(4000).build()?);
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn fallback_quota(mut self, quota: Quota) -> Self {
        self.details.get_or_insert_default().local = Some(quota);
        self
    }

    /// Returns the key of the bucket.
    #[must_use]
    #[inline]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the rule.
    #[must_use]
    #[inline]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Returns how many tokens the request takes.
    #[must_use]
    #[inline]
    pub fn get_cost(&self) -> u64 {
        self.cost
    }

    /// Returns the minimum remaining.
    #[must_use]
    #[inline]
    pub fn get_min_remaining(&self) -> u64 {
        self.min_remaining
    }

    /// Returns the [mode](Self::mode) of the limit in this request.
    #[must_use]
    #[inline]
    pub fn get_mode(&self) -> Mode {
        self.mode
    }

    /// Returns whether the limit has a [cost](Self::cost) of its own.
    #[must_use]
    #[inline]
    pub fn has_own_cost(&self) -> bool {
        self.own_cost
    }

    /// Returns the name of the limit beside others of its key, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&LimitName> {
        self.details.as_ref()?.name.as_ref()
    }

    /// The quota of this process while the store does not answer, if the limit has its own.
    pub(crate) fn local_quota(&self) -> Option<Quota> {
        self.details.as_ref()?.local
    }

    /// The name of the cost that the limit counts, unless it counts the request's.
    pub(crate) fn cost_name(&self) -> Option<&LimitName> {
        self.details.as_ref()?.cost_name.as_ref()
    }

    /// This limit as one of several of its key, in the bucket of another id.
    pub(crate) fn part(&self, key: Key, rule: Rule, NamedLimit { name, cost, .. }: &NamedLimit) -> Self {
        // A named cost is the request's, also if this limit has a cost of its own.
        let own_cost = self.own_cost && cost.is_none();
        let mut part = Self { key, rule, own_cost, ..self.clone() };
        if name.is_some() || cost.is_some() {
            let details = part.details.get_or_insert_default();
            (details.name, details.cost_name) = (name.clone(), cost.clone());
        }
        part
    }

    /// Takes over the request's cost and minimum remaining, except where the limit has its own.
    #[inline]
    pub(crate) fn follow(&mut self, cost: u64, min_remaining: u64) {
        self.cost = if self.own_cost { self.cost } else { cost };
        self.min_remaining = if self.own_min_remaining { self.min_remaining } else { min_remaining };
    }

    /// This limit under another rule.
    pub(crate) fn under(&self, rule: Rule) -> Self {
        Self { rule, ..self.clone() }
    }

    /// The first of its limits, if it has several.
    pub(crate) fn first(&self) -> Self {
        match &self.rule {
            Rule::Limits(limits) => Self { rule: Rule::Quota(limits.first().quota), ..self.clone() },
            _ => self.clone(),
        }
    }

    /// Takes over the cost that it counts.
    pub(crate) fn follow_named(&mut self, costs: &[(LimitName, u64)]) {
        let counted = self.cost_name().and_then(|name| costs.iter().find(|(other, _)| other == name));
        if let Some(&(_, cost)) = counted {
            (self.cost, self.own_cost) = (cost, true);
        }
    }

    /// Whether the quota is unlimited.
    #[inline]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.rule == Rule::Quota(Quota::unlimited())
    }
}

/// Which limits apply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The bucket's own quota, or that of its plan's first limit. The bucket must be provisioned.
    Provisioned,
    /// The quota of a plan, which an operator can change at any time. The first request creates the bucket, full.
    Plan(Key),
    /// This quota. The first request creates the bucket, full. A bucket that was created under another quota changes to this
    /// one and keeps its tokens.
    Quota(Quota),
    /// This sliding window. A window and a bucket of one key are independent. The first request creates the window. A window
    /// that was created under other limits changes to these and keeps its counts.
    Window(Window),
    /// These limits. A request takes from all of them, or from none.
    Limits(Limits),
}

impl Rule {
    /// The quota that it states.
    #[cfg(feature = "_sql")]
    pub(crate) fn quota(&self) -> Option<&Quota> {
        match self {
            Self::Quota(quota) => Some(quota),
            _ => None,
        }
    }

    /// The plan that it names.
    pub(crate) fn plan(&self) -> Option<&Key> {
        match self {
            Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }
}

impl From<Window> for Rule {
    fn from(window: Window) -> Self {
        Self::Window(window)
    }
}

impl From<Quota> for Rule {
    fn from(quota: Quota) -> Self {
        Self::Quota(quota)
    }
}

impl From<Limits> for Rule {
    fn from(limits: Limits) -> Self {
        if limits.are_named() { Self::Limits(limits) } else { Self::Quota(limits.first().quota) }
    }
}

impl<const N: usize> TryFrom<[&str; N]> for Rule {
    type Error = QuotaError;

    /// Parses several limits: `["10/s burst 20", "day: 1000/day"]`.
    fn try_from(texts: [&str; N]) -> Result<Self, QuotaError> {
        let limits = texts.into_iter().map(str::parse).collect::<Result<Vec<NamedLimit>, _>>()?;
        Limits::new(limits).map(Self::from)
    }
}

impl TryFrom<QuotaBuilder> for Rule {
    type Error = QuotaError;

    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.build().map(Self::Quota)
    }
}

impl TryFrom<&str> for Rule {
    type Error = QuotaError;

    /// Parses a quota, `10/s burst 20`, a sliding window, `100 in 60s at 5s`, or several limits, `10/s; day: 1000/day`.
    fn try_from(text: &str) -> Result<Self, QuotaError> {
        match text.split_whitespace().nth(1) {
            Some("in") if !text.contains('/') => text.parse::<Window>().map(Self::Window),
            _ if text.contains([';', ':']) || text.contains(" cost ") => text.parse::<Limits>().map(Self::from),
            _ => text.parse::<Quota>().map(Self::Quota),
        }
    }
}
