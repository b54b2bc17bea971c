//! Quotas as people write them: `10/s burst 20`, `2 per 1s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::span::{Span, length, span};
use super::{Quota, QuotaError, Refill};

impl fmt::Display for Quota {
    /// The shortest text that [`parse`](str::parse) makes the same quota of.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, refill) = (self.capacity(), Span(self.refill_time()));
        match self.refill {
            Refill::Interval => write!(f, "{capacity} per {refill}"),
            Refill::Calendar => write!(f, "{capacity} per calendar {refill}"),
            Refill::Once => write!(f, "{capacity} once"),
            Refill::Unlimited => f.write_str("unlimited"),
            Refill::Continuous => match self.per_unit() {
                Some((tokens, unit)) if tokens == capacity => write!(f, "{tokens}/{unit}"),
                Some((tokens, unit)) => write!(f, "{tokens}/{unit} burst {capacity}"),
                None => write!(f, "{capacity}/{refill}"),
            },
        }
    }
}

impl Quota {
    /// The rate as a whole number of tokens in the shortest of the usual units that has one.
    fn per_unit(&self) -> Option<(u64, &'static str)> {
        USUAL.iter().find_map(|&unit| {
            let (ns, refill) = (u128::from(length(unit)?), self.refill_time().as_nanos());
            let tokens = u64::try_from((u128::from(self.capacity()) * ns + refill / 2) / refill).ok()?;
            let rate = Self::per(tokens, Duration::from_nanos(length(unit)?)).burst(self.capacity());
            (tokens > 0 && rate.build().as_ref() == Ok(self)).then_some((tokens, unit))
        })
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let not_one = || QuotaError::Text(text.chars().take(60).collect());
        let number = |word: &str| word.parse::<u64>().map_err(|_| not_one());
        let span = |word: &str| span(word).ok_or_else(not_one);
        let rate = |word: &str| {
            let (tokens, period) = word.split_once('/').ok_or_else(not_one)?;
            Ok(Self::per(number(tokens)?, span(period)?))
        };
        match words[..] {
            ["unlimited"] => Ok(Self::unlimited()),
            [capacity, "once"] => Self::once(number(capacity)?),
            [capacity, "per", period] => Self::interval(number(capacity)?, span(period)?),
            [capacity, "per", "calendar", period] => Self::calendar(number(capacity)?, span(period)?),
            [per] => rate(per)?.build(),
            [per, "burst", capacity] => rate(per)?.burst(number(capacity)?).build(),
            _ => Err(not_one()),
        }
    }
}

const USUAL: [&str; 4] = ["s", "min", "h", "d"];
