use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::{lines, parsers, ratelimit};
use tollgate::Throttle;

/// Headers in which upstreams report the tokens left, on every answer.
///
/// A preset only ever lowers a bucket. If a header has several lines, the strictest counts. If nothing is left and the
/// answer states a time, no token comes before that time. Answers from a cache (`Age` above 0) do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderPreset {
    /// `RateLimit`, in the form of the current IETF draft (`"default";r=50;t=30`) and in older forms (`remaining=50,
    /// reset=30`; `RateLimit-Remaining` and `RateLimit-Reset`, in seconds from now or, in GitLab's case, since 1970).
    /// `Retry-After` takes precedence over its times.
    RateLimit,
    /// One policy of `RateLimit` in its current form, by name: `Policy("bytes")` of `"second";r=9;t=1,
    /// "bytes";r=0;t=40`.
    ///
    /// Use it if an upstream reports several policies: let each limit read its own. A refusal without `Retry-After`
    /// waits as long as this policy states.
    Policy(&'static str),
    /// `X-RateLimit-Remaining` and `X-RateLimit-Reset`, in seconds from now or, in GitHub's case, since 1970; also
    /// `X-Rate-Limit-…`. With this preset, a 403 is a refusal if it has `Retry-After` or nothing is left.
    XRateLimit,
    /// Requests of `OpenAI` and compatible upstreams: `x-ratelimit-remaining-requests` and related headers.
    OpenAiRequests,
    /// Language model tokens of `OpenAI` and compatible upstreams: `x-ratelimit-remaining-tokens` and related headers.
    OpenAiTokens,
    /// Requests of Anthropic: `anthropic-ratelimit-requests-remaining` and related headers.
    AnthropicRequests,
    /// Language model tokens of Anthropic, the strictest of its token limits: `anthropic-ratelimit-tokens-remaining`.
    AnthropicTokens,
    /// Input tokens of Anthropic: `anthropic-ratelimit-input-tokens-remaining`.
    AnthropicInputTokens,
    /// Output tokens of Anthropic: `anthropic-ratelimit-output-tokens-remaining`.
    AnthropicOutputTokens,
}

/// The headers of a preset, and the format of the reset time.
struct HeaderNames {
    /// The limit, if tokens return evenly and the reset is when all have returned. Otherwise the reset is when the
    /// first returns.
    limit: Option<&'static str>,
    remaining: &'static str,
    reset: &'static str,
    parse: fn(&str, SystemTime) -> Option<Duration>,
}

macro_rules! anthropic {
    ($of:literal) => {
        &[HeaderNames {
            limit: Some(concat!("anthropic-ratelimit-", $of, "-limit")),
            remaining: concat!("anthropic-ratelimit-", $of, "-remaining"),
            reset: concat!("anthropic-ratelimit-", $of, "-reset"),
            parse: parsers::instant,
        }]
    };
}
impl HeaderPreset {
    /// All presets except [`Policy`](Self::Policy).
    pub const ALL: &'static [Self] = &[
        Self::RateLimit,
        Self::XRateLimit,
        Self::OpenAiRequests,
        Self::OpenAiTokens,
        Self::AnthropicRequests,
        Self::AnthropicTokens,
        Self::AnthropicInputTokens,
        Self::AnthropicOutputTokens,
    ];

    /// Reads the headers of an answer that was sent at `sent`. Ignores answers from a cache, which report an earlier
    /// state.
    pub(super) fn read(self, headers: &HeaderMap, sent: SystemTime) -> Option<Throttle> {
        if super::is_cached(headers) {
            return None;
        }
        let by_names = || self.names().iter().find_map(|names| names.read(headers, sent));
        let reported = match self {
            Self::RateLimit => ratelimit::read(headers).or_else(by_names)?,
            Self::Policy(name) => ratelimit::read_policy(headers, name)?,
            _ => return by_names(),
        };
        // By the draft, `Retry-After` takes precedence over the window.
        let retry_after = super::retry_after(headers, sent).zip(reported.get_remaining());
        Some(retry_after.map_or(reported, |(span, remaining)| super::throttle_of(remaining, || Some(span))))
    }

    fn names(self) -> &'static [HeaderNames] {
        match self {
            Self::RateLimit => &[HeaderNames {
                limit: None,
                remaining: "ratelimit-remaining",
                reset: "ratelimit-reset",
                parse: parsers::seconds_or_epoch,
            }],
            Self::Policy(_) => &[],
            Self::XRateLimit => &[
                HeaderNames {
                    limit: None,
                    remaining: "x-ratelimit-remaining",
                    reset: "x-ratelimit-reset",
                    parse: parsers::seconds_or_epoch,
                },
                HeaderNames {
                    limit: None,
                    remaining: "x-rate-limit-remaining",
                    reset: "x-rate-limit-reset",
                    parse: parsers::seconds_or_epoch,
                },
            ],
            Self::OpenAiRequests => &[HeaderNames {
                limit: Some("x-ratelimit-limit-requests"),
                remaining: "x-ratelimit-remaining-requests",
                reset: "x-ratelimit-reset-requests",
                parse: |text, _| parsers::span(text),
            }],
            Self::OpenAiTokens => &[HeaderNames {
                limit: Some("x-ratelimit-limit-tokens"),
                remaining: "x-ratelimit-remaining-tokens",
                reset: "x-ratelimit-reset-tokens",
                parse: |text, _| parsers::span(text),
            }],
            Self::AnthropicRequests => anthropic!("requests"),
            Self::AnthropicTokens => anthropic!("tokens"),
            Self::AnthropicInputTokens => anthropic!("input-tokens"),
            Self::AnthropicOutputTokens => anthropic!("output-tokens"),
        }
    }
}

impl HeaderNames {
    fn read(&self, headers: &HeaderMap, sent: SystemTime) -> Option<Throttle> {
        let remaining = values(headers, self.remaining).filter_map(parsers::whole).min()?;
        let reset = || values(headers, self.reset).filter_map(|text| (self.parse)(text, sent)).max();
        let next = || match self.limit {
            None => reset(),
            Some(limit) => {
                let limit = values(headers, limit).filter_map(parsers::whole).min()?;
                reset()?.checked_div(u32::try_from(limit).unwrap_or(u32::MAX))
            }
        };
        Some(super::throttle_of(remaining, next))
    }
}

/// Iterates over values without parameters, such as the window that Docker Hub adds: `0;w=21600`.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    lines(headers, name).map(|line| line.split_once(';').map_or(line, |(value, _)| value.trim_end()))
}
