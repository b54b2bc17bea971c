use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Which proxies are believed when they say where a request came from: see [`ClientAddr`](super::ClientAddr).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies(Trust);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    Hops(usize),
    Networks(Vec<IpNet>),
}

impl TrustedProxies {
    /// So many proxies are passed by every request on its way. Right only if none of them can be gone around: who reaches
    /// an inner one directly chooses what the outer ones would have said.
    #[must_use]
    pub const fn hops(hops: usize) -> Self {
        Self(Trust::Hops(hops))
    }

    /// Those with an address in one of these networks, such as `10.0.0.0/8`, or with one of these addresses. A request
    /// from elsewhere is its peer's, whatever its headers say. Every host in these networks can forge the client's address, not
    /// only the proxies: list the proxies' own addresses or their subnet. IPv4 is one, also in IPv6 (`::ffff:10.0.0.0/104`).
    ///
    /// # Errors
    ///
    /// If one of them is neither a network nor an address.
    pub fn networks<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Result<Self, NetworkError> {
        let parse = |network: N| {
            let text = network.as_ref();
            let address = || text.parse::<IpAddr>().map(IpNet::from);
            let network = text.parse::<IpNet>().or_else(|_| address()).map_err(|_| NetworkError(text.to_owned()))?;
            Ok(canonical(network))
        };
        Ok(Self(Trust::Networks(networks.into_iter().map(parse).collect::<Result<_, _>>()?)))
    }

    /// Whether the proxy at this address, so many hops away, is believed. On a Unix socket it has none.
    pub(super) fn trusts(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match &self.0 {
            Trust::Hops(hops) => hop < *hops,
            // A socket for both versions shows IPv4 as IPv6.
            Trust::Networks(networks) => {
                address.is_some_and(|address| networks.iter().any(|network| network.contains(&address.to_canonical())))
            }
        }
    }
}

/// One of IPv4 as such, though it may be written as a socket for both versions shows its addresses: `::ffff:10.0.0.0/104`.
fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(bits)) => Ipv4Net::new(address, bits).map_or(network, IpNet::from),
        _ => network,
    }
}

/// A text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no network: write it as 10.0.0.0/8 or 2001:db8::/32, or give an address")]
pub struct NetworkError(String);
