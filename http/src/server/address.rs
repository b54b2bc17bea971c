//! Addresses: the peer's, as text in a header, and as keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::request::Parts;
use ipnet::Ipv6Net;

/// Returns the peer's address as the server reports it.
pub(super) fn peer(request: &Parts) -> Option<IpAddr> {
    let extensions = &request.extensions;
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(peer.ip());
        }
        if let Some(MockConnectInfo(peer)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(peer.ip());
        }
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|peer| peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// Parses an address as proxies write it: IPv4, or IPv6 with or without brackets, each with or without a port.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let bare = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            if !(port.is_empty() || port.starts_with(':')) {
                return None;
            }
            address
        }
        // A single colon precedes a port. Several colons are part of an IPv6 address.
        None => match text.split_once(':') {
            Some((address, port)) if !port.contains(':') => address,
            _ => text,
        },
    };
    let (address, _zone) = bare.split_once('%').unwrap_or((bare, ""));
    address.parse().ok()
}

/// Returns an address as a key. An IPv6 address becomes its network, because one client has a whole network.
pub(super) fn grouped(address: IpAddr, ipv6_prefix: u8) -> String {
    match unmapped(address) {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => match Ipv6Net::new(address, ipv6_prefix) {
            Ok(network) if ipv6_prefix < 128 => network.trunc().to_string(),
            _ => address.to_string(),
        },
    }
}

/// Extracts the IPv4 address from an IPv4-mapped address, as dual-stack sockets report, or from a NAT64 address.
fn unmapped(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.octets()[..12] == NAT64.octets()[..12] => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        canonical => canonical,
    }
}

const NAT64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_proxies_write_them() {
        let v4 = Some(IpAddr::from([203, 0, 113, 7]));
        let v6 = "2001:db8::7".parse().ok();
        for (text, address) in [
            ("203.0.113.7", v4),
            (" \t203.0.113.7 ", v4),
            ("203.0.113.7:443", v4),
            ("203.0.113.7:_port", v4),
            ("2001:db8::7", v6),
            ("[2001:db8::7]", v6),
            ("[2001:db8::7]:443", v6),
            ("2001:DB8:0:0::7%eth0", v6),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("[2001:db8::7", None),
            ("[2001:db8::7]443", None),
            ("203.0.113", None),
            ("203.0.113.256", None),
            ("203.0.113.07", None),
            ("203.0.113.7, 1.1.1.1", None),
        ] {
            assert_eq!(parse(text), address, "{text:?}");
        }
    }

    #[test]
    fn address_spellings_share_one_key() {
        for (address, prefix, key) in [
            ("203.0.113.7", 64, "203.0.113.7"),
            ("::ffff:203.0.113.7", 64, "203.0.113.7"),
            ("64:ff9b::203.0.113.7", 64, "203.0.113.7"),
            ("64:ff9b:1::203.0.113.7", 64, "64:ff9b:1::/64"),
            ("2001:db8:0:1:2:3:4:5", 64, "2001:db8:0:1::/64"),
            ("2001:db8:0:1:ffff::", 64, "2001:db8:0:1::/64"),
            ("2001:db8:0:1:2:3:4:5", 56, "2001:db8::/56"),
            ("2001:db8:0:1:2:3:4:5", 128, "2001:db8:0:1:2:3:4:5"),
        ] {
            assert_eq!(grouped(address.parse().unwrap(), prefix), key, "{address}");
        }
    }
}
