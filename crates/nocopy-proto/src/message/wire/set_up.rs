//! Datagrams that make a connection (docs/protocol.md §3): Hello, Cookie, Refused, Connect, Accept.
//!
//! Bytes after the fields of Hello, Connect and Accept are padding: zeros when sent, ignored when read.

use super::parameters::{PARAMETERS_BYTES, Parameters};
use super::{ACCEPT, CONNECT, COOKIE, HELLO, Malformed, REFUSED, begin, exactly, finish, front};
use crate::message::crc::CRC_BYTES;
use crate::wire::field::Field;

/// The version of the protocol that is written and read here.
pub const VERSION: u8 = 1;

/// Bytes that a Hello has at least: four times those of the longest answer to it.
pub const HELLO_BYTES_MIN: usize = 128;

/// Bytes of a cookie.
pub const COOKIE_BYTES: usize = 16;

const HELLO_BODY: usize = 12;
const COOKIE_BODY: usize = 28;
const CONNECT_BODY: usize = 60;
const ACCEPT_BODY: usize = 52;

const _: () = assert!((COOKIE_BODY + CRC_BYTES) * 4 <= HELLO_BYTES_MIN);

type Version = Field<2, 1>;
type VersionLast = Field<3, 1>;
type ClientId = Field<4, 8>;
type CookieBytes = Field<12, COOKIE_BYTES>;
type ServerId = Field<12, 8>;
type ConnectParameters = Field<28, PARAMETERS_BYTES>;
type AcceptParameters = Field<20, PARAMETERS_BYTES>;

/// The versions from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The oldest.
    pub first: u8,
    /// The newest, not below `first`.
    pub last: u8,
}

impl Versions {
    /// The versions that this implementation speaks.
    pub const HERE: Self = Self { first: VERSION, last: VERSION };

    /// The newest version that both speak.
    pub fn newest_common(self, other: Self) -> Option<u8> {
        let newest = self.last.min(other.last);
        (newest >= self.first.max(other.first)).then_some(newest)
    }

    fn parse<const BODY: usize>(kind: u8, body: &[u8; BODY]) -> Result<Self, Malformed> {
        let ([first], [last]) = (Version::get(body), VersionLast::get(body));
        if first > last {
            return Err(Malformed::Versions { kind, first, last });
        }
        Ok(Self { first, last })
    }

    fn put<const BODY: usize>(self, body: &mut [u8; BODY]) {
        Version::put(body, [self.first]);
        VersionLast::put(body, [self.last]);
    }
}

/// Refuses other versions of Cookie, Connect and Accept than the one that is implemented; the byte after it
/// is reserved.
fn only_version_here<const BODY: usize>(kind: u8, body: &[u8; BODY]) -> Result<(), Malformed> {
    match (Version::get(body), VersionLast::get(body)) {
        ([VERSION], [0]) => Ok(()),
        ([VERSION], _) => Err(Malformed::Reserved { kind }),
        ([version], _) => Err(Malformed::Version { kind, version }),
    }
}

/// The first datagram of a connection, from the client. It has this form in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// What the client speaks.
    pub versions: Versions,
    /// The client's connection id.
    pub client_id: u64,
}

impl Hello {
    pub(super) fn parse(body: &[u8], datagram_bytes: usize) -> Result<Self, Malformed> {
        if datagram_bytes < HELLO_BYTES_MIN {
            return Err(Malformed::TooShort { datagram_bytes, needed_bytes: HELLO_BYTES_MIN });
        }
        let body = front::<HELLO_BODY>(body)?;
        Ok(Self { versions: Versions::parse(HELLO, body)?, client_id: ClientId::number(body) })
    }

    /// Writes the whole datagram, [`HELLO_BYTES_MIN`] long, in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<HELLO_BODY>(HELLO);
        self.versions.put(&mut body);
        ClientId::put_number(&mut body, self.client_id);
        finish(&body, HELLO_BYTES_MIN, datagram);
    }
}

/// The server's answer to a Hello whose version it speaks: the client must send it back. The server keeps
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie {
    /// The client's connection id.
    pub client_id: u64,
    /// The proof that the client receives at its address.
    pub cookie: [u8; COOKIE_BYTES],
}

impl Cookie {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = exactly::<COOKIE_BODY>(body)?;
        only_version_here(COOKIE, body)?;
        Ok(Self { client_id: ClientId::number(body), cookie: CookieBytes::get(body) })
    }

    /// Writes the whole datagram in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<COOKIE_BODY>(COOKIE);
        Version::put(&mut body, [VERSION]);
        ClientId::put_number(&mut body, self.client_id);
        CookieBytes::put(&mut body, self.cookie);
        finish(&body, 0, datagram);
    }
}

/// The server's answer to a Hello of versions that it does not speak. It has this form in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// What the server speaks.
    pub versions: Versions,
    /// The client's connection id.
    pub client_id: u64,
}

impl Refused {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let body = exactly::<HELLO_BODY>(body)?;
        Ok(Self { versions: Versions::parse(REFUSED, body)?, client_id: ClientId::number(body) })
    }

    /// Writes the whole datagram in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<HELLO_BODY>(REFUSED);
        self.versions.put(&mut body);
        ClientId::put_number(&mut body, self.client_id);
        finish(&body, 0, datagram);
    }
}

/// The client shows its cookie. As long as the longest datagram that it will send, which proves the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connect {
    /// The client's connection id.
    pub client_id: u64,
    /// From the Cookie.
    pub cookie: [u8; COOKIE_BYTES],
    /// What the client announces about itself.
    pub parameters: Parameters,
}

impl Connect {
    pub(super) fn parse(body: &[u8], datagram_bytes: usize) -> Result<Self, Malformed> {
        let body = front::<CONNECT_BODY>(body)?;
        only_version_here(CONNECT, body)?;
        let parameters = Parameters::parse(&ConnectParameters::get(body), CONNECT, datagram_bytes)?;
        Ok(Self { client_id: ClientId::number(body), cookie: CookieBytes::get(body), parameters })
    }

    /// Writes the whole datagram, `parameters.datagram_bytes` long, in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<CONNECT_BODY>(CONNECT);
        Version::put(&mut body, [VERSION]);
        ClientId::put_number(&mut body, self.client_id);
        CookieBytes::put(&mut body, self.cookie);
        ConnectParameters::put(&mut body, self.parameters.bytes());
        finish(&body, usize::from(self.parameters.datagram_bytes), datagram);
    }
}

/// The server has made the connection. As long as the longest datagram that either end will send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accept {
    /// The client's connection id.
    pub client_id: u64,
    /// The server's connection id.
    pub server_id: u64,
    /// What the server announces about itself; its `datagram_bytes` are not above those of the Connect.
    pub parameters: Parameters,
}

impl Accept {
    pub(super) fn parse(body: &[u8], datagram_bytes: usize) -> Result<Self, Malformed> {
        let body = front::<ACCEPT_BODY>(body)?;
        only_version_here(ACCEPT, body)?;
        let parameters = Parameters::parse(&AcceptParameters::get(body), ACCEPT, datagram_bytes)?;
        Ok(Self { client_id: ClientId::number(body), server_id: ServerId::number(body), parameters })
    }

    /// Writes the whole datagram, `parameters.datagram_bytes` long, in place of what `datagram` holds.
    pub fn emit(&self, datagram: &mut Vec<u8>) {
        let mut body = begin::<ACCEPT_BODY>(ACCEPT);
        Version::put(&mut body, [VERSION]);
        ClientId::put_number(&mut body, self.client_id);
        ServerId::put_number(&mut body, self.server_id);
        AcceptParameters::put(&mut body, self.parameters.bytes());
        finish(&body, usize::from(self.parameters.datagram_bytes), datagram);
    }
}
