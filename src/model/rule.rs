use crate::model::{Key, Quota, QuotaBuilder, QuotaError, Window};

/// Whose terms hold for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The bucket's own, or its plan's. It must have been provisioned.
    Provisioned,
    /// Those of a plan, whose row can be changed at any time. The first request makes the bucket, full.
    Plan(Key),
    /// These. The first request makes the bucket, full; a bucket made under another quota changes to this one
    /// and keeps its tokens.
    Quota(Quota),
    /// At most so many in any interval. Windows and buckets of the same key are two. The first request makes the window;
    /// one made under other terms changes to these and keeps its counts.
    Window(Window),
}

impl Rule {
    /// The terms that it brings along.
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

impl TryFrom<QuotaBuilder> for Rule {
    type Error = QuotaError;

    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.build().map(Self::Quota)
    }
}

impl TryFrom<&str> for Rule {
    type Error = QuotaError;

    /// A quota in words, `10/s burst 20`, or a sliding window, `100 in 60s at 5s`.
    fn try_from(text: &str) -> Result<Self, QuotaError> {
        match text.split_whitespace().nth(1) {
            Some("in") => text.parse::<Window>().map(Self::Window),
            _ => text.parse::<Quota>().map(Self::Quota),
        }
    }
}
