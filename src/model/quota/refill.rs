/// How the tokens of a bucket come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refill {
    /// One by one, at an even rate, up to the capacity.
    Continuous,
    /// All at once, at the end of each period.
    Interval,
    /// All at once, at the end of each period of the calendar, in UTC.
    Calendar,
    /// Never: the capacity can be used once.
    Once,
    /// There is no limit, and nothing to come back.
    Unlimited,
}

impl Refill {
    /// The word that the database's `refill` column holds; it has none for no limit.
    #[cfg(feature = "_sql")]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Continuous => "continuous",
            Self::Interval => "interval",
            Self::Calendar => "calendar",
            Self::Once => "once",
            Self::Unlimited => "unlimited",
        }
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Continuous, Self::Interval, Self::Calendar, Self::Once]
            .into_iter()
            .find(|refill| refill.as_str() == word)
    }
}
