//! Device features and queues, over the `ethtool` generic netlink family: its ioctl would need unsafe code.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{NetlinkSocket, netlink_error};
use crate::{Error, Missing, Namespace};

// include/uapi/linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;
const ETHTOOL_GENL_VERSION: u8 = 1;
/// The number is the same in every request.
const ETHTOOL_A_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 1 << 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

/// Switches one feature of an interface, by the kernel's name for it (`rx-gro`).
pub(crate) fn set_feature(
    namespace: &Namespace,
    interface: &str,
    feature: &str,
    on: bool,
) -> Result<(), Error> {
    let operation = format!("switch {feature} of {interface} {}", if on { "on" } else { "off" });
    send_set_request(namespace, SetRequest::new_feature_request(interface, feature, on), operation)
}

pub(crate) fn set_combined_queues(namespace: &Namespace, interface: &str, count: u32) -> Result<(), Error> {
    let operation = format!("give {interface} {count} combined queue(s)");
    send_set_request(namespace, SetRequest::new_queues_request(interface, count), operation)
}

fn send_set_request(namespace: &Namespace, request: SetRequest, operation: String) -> Result<(), Error> {
    let connection = NetlinkSocket::open_in_namespace(namespace, NETLINK_GENERIC)
        .map_err(netlink_error(operation.clone()))?;
    let family = family_id(&connection)
        .map_err(netlink_error("ask for the ethtool netlink family".into()))?
        .ok_or(Missing::Kernel("ethtool over netlink (CONFIG_ETHTOOL_NETLINK)"))?;
    let mut message = GenlMessage::from_payload(request);
    message.set_resolved_family_id(family);
    connection.request(message, 0).map_err(netlink_error(operation))?;
    Ok(())
}

fn family_id(connection: &NetlinkSocket) -> io::Result<Option<u16>> {
    let question = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(SetRequest::family_name().into())],
    };
    let answers = match connection.request(GenlMessage::from_payload(question), 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        answers => answers?,
    };
    Ok(answers.into_iter().flat_map(|answer| answer.payload.nlas).find_map(|attribute| match attribute {
        GenlCtrlAttrs::FamilyId(id) => Some(id),
        _ => None,
    }))
}

#[derive(Debug, Clone)]
struct SetRequest {
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl SetRequest {
    fn new_feature_request(interface: &str, feature: &str, on: bool) -> Self {
        let mut bit = vec![string_attribute(ETHTOOL_A_BITSET_BIT_NAME, feature)];
        if on {
            // A flag: present means set, absent means clear.
            bit.push(DefaultNla::new(ETHTOOL_A_BITSET_BIT_VALUE, Vec::new()));
        }
        let bits =
            nested_attribute(ETHTOOL_A_BITSET_BITS, &[nested_attribute(ETHTOOL_A_BITSET_BITS_BIT, &bit)]);
        // Otherwise the kernel returns the changes.
        let flags = number_attribute(ETHTOOL_A_HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY);
        let header = [string_attribute(ETHTOOL_A_HEADER_DEV_NAME, interface), flags];
        let attributes = vec![
            nested_attribute(ETHTOOL_A_HEADER, &header),
            nested_attribute(ETHTOOL_A_FEATURES_WANTED, &[bits]),
        ];
        Self { command: ETHTOOL_MSG_FEATURES_SET, attributes }
    }

    fn new_queues_request(interface: &str, count: u32) -> Self {
        let header = [string_attribute(ETHTOOL_A_HEADER_DEV_NAME, interface)];
        let attributes = vec![
            nested_attribute(ETHTOOL_A_HEADER, &header),
            number_attribute(ETHTOOL_A_CHANNELS_COMBINED_COUNT, count),
        ];
        Self { command: ETHTOOL_MSG_CHANNELS_SET, attributes }
    }
}

fn number_attribute(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn string_attribute(kind: u16, text: &str) -> DefaultNla {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    DefaultNla::new(kind, bytes)
}

fn nested_attribute(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inner.buffer_len()];
    inner.emit(&mut value);
    debug_assert!(value.len() + NLA_HEADER_SIZE <= u16::MAX as usize);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

impl GenlFamily for SetRequest {
    fn family_name() -> &'static str {
        "ethtool"
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        ETHTOOL_GENL_VERSION
    }
}

impl Emitable for SetRequest {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for SetRequest {
    /// The kernel is asked to omit replies; a reply that arrives anyway is ignored.
    fn parse_with_param(_: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { command: 0, attributes: Vec::new() })
    }
}
