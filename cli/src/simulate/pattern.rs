//! Traffic from a pattern: `poisson:50/s`, `steady:5/s+burst:20 every 10s`.

use std::f64::consts::TAU;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::file::MAX_ARRIVALS;
use super::traffic::{Arrival, Traffic};
use crate::times;

/// Concurrent streams of arrivals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern(Vec<Stream>);

/// One stream of arrivals. Rates are per second, times in seconds.
#[derive(Clone, Debug, PartialEq)]
enum Stream {
    Steady(f64),
    Poisson(f64),
    Burst { arrivals: u32, every: f64 },
    Sine { rate: f64, every: f64 },
    OnOff { rate: f64, on: f64, off: f64 },
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let streams = text.split('+').map(|stream| stream.trim().parse());
        streams
            .collect::<anyhow::Result<_>>()
            .map(Self)
            .with_context(|| format!("'{text}' is not a valid pattern: {FORMS}"))
    }
}

impl FromStr for Stream {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, rest) = text.split_once(':').context("the name and the colon are missing")?;
        match (name, &rest.split_whitespace().collect::<Vec<_>>()[..]) {
            ("steady", [each]) => Ok(Self::Steady(rate(each)?)),
            ("poisson", [each]) => Ok(Self::Poisson(rate(each)?)),
            ("burst", [arrivals, "every", every]) => {
                let arrivals = arrivals.parse().ok().filter(|arrivals| *arrivals > 0);
                Ok(Self::Burst {
                    arrivals: arrivals.context("the number of arrivals must be at least 1")?,
                    every: seconds(every)?,
                })
            }
            ("sine", [each, "every", every]) => Ok(Self::Sine { rate: rate(each)?, every: seconds(every)? }),
            ("on-off", [each, "on", on, "off", off]) => {
                Ok(Self::OnOff { rate: rate(each)?, on: seconds(on)?, off: seconds(off)? })
            }
            _ => bail!("'{text}' is not a known form"),
        }
    }
}

impl Pattern {
    /// Generates the traffic of this duration, from 1970 on, so that windows aligned to the calendar begin with it. The same seed
    /// repeats the same traffic.
    pub(crate) fn traffic(&self, duration: Duration, seed: u64) -> anyhow::Result<Traffic> {
        ensure!(can_last(duration), "the duration is out of range");
        let duration = duration.as_secs_f64();
        let most = || format!("at most {MAX_ARRIVALS} are simulated");
        #[expect(clippy::cast_precision_loss, reason = "a round number")]
        let is_flood = |stream: &Stream| stream.steadily() * duration > MAX_ARRIVALS as f64;
        ensure!(!self.0.iter().any(is_flood), "too many arrivals: {}", most());
        let mut random = fastrand::Rng::with_seed(seed);
        let mut arrivals = Vec::new();
        for stream in &self.0 {
            let times =
                stream.times(duration, &mut random).map(|time| Arrival { at: nanoseconds(time), cost: 1, client: 0 });
            arrivals.extend(times.take(MAX_ARRIVALS + 1 - arrivals.len()));
            ensure!(arrivals.len() <= MAX_ARRIVALS, "too many arrivals: {}", most());
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        Ok(Traffic { arrivals, begin: 0, end: nanoseconds(duration), clients: Vec::new(), skipped: 0 })
    }
}

impl Stream {
    /// The rate of a stream without pauses, else 0.
    fn steadily(&self) -> f64 {
        match *self {
            Self::Steady(rate) | Self::Poisson(rate) | Self::Sine { rate, .. } => rate,
            Self::Burst { .. } | Self::OnOff { .. } => 0.0,
        }
    }

    /// The arrival times, lazily, because they may not fit in memory.
    fn times<'a>(&self, duration: f64, random: &'a mut fastrand::Rng) -> Box<dyn Iterator<Item = f64> + 'a> {
        match *self {
            Self::Steady(rate) => Box::new(evenly(1.0 / rate, duration)),
            Self::Poisson(rate) => Box::new(poisson(rate, duration, random)),
            Self::Burst { arrivals, every } => {
                Box::new(evenly(every, duration).flat_map(move |time| std::iter::repeat_n(time, arrivals as usize)))
            }
            // Thins a stream of twice the rate, which is the peak of the sine.
            Self::Sine { rate, every } => {
                let mut chance = random.fork();
                let swings = move |time: &f64| chance.f64() * 2.0 < 1.0 - (TAU * time / every).cos();
                Box::new(poisson(2.0 * rate, duration, random).filter(swings))
            }
            Self::OnOff { rate, on, off } => Box::new(
                evenly(on + off, duration)
                    .flat_map(move |start| evenly(1.0 / rate, on.min(duration - start)).map(move |time| start + time)),
            ),
        }
    }
}

fn evenly(apart: f64, duration: f64) -> impl Iterator<Item = f64> {
    #[expect(clippy::cast_precision_loss, reason = "the number of arrivals is small enough for a float")]
    (0_u64..).map(move |n| n as f64 * apart).take_while(move |time| *time < duration)
}

/// Arrivals with exponentially distributed gaps.
fn poisson(rate: f64, duration: f64, random: &mut fastrand::Rng) -> impl Iterator<Item = f64> {
    let mut time = 0.0;
    std::iter::from_fn(move || {
        time -= (1.0 - random.f64()).ln() / rate;
        (time < duration).then_some(time)
    })
}

/// `50/s`, `0.5/s`, `3/10m`.
fn rate(text: &str) -> anyhow::Result<f64> {
    let (arrivals, period) =
        text.split_once('/').with_context(|| format!("'{text}' is not a valid rate: write 50/s"))?;
    let period =
        if period.starts_with(|c: char| c.is_ascii_digit()) { period.to_owned() } else { format!("1{period}") };
    let arrivals = arrivals.parse::<f64>().ok().filter(|arrivals| arrivals.is_finite() && *arrivals > 0.0);
    Ok(arrivals.with_context(|| format!("'{text}' is not a valid rate: write 50/s"))? / seconds(&period)?)
}

fn seconds(text: &str) -> anyhow::Result<f64> {
    let span = times::parse(text).ok().with_context(|| format!("'{text}' is not a valid time: write 10s or 250ms"))?;
    let seconds = span.as_secs_f64();
    ensure!(seconds > 0.0 && seconds < MAX_SECONDS, "'{text}' is out of range: more than 0 s, less than a century");
    Ok(seconds)
}

/// Whether a simulation can last this long.
pub(crate) fn can_last(duration: Duration) -> bool {
    !duration.is_zero() && duration.as_secs_f64() < MAX_SECONDS
}

/// Rounds to a microsecond, because the logarithms of two machines differ below that.
#[expect(clippy::cast_possible_truncation, reason = "a century is 3 × 10¹⁵ µs")]
fn nanoseconds(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64 * 1000
}

/// A century, in seconds.
const MAX_SECONDS: f64 = 36_525.0 * 86_400.0;

const FORMS: &str = "write 'steady:50/s', 'poisson:50/s', 'burst:20 every 5s', 'sine:50/s every 30s', \
                     'on-off:50/s on 5s off 10s', or several with + between them";

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(pattern: &str, seconds: u64) -> Vec<i64> {
        let traffic = pattern.parse::<Pattern>().and_then(|pattern| pattern.traffic(Duration::from_secs(seconds), 1));
        traffic.expect(pattern).arrivals.iter().map(|arrival| arrival.at / 1_000_000).collect()
    }

    #[test]
    fn deterministic_pattern_arrives_at_its_times() {
        assert_eq!(milliseconds("steady:4/s", 1), [0, 250, 500, 750]);
        assert_eq!(milliseconds("steady:1/2s", 5), [0, 2_000, 4_000]);
        assert_eq!(milliseconds("burst:2 every 1500ms", 3), [0, 0, 1_500, 1_500]);
        assert_eq!(milliseconds("on-off:2/s on 1s off 2s", 7), [0, 500, 3_000, 3_500, 6_000, 6_500]);
        assert_eq!(milliseconds("steady:1/s + burst:2 every 2s", 3), [0, 0, 0, 1_000, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn random_pattern_has_its_rate_and_repeats_per_seed() {
        for pattern in ["poisson:100/s", "sine:100/s every 10s"] {
            let arrivals = milliseconds(pattern, 100);
            assert!((9_500..10_500).contains(&arrivals.len()), "{pattern}: {}", arrivals.len());
            assert_eq!(arrivals, milliseconds(pattern, 100));
        }
        let sine = milliseconds("sine:100/s every 100s", 100);
        let crest = sine.iter().filter(|ms| (40_000..60_000).contains(*ms)).count();
        let trough = sine.iter().filter(|ms| !(10_000..90_000).contains(*ms)).count();
        assert!(crest > 10 * trough, "{crest} and {trough}");
    }

    #[test]
    fn invalid_pattern_error_lists_the_forms() {
        for text in [
            "",
            "steady",
            "steady:",
            "steady:0/s",
            "steady:-1/s",
            "steady:nan/s",
            "steady:5",
            "steady:5/0s",
            "burst:0 every 5s",
            "burst:5",
            "on-off:5/s on 5s",
            "waves:5/s",
            "steady:5/s+",
            "steady:inf/s",
        ] {
            let error = format!("{:#}", text.parse::<Pattern>().expect_err(text));
            assert!(error.contains("steady:50/s"), "{error}");
        }
        let flood: Pattern = "steady:1000000/s".parse().expect("a pattern");
        assert!(flood.traffic(Duration::from_secs(60), 1).is_err());
        assert!(flood.traffic(Duration::ZERO, 1).is_err());
    }
}
