//! Where datagrams and streams go and come from: `udp://HOST:PORT`, `tcp://HOST:PORT`.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// What is spoken there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Udp,
    Tcp,
}

impl Scheme {
    fn prefix(self) -> &'static str {
        match self {
            Self::Udp => "udp://",
            Self::Tcp => "tcp://",
        }
    }
}

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    scheme: Scheme,
    /// Without the brackets of an IPv6 address; empty where none was given.
    host: String,
    port: u16,
}

impl Endpoint {
    /// From `udp://HOST:PORT` or `tcp://HOST:PORT`; nothing if the text does not begin like that.
    fn read(text: &str) -> Option<Result<Self, String>> {
        let (scheme, place) = [Scheme::Udp, Scheme::Tcp]
            .into_iter()
            .find_map(|scheme| Some((scheme, text.strip_prefix(scheme.prefix())?)))?;
        let prefix = scheme.prefix();
        let parsed = place.rsplit_once(':').and_then(|(host, port)| {
            let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let is_host = match inside {
                Some(inside) => inside.contains(':'),
                None => !host.contains([':', '[', ']', '/', '@', '?', '#']),
            };
            let port = port.bytes().all(|digit| digit.is_ascii_digit()).then(|| port.parse().ok())??;
            is_host.then(|| Self { scheme, host: inside.unwrap_or(host).into(), port })
        });
        Some(
            parsed
                .ok_or_else(|| format!("write {prefix}HOST:PORT, an IPv6 address as in {prefix}[::1]:9000")),
        )
    }

    /// For receiving: the host, which is this one, may be left out, and port 0 is any that is free.
    pub(crate) fn parse_own(text: &str) -> Result<Self, String> {
        Self::read(text)
            .unwrap_or_else(|| Err("write udp://ADDRESS:PORT, tcp://ADDRESS:PORT, or udp://:PORT".into()))
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host as it was given, if it was.
    pub(crate) fn host(&self) -> Option<&str> {
        (!self.host.is_empty()).then_some(&*self.host)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The first address that fits.
    pub(crate) fn resolve(&self, family: Family) -> io::Result<SocketAddr> {
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

/// What packets are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Interface(String),
    Udp(Endpoint),
    Tcp(Endpoint),
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match Endpoint::read(text) {
            None if text.contains("://") => Err("only udp:// and tcp:// are known".into()),
            None => Ok(Self::Interface(text.into())),
            Some(Ok(endpoint)) if endpoint.host.is_empty() || endpoint.port == 0 => {
                Err("a host and a port from 1 on are needed: write udp://HOST:PORT or tcp://HOST:PORT".into())
            }
            Some(parsed) => parsed.map(|endpoint| match endpoint.scheme {
                Scheme::Udp => Self::Udp(endpoint),
                Scheme::Tcp => Self::Tcp(endpoint),
            }),
        }
    }
}

/// Which addresses a name may stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
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
    fn targets_are_interfaces_or_hosts_with_a_port() {
        let udp = |text| match Target::parse(text) {
            Ok(Target::Udp(Endpoint { host, port, .. })) => (host, port),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(Target::parse("eth0"), Ok(Target::Interface("eth0".into())));
        assert_eq!(udp("udp://example.org:9000"), ("example.org".into(), 9000));
        assert!(matches!(Target::parse("tcp://a:9"), Ok(Target::Tcp(_))));
        assert_eq!(udp("udp://[fe80::1%eth0]:1"), ("fe80::1%eth0".into(), 1));
        for wrong in [
            "udp://",
            "udp://a",
            "udp://:9",
            "udp://a:0",
            "udp://a:65536",
            "udp://a:+9",
            "udp://::1:9",
            "udp://[a]:9",
            "udp://a:9/x",
            "sctp://a:9",
            "tcp://a",
            "tcp://:9",
            "udp://a:",
            "udp://a@b:9",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_receiver_need_not_name_itself() {
        let own = |text| Endpoint::parse_own(text).map(|own| (own.host().map(str::to_owned), own.port()));
        assert_eq!(own("udp://:0"), Ok((None, 0)));
        assert_eq!(own("udp://[::1]:7"), Ok((Some("::1".into()), 7)));
        assert!(own("eth0").is_err() && own("9000").is_err());
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
