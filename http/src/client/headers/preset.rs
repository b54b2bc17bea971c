use std::time::{Duration, SystemTime};

use http::HeaderMap;

use super::{lines, parsers, ratelimit};
use tollgate::Throttle;

/// Headers by which third parties say what is left of their limit, on every answer.
///
/// They only ever lower a bucket, and of several lines of a header the strictest counts. Where somebody says that nothing is left, and when something comes, no token comes before. An
/// answer that comes from a cache (`Age`) says nothing of what is left now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderPreset {
    /// `RateLimit`, in the form of the current IETF draft (`"default";r=50;t=30`) and in the older ones
    /// (`remaining=50, reset=30`; `RateLimit-Remaining`, and `RateLimit-Reset` in seconds, from now or, as GitLab's, since 1970).
    /// `Retry-After` beside it says when something comes.
    RateLimit,
    /// One policy of `RateLimit` in its current form, by its name: `Policy("bytes")` of `"second";r=9;t=1, "bytes";r=0;t=40`.
    /// For those who say what is left of several limits: let each read its own. A refusal of theirs without `Retry-After` lasts
    /// as long as that one says.
    Policy(&'static str),
    /// `X-RateLimit-Remaining` and `X-RateLimit-Reset`, in seconds, from now or, as GitHub's, since 1970; also
    /// `X-Rate-Limit-…`. A 403 that says `Retry-After`, or that nothing remains, is a refusal then.
    XRateLimit,
    /// Of `OpenAI` and those who are compatible: `x-ratelimit-remaining-requests` and its like.
    OpenAiRequests,
    /// The same for tokens of the language model: `x-ratelimit-remaining-tokens`.
    OpenAiTokens,
    /// Of Anthropic: `anthropic-ratelimit-requests-remaining` and its like.
    AnthropicRequests,
    /// The same for tokens of the language model: `anthropic-ratelimit-tokens-remaining`, the strictest of all.
    AnthropicTokens,
    /// Those that are read: `anthropic-ratelimit-input-tokens-remaining`.
    AnthropicInputTokens,
    /// Those that are written: `anthropic-ratelimit-output-tokens-remaining`.
    AnthropicOutputTokens,
}

/// Where the figures are, and how the reset is written.
struct HeaderNames {
    /// How many there are in all, where that is said and they come back evenly: the reset is when all are back then. Else
    /// it is when the first one is.
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
    /// All of them, but for single policies.
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

    /// What the headers of an answer say that was sent then. What comes from a cache was true once.
    pub(super) fn read(self, headers: &HeaderMap, sent: SystemTime) -> Option<Throttle> {
        if super::is_cached(headers) {
            return None;
        }
        let by_names = || self.names().iter().find_map(|names| names.read(headers, sent));
        let said = match self {
            Self::RateLimit => ratelimit::read(headers).or_else(by_names)?,
            Self::Policy(name) => ratelimit::read_policy(headers, name)?,
            _ => return by_names(),
        };
        // By the draft it takes precedence over the window.
        let retry_after = super::retry_after(headers, sent).zip(said.remaining_tokens());
        Some(retry_after.map_or(said, |(span, remaining)| super::left(remaining, || Some(span))))
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
        Some(super::left(remaining, next))
    }
}

/// Without parameters, such as the window that Docker Hub says: `0;w=21600`.
fn values<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    lines(headers, name).map(|line| line.split_once(';').map_or(line, |(value, _)| value.trim_end()))
}
