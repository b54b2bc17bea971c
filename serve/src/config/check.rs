//! A check for forward authentication: the key of a request, and its limits.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderName;
use http::request::Parts;
use serde_saphyr::{Location, Spanned};
use tollgate::{Key, Mode, Rule};
use tollgate_http::{ClientAddr, KeyExtractor, MissingKey, TrustedProxies};

use super::build::{deadline, on_failure, text_rule};
use super::{ConfigError, FailureMode, yaml};

/// The key and the limit of a forward authentication request.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) key: CheckKey,
    pub(crate) limit: CheckLimit,
    pub(crate) deny_status: StatusCode,
    pub(crate) allow_missing_key: bool,
    pub(crate) mode: Mode,
    pub(crate) on_failure: FailureMode,
    pub(crate) deadline: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) enum CheckLimit {
    Rule(Rule),
    /// The plan that a header names.
    PlanOf(HeaderName),
}

/// The key of a check: the text of each part, joined by length.
#[derive(Clone, Debug)]
pub(crate) struct CheckKey {
    parts: Vec<KeyPart>,
    client: ClientAddr,
    /// The proxies whose headers state the request of the client.
    trusted: Option<TrustedProxies>,
}

#[derive(Clone, Debug)]
enum KeyPart {
    Text(String),
    ClientIp,
    Header(HeaderName),
    Method,
    Host,
    Path,
}

impl Check {
    pub(super) fn build(name: &str, check: &yaml::Check, place: Location) -> Result<Self, ConfigError> {
        if check.key.is_empty() {
            return Err(ConfigError::at(place, format!("check '{name}' has no key: add key: [\"{{client_ip}}\"]")));
        }
        let parts = check.key.iter().map(KeyPart::parse).collect::<Result<Vec<_>, _>>()?;
        let trusted = match check.trusted.first() {
            None => None,
            Some(first) => {
                let networks = check.trusted.iter().map(|network| network.value.as_str());
                let trusted = TrustedProxies::networks(networks.filter(|network| *network != SOCKETS));
                let trusted = trusted.map_err(|error| ConfigError::at(first.referenced, error.to_string()))?;
                let has_sockets = check.trusted.iter().any(|network| network.value == SOCKETS);
                Some(if has_sockets { trusted.and_sockets() } else { trusted })
            }
        };
        let client = trusted.clone().map_or_else(ClientAddr::peer, ClientAddr::x_forwarded_for);
        let limit = match (&check.limits[..], &check.plan, &check.plan_of) {
            (limits @ [first, ..], None, None) => {
                let texts: Vec<&str> = limits.iter().map(|limit| limit.value.as_str()).collect();
                let rule = text_rule(&Spanned { value: texts.join("; "), ..first.clone() })?;
                CheckLimit::Rule(rule)
            }
            ([], Some(plan), None) => {
                let key = Key::try_from(plan.value.as_str());
                let key = key.map_err(|error| ConfigError::at(plan.referenced, error.to_string()))?;
                CheckLimit::Rule(Rule::Plan(key))
            }
            ([], None, Some(header)) => CheckLimit::PlanOf(header_name(header)?),
            _ => return Err(ConfigError::at(place, format!("check '{name}': give either limits, plan or plan_of"))),
        };
        let deny_status = match &check.deny_status {
            None => StatusCode::TOO_MANY_REQUESTS,
            Some(status) => StatusCode::from_u16(status.value)
                .ok()
                .filter(|status| status.is_client_error() || status.is_server_error())
                .ok_or_else(|| {
                    ConfigError::at(status.referenced, "deny_status must be 400 to 599, such as 429 or 403")
                })?,
        };
        let mode = match &check.mode {
            None => Mode::Enforce,
            Some(mode) => mode
                .value
                .parse()
                .map_err(|error: tollgate::model::ModeError| ConfigError::at(mode.referenced, error.to_string()))?,
        };
        Ok(Self {
            key: CheckKey { parts, client, trusted },
            limit,
            deny_status,
            allow_missing_key: check.allow_missing_key,
            mode,
            on_failure: check.on_error.as_ref().map_or_else(|| Ok(FailureMode::default()), on_failure)?,
            deadline: check.deadline.as_ref().map(deadline).transpose()?,
        })
    }
}

/// Trusts proxies that connect by a socket.
const SOCKETS: &str = "unix";

fn header_name(text: &Spanned<String>) -> Result<HeaderName, ConfigError> {
    let wrong = |_| ConfigError::at(text.referenced, format!("'{}' is not the name of a header", text.value));
    HeaderName::try_from(text.value.as_str()).map_err(wrong)
}

impl KeyPart {
    fn parse(text: &Spanned<String>) -> Result<Self, ConfigError> {
        let Some(name) = text.value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
            return Ok(Self::Text(text.value.clone()));
        };
        Ok(match name.split_once(':') {
            Some(("header", header)) => {
                Self::Header(header_name(&Spanned { value: header.to_owned(), ..text.clone() })?)
            }
            None if name == "client_ip" => Self::ClientIp,
            None if name == "method" => Self::Method,
            None if name == "host" => Self::Host,
            None if name == "path" => Self::Path,
            _ => {
                let known = "write {client_ip}, {header:NAME}, {method}, {host}, {path}, or a text";
                return Err(ConfigError::at(
                    text.referenced,
                    format!("unknown part of a key '{}': {known}", text.value),
                ));
            }
        })
    }

    fn extract(&self, request: &Parts, key: &CheckKey) -> Result<String, MissingKey> {
        let forwarded = |names: &[&str]| key.forwarded(request, names);
        Ok(match self {
            Self::Text(text) => text.clone(),
            Self::ClientIp => key.client.extract(request).map_err(|_| {
                MissingKey::server_error(
                    "The proxy connects by a socket, so that its client has no address. Add unix to `trusted` of the check, and send \
                     X-Forwarded-For.",
                )
            })?,
            Self::Header(name) => header(request, name)?,
            Self::Method => forwarded(&["x-forwarded-method", "x-original-method"])?,
            Self::Host => forwarded(&["x-forwarded-host"])?,
            Self::Path => {
                let uri = forwarded(&["x-forwarded-uri", "x-original-uri"])?;
                uri.split('?').next().unwrap_or_default().to_owned()
            }
        })
    }
}

impl CheckKey {
    /// The client's request as a trusted proxy states it, in one of these headers.
    fn forwarded(&self, request: &Parts, names: &[&str]) -> Result<String, MissingKey> {
        if !self.trusted.as_ref().is_some_and(|trusted| trusted.trust_peer(request)) {
            let reason = "The proxy is not trusted to state the request of its client. Add its address to `trusted` of the check.";
            return Err(MissingKey::server_error(reason));
        }
        let mut stated = names.iter().filter(|name| request.headers.contains_key(**name));
        let Some(name) = stated.next() else {
            let reason = format!("The proxy does not state the request of its client. Send {}.", names.join(" or "));
            return Err(MissingKey::client_error(reason));
        };
        // One of them is the client's own, which the proxy passes on.
        if stated.next().is_some() {
            let reason = format!(
                "Several headers state the request: {}. Let the proxy remove those that it does not set.",
                names.join(", ")
            );
            return Err(MissingKey::new(StatusCode::BAD_REQUEST, reason));
        }
        header(request, &HeaderName::try_from(*name).map_err(|_| MissingKey::server_error("The header has no name."))?)
    }
}

/// The only value of a header. A header that is sent twice names no one.
fn header(request: &Parts, name: &HeaderName) -> Result<String, MissingKey> {
    let mut values = request.headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Err(MissingKey::client_error(format!("The header {name} is missing. Send it.")));
    };
    let malformed =
        || MissingKey::new(StatusCode::BAD_REQUEST, format!("The header {name} is malformed. Send it once, as text."));
    if values.next().is_some() {
        return Err(malformed());
    }
    std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| malformed())
}

impl KeyExtractor for CheckKey {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        if let [part] = &self.parts[..] {
            return part.extract(request, self);
        }
        let texts: Vec<String> = self.parts.iter().map(|part| part.extract(request, self)).collect::<Result<_, _>>()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let joined = tollgate_http::joined_key(&texts);
        let empty = "The key of this request is empty. Send a value that is not empty.";
        joined.map(|key| key.to_string()).map_err(|_| MissingKey::new(StatusCode::BAD_REQUEST, empty))
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limit {
            CheckLimit::Rule(rule) => write!(f, "{}", super::LimitSource::Rule(rule.clone()))?,
            CheckLimit::PlanOf(header) => write!(f, "the plan that the header {header} names")?,
        }
        if self.mode != Mode::Enforce {
            write!(f, ", mode {}", self.mode)?;
        }
        Ok(())
    }
}
