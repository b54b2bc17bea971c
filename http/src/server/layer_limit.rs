use std::sync::Arc;

use http::request::Parts;
use http::response;
use tollgate::middleware::MiddlewareEvent;
use tollgate::{Error, Key, Mode, Quota, Rule};

use super::erased_limiter::ErasedLimiter;
use super::key::{alone, join, key};
use super::key_extractor::text;
use super::{KeyExtractor, MissingKey};

/// One limit of a layer: its key and its rule.
#[derive(Clone)]
pub(super) struct LayerLimit {
    pub(super) name: Arc<str>,
    /// Whether the name is a part of the keys.
    pub(super) has_name: bool,
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) rule_source: RuleSource,
    /// Replaces the request's cost.
    pub(super) cost: Option<RequestFn<u64>>,
    /// The unit in `RateLimit-Policy`.
    pub(super) unit: Option<Arc<str>>,
    /// Replaces the layer's refund.
    pub(super) refund: Option<UnusedFn>,
    /// Replaces the limiter's local fallback quota.
    pub(super) fallback_quota: Option<Quota>,
    pub(super) mode: Mode,
}

#[derive(Clone)]
pub(super) enum RuleSource {
    OfLimiter,
    Always(Rule),
    ByRequest(RequestFn<Result<Rule, Error>>),
}

/// A closure that computes a value from a request.
pub(super) type RequestFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// A closure that computes the unused tokens of a cost from an answer.
pub(super) type UnusedFn = Arc<dyn Fn(&response::Parts, u64) -> u64 + Send + Sync>;

/// Why a request has no decision.
pub(super) enum UndecidedError {
    MissingKey(MissingKey),
    Failed(Error),
}

/// Two limits of a layer have the same name, so they would share buckets.
#[derive(Debug, thiserror::Error)]
#[error("two limits of the layer are called '{0}': give each a name of its own")]
pub(super) struct SameName(pub(super) Arc<str>);

/// The layer has no limit of this name.
#[derive(Debug, thiserror::Error)]
#[error("no limit of the layer is called '{name}': add it before, or name one of {known}")]
pub(super) struct NoSuchName {
    pub(super) name: String,
    pub(super) known: String,
}

/// A layer with several limits has a sliding window, which must be the only limit of a request.
#[derive(Debug, thiserror::Error)]
#[error("limit '{0}' of the layer is a sliding window, which is decided by itself: give it a layer of its own")]
pub(super) struct WindowAmongOthers(pub(super) Arc<str>);

impl LayerLimit {
    pub(super) fn new(name: Arc<str>, key: Arc<dyn KeyExtractor>, rule_source: RuleSource) -> Self {
        Self {
            name,
            has_name: true,
            key,
            rule_source,
            cost: None,
            unit: None,
            refund: None,
            fallback_quota: None,
            mode: Mode::Enforce,
        }
    }

    pub(super) fn key(&self, request: &Parts) -> Result<Key, UndecidedError> {
        let text = text(&*self.key, request).map_err(UndecidedError::MissingKey)?;
        let text = if self.has_name { join(&[&self.name, &text]) } else { alone(text) };
        key(&text).map_err(|error| UndecidedError::Failed(error.into()))
    }

    pub(super) fn rule(&self, request: &Parts, limiter: &dyn ErasedLimiter) -> Result<Rule, UndecidedError> {
        match &self.rule_source {
            RuleSource::OfLimiter => Ok(limiter.rule()),
            RuleSource::Always(rule) => Ok(rule.clone()),
            RuleSource::ByRequest(choose) => choose(request)
                .inspect_err(|error| limiter.record(MiddlewareEvent::RuleFailed(error)))
                .map_err(UndecidedError::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds the key of a request with these texts, under a limit with this name or without a name.
    fn made(name: Option<&str>, texts: &[&str]) -> String {
        let says = |place: usize| {
            let text = texts[place].to_owned();
            move |_: &Parts| Some(text.clone())
        };
        let extractor: Arc<dyn KeyExtractor> = match texts.len() {
            1 => Arc::new(says(0)),
            2 => Arc::new((says(0), says(1))),
            _ => Arc::new((says(0), says(1), says(2))),
        };
        let (has_name, name) = (name.is_some(), name.unwrap_or("default").into());
        let limit = LayerLimit { has_name, ..LayerLimit::new(name, extractor, RuleSource::OfLimiter) };
        let request = http::Request::new(()).into_parts().0;
        limit.key(&request).unwrap_or_else(|_| panic!("{texts:?} make a key")).to_string()
    }

    #[test]
    fn ordinary_texts_are_keys_unchanged() {
        for text in ["203.0.113.7", "2001:db8::/64", "user:42", "/users/7?a=1", "42", "key=1", "42 = 7"] {
            assert_eq!(made(None, &[text]), text);
        }
        assert_eq!(made(Some("login"), &["203.0.113.7"]), "5=login 203.0.113.7");
        assert_eq!(made(None, &["7", "/"]), "5=1=7 /");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn keys_of_different_names_never_collide(
            name in ".{0,8}",
            other in ".{0,8}",
            text in ".{1,8}",
            more in "[0-9]{0,2}=?.{1,8}",
        ) {
            let names = [None, Some(&name[..]), Some(&other[..])];
            // A client cannot send an empty text.
            let [name, other] = [&name, &other].map(|name| if name.is_empty() { "0=" } else { name });
            for mine in names {
                for yours in names.into_iter().filter(|yours| *yours != mine) {
                    for yours_says in [&[&text[..]][..], &[&text, &more], &[name, &text], &[&text, &more, name]] {
                        let key = made(yours, yours_says);
                        // Tries the key itself and its parts, as one text and as several.
                        for hop_address in [&[&key[..]][..], &[name, &text], &[other, &text], &[&text, &more], &[&text], &[name, &text, &more]] {
                            prop_assert_ne!(made(mine, hop_address), &key[..], "{:?} by {:?} and {:?} by {:?}", hop_address, mine, yours_says, yours);
                        }
                    }
                }
            }
        }
    }
}
