//! Generic netlink: one request at a time to one of the kernel's families.

use std::io;

use netlink_packet_core::{NLA_F_NESTED, NLM_F_REQUEST, NlasIterator};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::route::{self, RawMessage, dump, exchange};

/// The family that lists the others (`linux/genetlink.h`).
const CONTROL_FAMILY: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A netlink family, queried in the network namespace of the thread that looked it up.
pub(crate) struct Family {
    socket: Socket,
    id: u16,
}

impl Family {
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        let socket = route::socket_of(NETLINK_GENERIC)?;
        let mut control = Self { socket, id: CONTROL_FAMILY };
        let answer = control.request(CTRL_CMD_GETFAMILY, &[text(CTRL_ATTR_FAMILY_NAME, name)])?;
        control.id =
            answer.number(CTRL_ATTR_FAMILY_ID).and_then(|id| u16::try_from(id).ok()).ok_or_else(invalid)?;
        Ok(control)
    }

    pub(crate) fn request(&self, command: u8, attributes: &[Attribute]) -> io::Result<Reply> {
        let request = RawMessage { kind: self.id, bytes: message(command, attributes) };
        exchange(&self.socket, request, NLM_F_REQUEST)?.map(Reply).ok_or_else(invalid)
    }

    /// Sends a command, and returns all its answers.
    pub(crate) fn dump(&self, command: u8, attributes: &[Attribute]) -> io::Result<Vec<Reply>> {
        let request = RawMessage { kind: self.id, bytes: message(command, attributes) };
        Ok(dump(&self.socket, request)?.into_iter().map(Reply).collect())
    }
}

/// A command (`struct genlmsghdr`: its number, a version, and two bytes of nothing) with attributes.
fn message(command: u8, attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = vec![command, 1, 0, 0];
    attributes.iter().for_each(|attribute| attribute.emit(&mut bytes));
    bytes
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// An attribute of a request: its kind, and its value.
pub(crate) struct Attribute(u16, Vec<u8>);

impl Attribute {
    fn emit(&self, bytes: &mut Vec<u8>) {
        let length = u16::try_from(4 + self.1.len()).expect("short values");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.0.to_ne_bytes());
        bytes.extend(&self.1);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

pub(crate) fn number(kind: u16, value: u32) -> Attribute {
    Attribute(kind, value.to_ne_bytes().to_vec())
}

#[cfg(test)]
pub(crate) fn wide(kind: u16, value: u64) -> Attribute {
    Attribute(kind, value.to_ne_bytes().to_vec())
}

pub(crate) fn text(kind: u16, value: &str) -> Attribute {
    Attribute(kind, value.bytes().chain([0]).collect())
}

pub(crate) fn nested(kind: u16, inner: &[Attribute]) -> Attribute {
    let mut bytes = Vec::new();
    inner.iter().for_each(|attribute| attribute.emit(&mut bytes));
    Attribute(kind | NLA_F_NESTED, bytes)
}

pub(crate) struct Reply(RawMessage);

impl Reply {
    /// An answer made of attributes, for tests.
    #[cfg(test)]
    pub(crate) fn of(attributes: &[Attribute]) -> Self {
        Self(RawMessage { kind: 0, bytes: message(0, attributes) })
    }

    /// The value of an attribute that holds a number of 8 to 64 bits; `None` where the kernel does not say
    /// it.
    pub(crate) fn number(&self, kind: u16) -> Option<u64> {
        let attributes = NlasIterator::new(self.0.bytes.get(4..)?);
        let found = attributes.flatten().find(|attribute| attribute.kind() == kind)?;
        let value = found.value();
        Some(match value.len() {
            1 => value[0].into(),
            2 => u16::from_ne_bytes(value.try_into().ok()?).into(),
            4 => u32::from_ne_bytes(value.try_into().ok()?).into(),
            _ => u64::from_ne_bytes(value.try_into().ok()?),
        })
    }
}
