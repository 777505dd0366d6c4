//! Generic netlink: one request at a time to one of the kernel's families.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink;

use super::netlink::{NetlinkMessage, attributes_in, netlink_socket, push_attribute, request_reply};

/// The family that lists the others (`linux/genetlink.h`).
const CONTROL_FAMILY: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A netlink family, queried in the network namespace of the thread that looked it up.
pub(crate) struct GenericFamily {
    socket: OwnedFd,
    id: u16,
}

impl GenericFamily {
    pub(crate) fn look_up(name: &str) -> io::Result<Self> {
        let socket = netlink_socket(Some(netlink::GENERIC))?;
        let mut control = Self { socket, id: CONTROL_FAMILY };
        let answer = control.request(CTRL_CMD_GETFAMILY, &[text_attribute(CTRL_ATTR_FAMILY_NAME, name)])?;
        control.id = answer
            .number_value(CTRL_ATTR_FAMILY_ID)
            .and_then(|id| u16::try_from(id).ok())
            .ok_or_else(invalid_data_error)?;
        Ok(control)
    }

    pub(crate) fn request(&self, command: u8, attributes: &[NetlinkAttribute]) -> io::Result<GenericReply> {
        let request = NetlinkMessage { kind: self.id, bytes: command_message(command, attributes) };
        request_reply(&self.socket, &request, 0)?.map(GenericReply).ok_or_else(invalid_data_error)
    }

    /// Sends a command, and returns all its answers.
    #[cfg(feature = "port")]
    pub(crate) fn dump(&self, command: u8, attributes: &[NetlinkAttribute]) -> io::Result<Vec<GenericReply>> {
        let request = NetlinkMessage { kind: self.id, bytes: command_message(command, attributes) };
        Ok(super::netlink::request_dump(&self.socket, &request)?.into_iter().map(GenericReply).collect())
    }
}

/// A command (`struct genlmsghdr`: its number, a version, and two bytes of nothing) with attributes.
fn command_message(command: u8, attributes: &[NetlinkAttribute]) -> Vec<u8> {
    let mut bytes = vec![command, 1, 0, 0];
    attributes.iter().for_each(|attribute| attribute.emit(&mut bytes));
    bytes
}

fn invalid_data_error() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// An attribute of a request: its kind, and its value.
pub(crate) struct NetlinkAttribute(u16, Vec<u8>);

impl NetlinkAttribute {
    fn emit(&self, bytes: &mut Vec<u8>) {
        push_attribute(bytes, self.0, &self.1);
    }
}

#[cfg(feature = "port")]
pub(crate) fn u32_attribute(kind: u16, value: u32) -> NetlinkAttribute {
    NetlinkAttribute(kind, value.to_ne_bytes().to_vec())
}

#[cfg(test)]
pub(crate) fn u64_attribute(kind: u16, value: u64) -> NetlinkAttribute {
    NetlinkAttribute(kind, value.to_ne_bytes().to_vec())
}

pub(crate) fn text_attribute(kind: u16, value: &str) -> NetlinkAttribute {
    NetlinkAttribute(kind, value.bytes().chain([0]).collect())
}

pub(crate) fn nested_attribute(kind: u16, inner: &[NetlinkAttribute]) -> NetlinkAttribute {
    let mut bytes = Vec::new();
    inner.iter().for_each(|attribute| attribute.emit(&mut bytes));
    NetlinkAttribute(kind | libc::NLA_F_NESTED as u16, bytes)
}

pub(crate) struct GenericReply(NetlinkMessage);

impl GenericReply {
    /// An answer made of attributes, for tests.
    #[cfg(test)]
    pub(crate) fn from_attributes(attributes: &[NetlinkAttribute]) -> Self {
        Self(NetlinkMessage { kind: 0, bytes: command_message(0, attributes) })
    }

    /// The value of an attribute that holds a number of 8 to 64 bits; `None` where the kernel does not say
    /// it.
    pub(crate) fn number_value(&self, kind: u16) -> Option<u64> {
        let (_, value) = attributes_in(self.0.bytes.get(4..)?).find(|(found, _)| *found == kind)?;
        Some(match value.len() {
            1 => value[0].into(),
            2 => u16::from_ne_bytes(value.try_into().ok()?).into(),
            4 => u32::from_ne_bytes(value.try_into().ok()?).into(),
            _ => u64::from_ne_bytes(value.try_into().ok()?),
        })
    }
}
