//! Addresses of datagrams, streams and messages: `udp://HOST:PORT`, `tcp://HOST:PORT`, `message://HOST:PORT`, `xdp://HOST:PORT`.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

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
    fn prefix(self) -> &'static str {
        match self {
            Self::Udp => "udp://",
            Self::Tcp => "tcp://",
            Self::Message => "message://",
            Self::Xdp => "xdp://",
        }
    }

    pub fn name(self) -> &'static str {
        self.prefix().trim_end_matches("://")
    }
}

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    scheme: Scheme,
    /// Without the brackets of an IPv6 address; empty where none was given.
    host: String,
    port: u16,
}

impl Endpoint {
    /// Parses `SCHEME://HOST:PORT`; `None` if the text does not begin with one of the schemes.
    fn read(text: &str, known: &[Scheme]) -> Option<Result<Self, String>> {
        let (scheme, place) =
            known.iter().find_map(|scheme| Some((*scheme, text.strip_prefix(scheme.prefix())?)))?;
        Some(Self::place(scheme, place, scheme.prefix()))
    }

    fn place(scheme: Scheme, place: &str, prefix: &str) -> Result<Self, String> {
        let parsed = place.rsplit_once(':').and_then(|(host, port)| {
            let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let is_host = match inside {
                Some(inside) => inside.contains(':'),
                None => !host.contains([':', '[', ']', '/', '@', '?', '#']),
            };
            let port = port.bytes().all(|digit| digit.is_ascii_digit()).then(|| port.parse().ok())??;
            is_host.then(|| Self { scheme, host: inside.unwrap_or(host).into(), port })
        });
        parsed.ok_or_else(|| format!("write {prefix}HOST:PORT, an IPv6 address as in {prefix}[::1]:9000"))
    }

    /// Parses `HOST:PORT` for receiving: the host, an address of this machine, may be missing, and port 0 chooses a free port.
    pub fn parse(scheme: Scheme, text: &str) -> Result<Self, String> {
        Self::place(scheme, text, "")
    }

    /// Parses `HOST:PORT` for sending.
    pub fn parse_peer(scheme: Scheme, text: &str) -> Result<Self, String> {
        Self::parse(scheme, text)?.into_peer()
    }

    /// Parses `SCHEME://HOST:PORT` for sending by one of these schemes.
    fn read_peer(text: &str, known: &[Scheme], said: &str) -> Result<Self, String> {
        Self::read(text, known).unwrap_or_else(|| Err(format!("write {said}")))?.into_peer()
    }

    /// Checks that it names a host and a port.
    fn into_peer(self) -> Result<Self, String> {
        match self.host.is_empty() || self.port == 0 {
            true => Err("a host and a port from 1 on are needed".into()),
            false => Ok(self),
        }
    }

    pub fn parse_round(text: &str) -> Result<Self, String> {
        let said = "message://HOST:PORT, udp://HOST:PORT, tcp://HOST:PORT or xdp://HOST:PORT";
        Self::read_peer(text, ROUNDS, said)
    }

    pub fn parse_call(text: &str) -> Result<Self, String> {
        Self::read_peer(text, &[Scheme::Message], "message://HOST:PORT")
    }

    /// Parses an address of `serve`; without a scheme, messages and TCP use the port, and UDP the next port, because messages use UDP as well.
    pub fn parse_services(text: &str) -> Result<Vec<Self>, String> {
        if let Some(one) = Self::read(text, ROUNDS) {
            return one.map(|one| vec![one]);
        }
        if text.contains("://") {
            return Err("only message://, udp://, tcp:// and xdp:// are known".into());
        }
        let message = Self::place(Scheme::Message, text, "")?;
        let next = message.port.checked_add(1).filter(|_| message.port > 0);
        let next = next.ok_or(
            "UDP is at the next port number: write a port from 1 to 65534, or message://ADDRESS:PORT",
        )?;
        let tcp = Self { scheme: Scheme::Tcp, ..message.clone() };
        let udp = Self { scheme: Scheme::Udp, port: next, ..message.clone() };
        Ok(vec![message, tcp, udp])
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host as given, if any.
    pub fn host(&self) -> Option<&str> {
        (!self.host.is_empty()).then_some(&*self.host)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The first address that fits.
    pub fn resolve(&self, family: Family) -> io::Result<SocketAddr> {
        let all = (&*self.host, self.port).to_socket_addrs()?;
        all.into_iter().find(|address| family.has(address.ip())).ok_or_else(|| {
            io::Error::new(io::ErrorKind::AddrNotAvailable, format!("it has no {family} address"))
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let prefix = self.scheme.prefix();
        match self.host.contains(':') {
            true => write!(f, "{prefix}[{}]:{}", self.host, self.port),
            false => write!(f, "{prefix}{}:{}", self.host, self.port),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Any,
    Ipv4,
    Ipv6,
}

impl Family {
    fn has(self, address: IpAddr) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_or_address_and_a_port() {
        let udp =
            |text| Endpoint::parse_peer(Scheme::Udp, text).map(|Endpoint { host, port, .. }| (host, port));
        assert_eq!(udp("example.org:9000"), Ok(("example.org".into(), 9000)));
        assert_eq!(udp("[fe80::1%eth0]:1"), Ok(("fe80::1%eth0".into(), 1)));
        for wrong in
            ["", "a", ":9", "a:0", "a:65536", "a:+9", "::1:9", "[a]:9", "a:9/x", "udp://a:9", "a:", "a@b:9"]
        {
            assert!(udp(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_receiver_need_not_name_itself() {
        let own =
            |text| Endpoint::parse(Scheme::Tcp, text).map(|own| (own.host().map(str::to_owned), own.port()));
        assert_eq!(own(":0"), Ok((None, 0)));
        assert_eq!(own("[::1]:7"), Ok((Some("::1".into()), 7)));
        assert!(own("eth0").is_err() && own("9000").is_err());
    }

    #[test]
    fn who_answers_is_asked_by_its_scheme() {
        let ask = |text| Endpoint::parse_round(text).map(|peer| (peer.scheme(), peer.port()));
        assert_eq!(ask("message://a:7"), Ok((Scheme::Message, 7)));
        assert_eq!(ask("xdp://[::1]:9"), Ok((Scheme::Xdp, 9)));
        for wrong in ["a:7", "message://:7", "udp://a:0", "sctp://a:1", "eth0"] {
            assert!(ask(wrong).is_err(), "{wrong}");
        }
        assert!(Endpoint::parse_call("message://a:7").is_ok() && Endpoint::parse_call("udp://a:7").is_err());
    }

    #[test]
    fn a_bare_address_serves_all_there_is() {
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
    fn a_host_is_resolved_in_the_family_asked_for() {
        let local = Endpoint { scheme: Scheme::Udp, host: "127.0.0.1".into(), port: 7 };
        assert_eq!(local.resolve(Family::Ipv4).unwrap(), "127.0.0.1:7".parse().unwrap());
        assert!(local.resolve(Family::Ipv6).unwrap_err().to_string().contains("no IPv6 address"));
        assert_eq!(local.to_string(), "udp://127.0.0.1:7");
        assert_eq!(
            Endpoint { scheme: Scheme::Tcp, host: "::1".into(), port: 7 }.to_string(),
            "tcp://[::1]:7"
        );
    }
}
