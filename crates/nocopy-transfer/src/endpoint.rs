//! Addresses of datagrams, streams and messages: `udp://HOST:PORT`, `tcp://HOST:PORT`, `message://HOST:PORT`,
//! `xdp://HOST:PORT`.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use nocopy_report::address::{self, Family, HostPort};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Udp,
    Tcp,
    /// The message protocol, within UDP.
    Message,
    /// UDP, over a port at this end.
    Xdp,
}

/// The schemes of `ping` and `serve`.
const ROUNDS: &[Scheme] = &[Scheme::Message, Scheme::Udp, Scheme::Tcp, Scheme::Xdp];

impl Scheme {
    fn url_prefix(self) -> &'static str {
        match self {
            Self::Udp => "udp://",
            Self::Tcp => "tcp://",
            Self::Message => "message://",
            Self::Xdp => "xdp://",
        }
    }

    pub fn name(self) -> &'static str {
        self.url_prefix().trim_end_matches("://")
    }
}

/// A host and a port, and how to talk to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    at: HostPort,
}

impl Endpoint {
    /// Parses `SCHEME://HOST:PORT`; `None` if the text does not begin with one of the schemes.
    fn parse_url(text: &str, known: &[Scheme]) -> Option<Result<Self, String>> {
        let (scheme, authority) =
            known.iter().find_map(|scheme| Some((*scheme, text.strip_prefix(scheme.url_prefix())?)))?;
        Some(Self::parse_authority(scheme, &address::host_port_of_url(authority), scheme.url_prefix()))
    }

    fn parse_authority(scheme: Scheme, text: &str, prefix: &str) -> Result<Self, String> {
        let at = text.parse().map_err(|why| {
            format!("{why}; write {prefix}HOST:PORT, an IPv6 address as in {prefix}[::1]:9000")
        })?;
        Ok(Self { scheme, at })
    }

    /// Parses `HOST:PORT` for receiving: the host, an address of this machine, may be missing, and port 0
    /// chooses a free port.
    pub fn parse_local(scheme: Scheme, text: &str) -> Result<Self, String> {
        Self::parse_authority(scheme, text, "")
    }

    /// Parses `HOST:PORT` for sending.
    pub fn parse_peer(scheme: Scheme, text: &str) -> Result<Self, String> {
        Self::parse_local(scheme, text)?.require_host_and_port()
    }

    /// Parses `SCHEME://HOST:PORT` for sending by one of these schemes.
    fn parse_peer_url(text: &str, known: &[Scheme], said: &str) -> Result<Self, String> {
        Self::parse_url(text, known).unwrap_or_else(|| Err(format!("write {said}")))?.require_host_and_port()
    }

    /// Checks that it names a host and a port.
    fn require_host_and_port(self) -> Result<Self, String> {
        match self.at.host.is_none() || self.at.port == 0 {
            true => Err("a host and a port from 1 on are needed".into()),
            false => Ok(self),
        }
    }

    pub fn parse_ping_target(text: &str) -> Result<Self, String> {
        let said = "message://HOST:PORT, udp://HOST:PORT, tcp://HOST:PORT or xdp://HOST:PORT";
        Self::parse_peer_url(text, ROUNDS, said)
    }

    pub fn parse_call_target(text: &str) -> Result<Self, String> {
        Self::parse_peer_url(text, &[Scheme::Message], "message://HOST:PORT")
    }

    /// Parses an address of `serve`; without a scheme, messages and TCP use the port, and UDP the next port,
    /// because messages use UDP as well.
    pub fn parse_services(text: &str) -> Result<Vec<Self>, String> {
        if let Some(one) = Self::parse_url(text, ROUNDS) {
            return one.map(|one| vec![one]);
        }
        if text.contains("://") {
            return Err("only message://, udp://, tcp:// and xdp:// are known".into());
        }
        let message = Self::parse_authority(Scheme::Message, text, "")?;
        let next = message.port().checked_add(1).filter(|_| message.port() > 0);
        let next = next.ok_or(
            "UDP is at the next port number: write a port from 1 to 65534, or message://ADDRESS:PORT",
        )?;
        let tcp = Self { scheme: Scheme::Tcp, ..message.clone() };
        let udp = Self { scheme: Scheme::Udp, at: HostPort { port: next, ..message.at.clone() } };
        Ok(vec![message, tcp, udp])
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Whether a host is given, rather than all addresses of this one.
    pub fn has_host(&self) -> bool {
        self.at.host.is_some()
    }

    pub fn port(&self) -> u16 {
        self.at.port
    }

    /// The addresses of a peer, at least one, in the order in which to try them.
    ///
    /// # Errors
    /// The host has no address of that family.
    pub fn resolve(&self, family: Family) -> io::Result<Vec<SocketAddr>> {
        let host = self.at.host.as_ref().ok_or(io::ErrorKind::AddrNotAvailable)?;
        host.resolve(self.at.port, family)
    }

    /// The addresses of this machine to receive at.
    ///
    /// # Errors
    /// The host has no address.
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.at.local_addrs()
    }

    /// How errors name the peer: its only address, or the host as it was given.
    pub fn peer_name(&self, addresses: &[SocketAddr]) -> String {
        match addresses {
            [address] => address.to_string(),
            _ => self.at.to_string(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{}", self.scheme.url_prefix(), self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_a_host_and_a_port() {
        let peer = |text| Endpoint::parse_peer(Scheme::Udp, text).map(|peer| peer.to_string());
        assert_eq!(peer("example.org:9000"), Ok("udp://example.org:9000".into()));
        assert_eq!(peer("[fe80::1%eth0]:1"), Ok("udp://[fe80::1%eth0]:1".into()));
        for wrong in [":9", "a:0", "a", "udp://a:9", "::1:9"] {
            assert!(peer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_host_of_a_receiver_is_optional() {
        let own = |text| Endpoint::parse_local(Scheme::Tcp, text).map(|own| (own.has_host(), own.port()));
        assert_eq!((own(":0"), own("[::1]:7")), (Ok((false, 0)), Ok((true, 7))));
        assert!(own("eth0").is_err() && own("9000").is_err());
    }

    #[test]
    fn scopes_of_urls_are_decoded() {
        let peer = Endpoint::parse_ping_target("udp://[fe80::1%25eth0]:9").unwrap();
        assert_eq!(peer.to_string(), "udp://[fe80::1%eth0]:9");
    }

    #[test]
    fn the_scheme_selects_the_protocol_of_the_peer() {
        let ask = |text| Endpoint::parse_ping_target(text).map(|peer| (peer.scheme(), peer.port()));
        assert_eq!(ask("message://a:7"), Ok((Scheme::Message, 7)));
        assert_eq!(ask("xdp://[::1]:9"), Ok((Scheme::Xdp, 9)));
        for wrong in ["a:7", "message://:7", "udp://a:0", "sctp://a:1", "eth0"] {
            assert!(ask(wrong).is_err(), "{wrong}");
        }
        assert!(
            Endpoint::parse_call_target("message://a:7").is_ok()
                && Endpoint::parse_call_target("udp://a:7").is_err()
        );
    }

    #[test]
    fn a_bare_address_serves_every_protocol() {
        let services = |text| {
            let all = Endpoint::parse_services(text);
            all.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(services(":7").unwrap(), ["message://:7", "tcp://:7", "udp://:8"]);
        assert_eq!(services("[::1]:7").unwrap(), ["message://[::1]:7", "tcp://[::1]:7", "udp://[::1]:8"]);
        assert_eq!(services("xdp://10.0.0.1:7").unwrap(), ["xdp://10.0.0.1:7"]);
        for wrong in ["a", ":65535", ":0", "sctp://a:1", "7"] {
            assert!(services(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_only_address_or_the_host() {
        let peer = Endpoint::parse_peer(Scheme::Udp, "localhost:9").unwrap();
        let all: Vec<SocketAddr> = vec!["[::1]:9".parse().unwrap(), "127.0.0.1:9".parse().unwrap()];
        assert_eq!(
            (peer.peer_name(&all), peer.peer_name(&all[..1])),
            ("localhost:9".into(), "[::1]:9".into())
        );
    }
}
