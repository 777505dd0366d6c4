//! Which hosts may connect.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use nocopy_report::address::AllowedHost;

/// A network, or the addresses of a host.
#[derive(Debug, Clone)]
pub enum AllowRule {
    Network(IpNet),
    Host(AllowedHost),
}

impl FromStr for AllowRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Network(address.into()));
        }
        let host =
            text.parse().map_err(|why: String| format!("{why}; write a network as 10.0.0.0/8 or fd00::/8"));
        host.map(Self::Host)
    }
}

impl AllowRule {
    pub(super) fn allows(&self, peer: SocketAddr) -> bool {
        match self {
            Self::Network(network) => network.contains(&peer.ip().to_canonical()),
            Self::Host(host) => host.has(peer),
        }
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => write!(f, "{network}"),
            Self::Host(host) => write!(f, "{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_rule(text: &str) -> AllowRule {
        text.parse().unwrap()
    }

    #[test]
    fn networks_and_hosts_are_parsed() {
        for (text, read) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::/8", "fd00::/8"),
            ("localhost", "localhost"),
            ("fe80::1%lo", "fe80::1%lo"),
        ] {
            assert_eq!(parse_rule(text).to_string(), read);
        }
        assert!("10.0.0.0/33".parse::<AllowRule>().unwrap_err().contains("10.0.0.0/8"));
    }

    #[test]
    fn clients_are_matched_by_network_or_host() {
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(
            parse_rule("10.0.0.0/8").allows(peer("[::ffff:10.1.0.1]:9"))
                && !parse_rule("10.0.0.0/8").allows(peer("11.0.0.1:9"))
        );
        assert!(
            parse_rule("localhost").allows(peer("127.0.0.1:9"))
                && !parse_rule("localhost").allows(peer("10.0.0.1:9"))
        );
        let linked = |scope| std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, scope).into();
        assert!(parse_rule("fe80::1%lo").allows(linked(1)) && !parse_rule("fe80::1%lo").allows(linked(2)));
    }
}
