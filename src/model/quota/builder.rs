use std::time::Duration;

use super::{Quota, QuotaError, Refill};

/// A steady rate, to which a burst can be added: what [`Quota::per_second`] and its like begin.
///
/// It becomes a [`Quota`] by [`build`](Self::build), or where one is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaBuilder {
    rate: Rate,
    burst: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    Tokens(u64, Duration),
    /// Tokens a second.
    Fraction(f64),
}

impl Quota {
    /// `tokens` each second, evenly; the burst is as many unless said.
    #[must_use]
    pub const fn per_second(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_secs(1))
    }

    /// `tokens` each minute, evenly; the burst is as many unless said.
    #[must_use]
    pub const fn per_minute(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_mins(1))
    }

    /// `tokens` each hour, evenly; the burst is as many unless said.
    #[must_use]
    pub const fn per_hour(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_hours(1))
    }

    /// `tokens` each 24 hours, evenly; the burst is as many unless said.
    #[must_use]
    pub const fn per_day(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_hours(24))
    }

    /// `tokens` each `period`, evenly; the burst is as many unless said.
    ///
    /// A rate of 0 grants the burst, and then nothing.
    #[must_use]
    pub const fn per(tokens: u64, period: Duration) -> QuotaBuilder {
        QuotaBuilder { rate: Rate::Tokens(tokens, period), burst: None }
    }

    /// Any number of tokens a second, evenly: 0 grants the burst and then nothing, infinity has no limit. The burst is
    /// what comes in a second, rounded up, unless said.
    #[must_use]
    pub const fn rate(tokens_a_second: f64) -> QuotaBuilder {
        QuotaBuilder { rate: Rate::Fraction(tokens_a_second), burst: None }
    }
}

impl QuotaBuilder {
    /// How many tokens a full bucket holds, and so how many may pass at once.
    #[must_use]
    pub const fn burst(self, tokens: u64) -> Self {
        Self { burst: Some(tokens), ..self }
    }

    /// The quota.
    ///
    /// # Errors
    ///
    /// If there is none of these figures: see [`Quota::continuous`]. A rate that is negative or no number is none.
    pub fn build(self) -> Result<Quota, QuotaError> {
        match self.rate {
            Rate::Tokens(0, _) => Quota::once(self.burst.unwrap_or(0)),
            Rate::Tokens(tokens, period) => {
                let capacity = self.burst.unwrap_or(tokens);
                let refill = (u128::from(capacity)).saturating_mul(period.as_nanos()).div_ceil(u128::from(tokens));
                let quota = Quota::new(capacity, nanoseconds(refill)?, Refill::Continuous)?;
                // A small burst is refilled before a rounded nanosecond shows in it.
                let takes = u128::from(quota.token_ns().unsigned_abs()).saturating_mul(u128::from(tokens));
                let too_fine = takes.saturating_mul(1000) > period.as_nanos().saturating_mul(1001);
                if too_fine { Err(QuotaError::too_fine(tokens, period)) } else { Ok(quota) }
            }
            Rate::Fraction(rate) if rate.is_nan() || rate < 0.0 => Err(QuotaError::NoRate(rate)),
            Rate::Fraction(f64::INFINITY) => Ok(Quota::unlimited()),
            Rate::Fraction(0.0) => Quota::once(self.burst.unwrap_or(0)),
            Rate::Fraction(rate) => self.fraction(rate),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a rate is no more precise, and what saturates is refused"
    )]
    fn fraction(self, rate: f64) -> Result<Quota, QuotaError> {
        let capacity = self.burst.unwrap_or_else(|| rate.ceil() as u64);
        let ns = capacity as f64 / rate * 1e9;
        // Up, but for what a float is off by: a rate is never exceeded.
        let refill = if (ns - ns.round()).abs() <= ns * 1e-12 { ns.round() } else { ns.ceil() };
        let quota = Quota::new(capacity, Duration::from_nanos(refill as u64), Refill::Continuous)?;
        let too_fine = quota.token_ns() as f64 * rate > 1.001e9;
        if too_fine { Err(QuotaError::too_fine(rate.ceil() as u64, Duration::from_secs(1))) } else { Ok(quota) }
    }
}

impl TryFrom<QuotaBuilder> for Quota {
    type Error = QuotaError;

    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.build()
    }
}

fn nanoseconds(refill: u128) -> Result<Duration, QuotaError> {
    u64::try_from(refill).map(Duration::from_nanos).map_err(|_| QuotaError::RefillTooLong)
}
