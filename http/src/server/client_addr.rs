use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName};
use http::request::Parts;

use super::address::{grouped, parse, peer};
use super::forwarded::{forwarded_for, from_right};
use super::{KeyExtractor, MissingKey, TrustedProxies};

/// Key extractor for the client's address: the peer's, unless trusted proxies report another one.
///
/// No header is trusted until you name the header and the proxies that write it. The header is read from the right,
/// over all its lines. The first address that is not a trusted proxy is the client.
///
/// An entry that is not an address, such as `unknown` or an obfuscated name, ends the search. The proxy that wrote it
/// then counts as the client. So clients cannot choose their bucket by sending entries.
///
/// IPv4-mapped addresses (`::ffff:0:0/96`) and NAT64 addresses of `64:ff9b::/96` count as their IPv4 addresses. IPv6
/// addresses share a key for each /64, because one client has all of its addresses.
///
/// If the server does not provide the peer's address, the layer answers 500.
///
/// # Examples
///
/// ```
/// use tollgate_http::{ClientAddr, TrustedProxies};
///
/// let behind_nginx = ClientAddr::x_forwarded_for(TrustedProxies::hops(1));
/// let behind_two_balancers = ClientAddr::x_forwarded_for(TrustedProxies::networks(["10.0.0.0/8", "fd00::/8"])?);
/// # Ok::<(), tollgate_http::NetworkError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddr {
    forwarded_by: Option<(HeaderName, TrustedProxies)>,
    ipv6_prefix: u8,
}

impl ClientAddr {
    /// Uses the peer's address. Behind a proxy, all clients have the proxy's address and share one limit.
    ///
    /// The address is axum's `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo`, or a `SocketAddr` that the server
    /// inserts into the request's extensions. In an axum test without a socket, use `MockConnectInfo`.
    #[must_use]
    pub const fn peer() -> Self {
        Self { forwarded_by: None, ipv6_prefix: 64 }
    }

    /// Uses the address that trusted proxies append to `X-Forwarded-For`.
    #[must_use]
    pub fn x_forwarded_for(proxies: TrustedProxies) -> Self {
        Self::header(HeaderName::from_static("x-forwarded-for"), proxies)
    }

    /// Uses the address that trusted proxies append to `Forwarded` (RFC 7239).
    #[must_use]
    pub fn forwarded(proxies: TrustedProxies) -> Self {
        Self::header(FORWARDED, proxies)
    }

    /// Uses the address that trusted proxies write into another header, which has an address or a list of addresses.
    #[must_use]
    pub fn header(name: HeaderName, proxies: TrustedProxies) -> Self {
        Self { forwarded_by: Some((name, proxies)), ..Self::peer() }
    }

    /// Sets how many bits of an IPv6 address identify a client, from 1 to 128.
    ///
    /// Set 56 if providers give each client a /56. Default: 64.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: bits.clamp(1, 128), ..self }
    }

    /// Returns the address before it becomes a key.
    fn find(&self, request: &Parts) -> Option<IpAddr> {
        let mut client = peer(request);
        let Some((header, proxies)) = &self.forwarded_by else {
            return client;
        };
        for (hop, element) in from_right(&request.headers, header).enumerate() {
            if !proxies.trusts(hop, client) {
                break;
            }
            let hop_address = match element {
                Some(element) if header == FORWARDED => forwarded_for(element).and_then(|node| parse(&node)),
                Some(element) => parse(element),
                None => None,
            };
            if hop_address.is_none() {
                break;
            }
            client = hop_address;
        }
        client
    }
}

impl Default for ClientAddr {
    fn default() -> Self {
        Self::peer()
    }
}

impl KeyExtractor for ClientAddr {
    fn extract(&self, request: &Parts) -> Result<String, MissingKey> {
        match self.find(request) {
            Some(address) => Ok(grouped(address, self.ipv6_prefix)),
            None => Err(MissingKey::server_error(
                "The server does not provide the peer's address. Serve an axum router with \
                 into_make_service_with_connect_info::<SocketAddr>(), or insert the peer's SocketAddr into the \
                 request's extensions.",
            )),
        }
    }
}
