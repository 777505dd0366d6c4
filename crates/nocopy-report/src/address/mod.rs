//! Addresses as users write them in arguments and URLs: parsed, resolved, listened at and connected to in the
//! same way by every command.
//!
//! A host is a name or an IP address. An IPv6 address may have a scope (RFC 4007), an interface's name or
//! number: `fe80::1%eth0`, `fe80::1%3`, and in URLs also `fe80::1%25eth0` (RFC 6874). Before a port, an IPv6
//! address is in brackets.

mod attempts;
mod connect;
mod listen;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::quantity::parse_digits;

pub use attempts::FailedAttempts;
pub use connect::connect;
pub use listen::{bind_tcp, is_address_not_local, listen_tcp, wildcard_address};

/// A host as it was written, not resolved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    Name(String),
    Ipv4(Ipv4Addr),
    Ipv6 {
        address: Ipv6Addr,
        /// The name or number of an interface.
        scope: Option<String>,
    },
}

/// `HOST:PORT`; without a host (`:PORT`) all addresses of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub host: Option<Host>,
    pub port: u16,
}

/// The host and port of a URL, in the form that arguments have: the `%25` before a scope is decoded.
pub fn host_port_of_url(authority: &str) -> String {
    match authority.split_once("%25") {
        Some((address, scope)) if !scope.trim_start_matches(']').is_empty() && !scope.starts_with(']') => {
            format!("{address}%{scope}")
        }
        _ => authority.to_owned(),
    }
}

impl FromStr for Host {
    type Err = String;

    /// An IPv6 address may be in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let (address, scope) = match inside.unwrap_or(text).split_once('%') {
            Some((address, scope)) => (address, Some(scope)),
            None => (inside.unwrap_or(text), None),
        };
        if let Ok(address) = address.parse::<Ipv6Addr>() {
            return match scope {
                Some("") => Err("an interface must follow '%'".into()),
                scope => Ok(Self::Ipv6 { address, scope: scope.map(str::to_owned) }),
            };
        }
        if scope.is_some() {
            return Err("only an IPv6 address has a scope, such as fe80::1%eth0".into());
        }
        if inside.is_some() {
            return Err("only an IPv6 address is in brackets".into());
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Ipv4(address));
        }
        let is_invalid = |letter: char| letter.is_whitespace() || ":[]/@?#".contains(letter);
        match text.is_empty() || text.contains(is_invalid) {
            true => Err("neither a name nor an address".into()),
            false => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl Host {
    /// Its addresses in the order in which to try them (RFC 6724), each once, and at least one.
    ///
    /// # Errors
    /// The name has no address, or none of that family; or no interface has the name of the scope.
    pub fn resolve(&self, port: u16, family: Family) -> io::Result<Vec<SocketAddr>> {
        let all = match self {
            Self::Name(name) => resolve_name(name, port)?,
            Self::Ipv4(address) => vec![(*address, port).into()],
            Self::Ipv6 { address, scope } => {
                let scope = scope.as_deref().map_or(Ok(0), interface_index)?;
                vec![SocketAddrV6::new(*address, port, 0, scope).into()]
            }
        };
        let mut matching = Vec::with_capacity(all.len());
        for address in all {
            if family.includes_address(address.ip()) && !matching.contains(&address) {
                matching.push(address);
            }
        }
        match matching.is_empty() {
            true => {
                let none = format!("it has no {family} address");
                Err(io::Error::new(io::ErrorKind::AddrNotAvailable, none))
            }
            false => Ok(matching),
        }
    }
}

fn resolve_name(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match (name, port).to_socket_addrs() {
        Ok(all) => Ok(all.collect()),
        // Also where no file and no server knows it (RFC 6761).
        Err(_) if name.eq_ignore_ascii_case("localhost") => {
            Ok(vec![(Ipv6Addr::LOCALHOST, port).into(), (Ipv4Addr::LOCALHOST, port).into()])
        }
        Err(error) => Err(error),
    }
}

/// By name first, as an interface's name may be a number.
fn interface_index(scope: &str) -> io::Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .or_else(|_| socket(AddressFamily::INET6, SocketType::DGRAM, None))?;
    netdevice::name_to_index(&any, scope).or_else(|_| {
        parse_digits(scope).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("this network namespace has no interface '{scope}'"),
            )
        })
    })
}

impl fmt::Display for Host {
    /// As before a port: an IPv6 address in brackets.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ipv4(address) => write!(f, "{address}"),
            Self::Ipv6 { address, scope: None } => write!(f, "[{address}]"),
            Self::Ipv6 { address, scope: Some(scope) } => write!(f, "[{address}%{scope}]"),
        }
    }
}

/// Splits `HOST` or `HOST:PORT`; an IPv6 address has to be in brackets.
///
/// # Errors
/// It is not.
pub fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    match host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        true => Err("an IPv6 address needs brackets: [::1]".into()),
        false => Ok((host, port)),
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = split_port(text)?;
        let port = port.ok_or("a port is missing: HOST:PORT")?;
        Ok(Self {
            port: parse_digits(port).ok_or("a port is a number up to 65535")?,
            host: (!host.is_empty()).then(|| host.parse()).transpose()?,
        })
    }
}

impl HostPort {
    /// The addresses to listen at: all of the host's; without a host one that stands for all addresses of
    /// both families.
    ///
    /// # Errors
    /// See [`Host::resolve`].
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        match &self.host {
            Some(host) => host.resolve(self.port, Family::Any),
            None => Ok(vec![wildcard_address(self.port)]),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.host.iter().try_for_each(|host| write!(f, "{host}"))?;
        write!(f, ":{}", self.port)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Any,
    Ipv4,
    Ipv6,
}

impl Family {
    fn includes_address(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Ipv4 => address.is_ipv4(),
            Self::Ipv6 => address.is_ipv6(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "IP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// The addresses of a host that may connect or send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    host: Host,
    addresses: Vec<SocketAddr>,
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let host: Host = text.parse()?;
        let addresses = host.resolve(0, Family::Any).map_err(|error| error.to_string())?;
        Ok(Self { host, addresses })
    }
}

impl AllowedHost {
    /// Whether it is one of the host's addresses, at any port; an address without a scope is allowed on every
    /// interface.
    pub fn has(&self, peer: SocketAddr) -> bool {
        let scope = |address: SocketAddr| match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        self.addresses.iter().any(|allowed| {
            // A socket for both families reports IPv4 addresses as IPv6 ones.
            allowed.ip().to_canonical() == peer.ip().to_canonical()
                && (scope(*allowed) == 0 || scope(*allowed) == scope(peer))
        })
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.host {
            Host::Ipv6 { .. } => f.write_str(self.host.to_string().trim_matches(['[', ']'])),
            host => write!(f, "{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_host(text: &str) -> Host {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        assert_eq!(parse_host("example.org"), Host::Name("example.org".into()));
        assert_eq!(parse_host("10.0.0.1"), Host::Ipv4([10, 0, 0, 1].into()));
        let ipv6 = |address: &str, scope: Option<&str>| Host::Ipv6 {
            address: address.parse().unwrap(),
            scope: scope.map(str::to_owned),
        };
        for (text, parsed, shown) in [
            ("::1", ipv6("::1", None), "[::1]"),
            ("[::1]", ipv6("::1", None), "[::1]"),
            ("fe80::1%eth0", ipv6("fe80::1", Some("eth0")), "[fe80::1%eth0]"),
            ("[fe80::1%3]", ipv6("fe80::1", Some("3")), "[fe80::1%3]"),
        ] {
            assert_eq!(parse_host(text), parsed, "{text}");
            assert_eq!(parsed.to_string(), shown);
        }
        for wrong in ["", "a b", "a:b", "[a]", "a@b", "a/b", "fe80::1%", "10.0.0.1%eth0", "name%eth0", "[::1"]
        {
            assert!(wrong.parse::<Host>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_follows_the_host() {
        let read = |text: &str| text.parse::<HostPort>().map(|read| (read.host, read.port));
        assert_eq!(read(":0"), Ok((None, 0)));
        assert_eq!(read("[::1]:7"), Ok((Some(parse_host("::1")), 7)));
        assert_eq!(read("localhost:7"), Ok((Some(parse_host("localhost")), 7)));
        for wrong in ["", "a", "a:", "a:+9", "a:65536", "::1:9", "[a]:9", "a:9/x", "a@b:9", "9000"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for text in ["localhost:9", "[fe80::1%eth0]:9", ":9"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn scopes_in_urls_may_be_encoded() {
        for (url, decoded) in [
            ("[fe80::1%25eth0]:9", "[fe80::1%eth0]:9"),
            ("[fe80::1%eth0]:9", "[fe80::1%eth0]:9"),
            ("[fe80::1%252]:9", "[fe80::1%2]:9"),
            ("[fe80::1%25]:9", "[fe80::1%25]:9"),
            ("[fe80::1%2525]", "[fe80::1%25]"),
            ("server:9", "server:9"),
        ] {
            assert_eq!(host_port_of_url(url), decoded);
        }
    }

    #[test]
    fn scopes_are_names_or_numbers_of_interfaces() {
        let scope = |text| match parse_host(text).resolve(9, Family::Any).unwrap()[..] {
            [SocketAddr::V6(address)] => address.scope_id(),
            _ => unreachable!("one IPv6 address"),
        };
        assert_eq!(
            (scope("fe80::1%lo"), scope("fe80::1%1"), scope("fe80::1%4000"), scope("fe80::1")),
            (1, 1, 4000, 0)
        );
        let unknown = parse_host("fe80::1%no-such").resolve(9, Family::Any).unwrap_err();
        assert_eq!(unknown.to_string(), "this network namespace has no interface 'no-such'");
        parse_host("fe80::1%+1").resolve(9, Family::Any).unwrap_err();
    }

    #[test]
    fn hosts_are_resolved_in_the_requested_family() {
        let local = parse_host("127.0.0.1");
        assert_eq!(local.resolve(7, Family::Ipv4).unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        assert!(local.resolve(7, Family::Ipv6).unwrap_err().to_string().contains("no IPv6 address"));
        let all = parse_host("localhost").resolve(7, Family::Any).unwrap();
        assert!(!all.is_empty() && all.iter().all(|address| address.ip().is_loopback()), "{all:?}");
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "each once");
    }

    #[test]
    fn allowed_hosts_match_address_and_scope() {
        let allowed = |text: &str| text.parse::<AllowedHost>().unwrap();
        let peer = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(
            allowed("10.0.0.1").has(peer("[::ffff:10.0.0.1]:9"))
                && !allowed("10.0.0.1").has(peer("10.0.0.2:9"))
        );
        assert!(allowed("localhost").has(peer("127.0.0.1:9")));
        let linked = |scope| SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, scope).into();
        assert!(allowed("fe80::1%1").has(linked(1)) && !allowed("fe80::1%1").has(linked(2)));
        assert!(allowed("fe80::1").has(linked(2)));
    }
}
