//! Sliding windows as people write them: `100 in 60s at 5s`.

use std::fmt;
use std::str::FromStr;

use super::Window;
use crate::model::QuotaError;
use crate::model::quota::span::{Span, span};

impl fmt::Display for Window {
    /// The shortest text that [`parse`](str::parse) makes the same window of.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} at {}", self.most, Span(self.interval()), Span(self.resolution()))
    }
}

impl FromStr for Window {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let not_one = || QuotaError::WindowText(text.chars().take(60).collect());
        let span = |word: &str| span(word).ok_or_else(not_one);
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            [most, "in", interval, "at", resolution] => {
                Self::new(most.parse().map_err(|_| not_one())?, span(interval)?, span(resolution)?)
            }
            _ => Err(not_one()),
        }
    }
}
