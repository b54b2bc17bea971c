use std::net::IpAddr;

use http::request::Parts;
use ipnet::{IpNet, Ipv4Net};

use super::address::peer;

/// Which proxies can report the address of a client. Used by [`ClientAddr`](super::ClientAddr).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    trust: Trust,
    /// Whether peers on a Unix socket are trusted, too.
    sockets: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    Hops(usize),
    Networks(Vec<IpNet>),
}

impl TrustedProxies {
    /// Trusts a number of proxies, which every request must pass.
    ///
    /// If a client can bypass some of these proxies, it can choose its own address.
    #[must_use]
    pub const fn hops(hops: usize) -> Self {
        Self { trust: Trust::Hops(hops), sockets: false }
    }

    /// Trusts proxies with an address in one of these networks, such as `10.0.0.0/8`, or with one of these addresses.
    ///
    /// If the peer is not in a network, the peer is the client, regardless of its headers. IPv4-mapped networks
    /// (`::ffff:10.0.0.0/104`) count as their IPv4 networks.
    ///
    /// Every host in the networks can forge the client's address, not only the proxies. List the proxies' own addresses
    /// or their subnet.
    ///
    /// # Errors
    ///
    /// Returns [`NetworkError`] if a text is neither a network nor an address.
    pub fn networks<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Result<Self, NetworkError> {
        let parse = |network: N| {
            let text = network.as_ref();
            let address = || text.parse::<IpAddr>().map(IpNet::from);
            let network = text.parse::<IpNet>().or_else(|_| address()).map_err(|_| NetworkError(text.to_owned()))?;
            Ok(canonical(network))
        };
        Ok(Self { trust: Trust::Networks(networks.into_iter().map(parse).collect::<Result<_, _>>()?), sockets: false })
    }

    /// Also trusts a proxy that connects by a Unix socket, which has no address. Each program that may open the socket can then choose
    /// the client's address.
    #[must_use]
    pub fn and_sockets(self) -> Self {
        Self { sockets: true, ..self }
    }

    /// Returns whether the peer of a request is one of these proxies, so that its headers state what the client asked.
    #[must_use]
    pub fn trust_peer(&self, request: &Parts) -> bool {
        self.trusts(0, peer(request))
    }

    /// Whether the proxy at this hop, counted from the server, is trusted. A peer on a Unix socket has no address.
    pub(super) fn trusts(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match &self.trust {
            Trust::Networks(_) if address.is_none() => self.sockets && hop == 0,
            Trust::Hops(hops) => hop < *hops,
            // A dual-stack socket reports IPv4 addresses as IPv6.
            Trust::Networks(networks) => {
                address.is_some_and(|address| networks.iter().any(|network| network.contains(&address.to_canonical())))
            }
        }
    }
}

/// Converts an IPv4-mapped network, such as `::ffff:10.0.0.0/104`, to its IPv4 network.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(bits)) => Ipv4Net::new(address, bits).map_or(network, IpNet::from),
        _ => network,
    }
}

/// The error for a text that is neither a network nor an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid network '{0}': write it as 10.0.0.0/8 or 2001:db8::/32, or give an address")]
pub struct NetworkError(String);
