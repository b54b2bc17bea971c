use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName};
use http::request::Parts;

use super::address::{grouped, parse, peer};
use super::forwarded::{forwarded_for, from_right};
use super::{KeyExtractor, MissingKey, TrustedProxies};

/// The client's address: that of the peer, unless trusted proxies say otherwise.
///
/// Headers count for nothing until one is named here, together with the proxies that write it. It is read from the right,
/// over all its lines: the client is the first address that no trusted proxy has. What is no address, such as `unknown` or
/// an obfuscated name, ends the search: the client is then the proxy that wrote it. So nobody gets a bucket of their own
/// by what they write.
///
/// IPv4 addresses are one key however they are written, in IPv6 (`::ffff:0:0/96`) and behind a NAT64 (`64:ff9b::/96`) too.
/// IPv6 addresses are one key for each /64, as one client has all of its addresses.
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
    told: Option<(HeaderName, TrustedProxies)>,
    ipv6_prefix: u8,
}

impl ClientAddr {
    /// The peer's address. Behind a proxy all clients have one, and share one limit.
    ///
    /// It is axum's `ConnectInfo<SocketAddr>` (`MockConnectInfo` in a test without a socket), tonic's `TcpConnectInfo`, or a
    /// `SocketAddr` that the server puts into the request's extensions.
    #[must_use]
    pub const fn peer() -> Self {
        Self { told: None, ipv6_prefix: 64 }
    }

    /// What trusted proxies append to `X-Forwarded-For`.
    #[must_use]
    pub fn x_forwarded_for(proxies: TrustedProxies) -> Self {
        Self::header(HeaderName::from_static("x-forwarded-for"), proxies)
    }

    /// What trusted proxies append to `Forwarded` (RFC 7239).
    #[must_use]
    pub fn forwarded(proxies: TrustedProxies) -> Self {
        Self::header(FORWARDED, proxies)
    }

    /// What trusted proxies write into another header: an address, or a list of them.
    #[must_use]
    pub fn header(name: HeaderName, proxies: TrustedProxies) -> Self {
        Self { told: Some((name, proxies)), ..Self::peer() }
    }

    /// How many bits of an IPv6 address are one client's: 56 where providers give away so much. From 1 to 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: bits.clamp(1, 128), ..self }
    }

    /// The address, which is not yet a key.
    fn find(&self, request: &Parts) -> Option<IpAddr> {
        let mut client = peer(request);
        let Some((header, proxies)) = &self.told else {
            return client;
        };
        for (hop, element) in from_right(&request.headers, header).enumerate() {
            if !proxies.trusts(hop, client) {
                break;
            }
            let said = match element {
                Some(element) if header == FORWARDED => forwarded_for(element).and_then(|node| parse(&node)),
                Some(element) => parse(element),
                None => None,
            };
            if said.is_none() {
                break;
            }
            client = said;
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
                "the server does not say who the peer is: serve an axum router by \
                 into_make_service_with_connect_info::<SocketAddr>(), or put the peer's SocketAddr into the request's extensions",
            )),
        }
    }
}
