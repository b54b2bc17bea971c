use http::{Extensions, HeaderMap, Method};

use tollgate::Key;

/// Request to an upstream, from which closures choose the key and the cost.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) host: Option<&'a str>,
    /// `None` if it is the default port of the scheme.
    pub(super) port: Option<u16>,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) extensions: &'a Extensions,
}

impl<'a> OutgoingRequest<'a> {
    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the host, without the port.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// Returns the path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Returns the headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the extensions that the caller attached to the request.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// Returns the default key: the host in lowercase, with its port unless it is the scheme's default.
    ///
    /// Examples are `api.example.com` and `127.0.0.1:8080`. Returns `None` if the host is missing or is not a valid
    /// key.
    #[must_use]
    pub fn host_key(&self) -> Option<Key> {
        let mut name = self.host?.trim_end_matches('.').to_ascii_lowercase();
        if let Some(port) = self.port {
            name = format!("{name}:{port}");
        }
        Key::try_from(name).ok()
    }
}

impl<'a> From<&'a http::request::Parts> for OutgoingRequest<'a> {
    fn from(parts: &'a http::request::Parts) -> Self {
        let host_header = parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        // A request with only a path has its host in a header.
        let (host, port) = match (parts.uri.authority(), host_header) {
            (Some(authority), _) => (Some(authority.host()), authority.port_u16()),
            (None, Some(host_header)) => match host_header.parse::<http::uri::Authority>() {
                // Rejects a user before the host, so that the text begins with the host.
                Ok(authority) if !host_header.contains('@') => {
                    (Some(&host_header[..authority.host().len()]), authority.port_u16())
                }
                _ => (None, None),
            },
            (None, None) => (None, None),
        };
        let default_port = match parts.uri.scheme_str() {
            Some("https") => Some(443),
            _ => Some(80),
        };
        Self {
            method: &parts.method,
            host,
            port: port.filter(|port| Some(*port) != default_port),
            path: parts.uri.path(),
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_spellings_share_one_key() {
        for (uri, host, expected) in [
            ("https://API.Example.com/a?b", None, Some("api.example.com")),
            ("https://api.example.com.:443/", None, Some("api.example.com")),
            ("http://api.example.com:80/", None, Some("api.example.com")),
            ("http://api.example.com:8080/", None, Some("api.example.com:8080")),
            ("http://[::1]:8080/", None, Some("[::1]:8080")),
            ("/a", Some("Example.com:81"), Some("example.com:81")),
            ("/a", Some("no host at all"), None),
            ("/a", Some("me@example.com"), None),
            ("/a", None, None),
        ] {
            let mut request = http::Request::get(uri);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(OutgoingRequest::from(&parts).host_key().as_ref().map(Key::as_str), expected, "{uri} {host:?}");
        }
    }
}
