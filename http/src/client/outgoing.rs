use http::{Extensions, HeaderMap, Method};

use tollgate::Key;

/// A request on its way to somebody else: what its key and its cost are made of.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) host: Option<&'a str>,
    /// If it is not its scheme's.
    pub(super) port: Option<u16>,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) extensions: &'a Extensions,
}

impl<'a> OutgoingRequest<'a> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The host that it goes to, without the port.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What whoever made the request has attached to it.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// The host in small letters, and its port if that is not its scheme's: `api.example.com`, `127.0.0.1:8080`.
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
        let named = parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        // A request to a path alone says where it goes in a header.
        let (host, port) = match (parts.uri.authority(), named) {
            (Some(authority), _) => (Some(authority.host()), authority.port_u16()),
            (None, Some(named)) => match named.parse::<http::uri::Authority>() {
                // Without a user before the host, so its host is where the text begins.
                Ok(authority) if !named.contains('@') => (Some(&named[..authority.host().len()]), authority.port_u16()),
                _ => (None, None),
            },
            (None, None) => (None, None),
        };
        let of_scheme = match parts.uri.scheme_str() {
            Some("https") => Some(443),
            _ => Some(80),
        };
        Self {
            method: &parts.method,
            host,
            port: port.filter(|port| Some(*port) != of_scheme),
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
