//! Device features, over the `ethtool` generic netlink family: its ioctl would need unsafe code.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{Connection, refused};
use crate::{Error, Missing, Namespace};

// include/uapi/linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_GENL_VERSION: u8 = 1;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
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
    let connection = match Connection::inside(namespace, NETLINK_GENERIC) {
        Ok(connection) => connection,
        Err(source) => return Err(Error::Netlink { operation, source }),
    };
    let family = family_id(&connection)
        .map_err(refused("ask for the ethtool netlink family".into()))?
        .ok_or(Missing::Kernel("ethtool over netlink (CONFIG_ETHTOOL_NETLINK)"))?;
    let mut message = GenlMessage::from_payload(FeaturesSet::one(interface, feature, on));
    message.set_resolved_family_id(family);
    connection.request(message, 0).map_err(refused(operation))?;
    Ok(())
}

fn family_id(connection: &Connection) -> io::Result<Option<u16>> {
    let question = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(FeaturesSet::family_name().into())],
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

/// An `ETHTOOL_MSG_FEATURES_SET` request.
#[derive(Debug, Clone)]
struct FeaturesSet {
    attributes: Vec<DefaultNla>,
}

impl FeaturesSet {
    fn one(interface: &str, feature: &str, on: bool) -> Self {
        let mut bit = vec![string(ETHTOOL_A_BITSET_BIT_NAME, feature)];
        if on {
            // A flag: present means set, absent means clear.
            bit.push(DefaultNla::new(ETHTOOL_A_BITSET_BIT_VALUE, Vec::new()));
        }
        let bits = nest(ETHTOOL_A_BITSET_BITS, &[nest(ETHTOOL_A_BITSET_BITS_BIT, &bit)]);
        let header = [
            string(ETHTOOL_A_HEADER_DEV_NAME, interface),
            DefaultNla::new(ETHTOOL_A_HEADER_FLAGS, ETHTOOL_FLAG_OMIT_REPLY.to_ne_bytes().to_vec()),
        ];
        let attributes =
            vec![nest(ETHTOOL_A_FEATURES_HEADER, &header), nest(ETHTOOL_A_FEATURES_WANTED, &[bits])];
        Self { attributes }
    }
}

fn string(kind: u16, text: &str) -> DefaultNla {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    DefaultNla::new(kind, bytes)
}

fn nest(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inner.buffer_len()];
    inner.emit(&mut value);
    debug_assert!(value.len() + NLA_HEADER_SIZE <= u16::MAX as usize);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

impl GenlFamily for FeaturesSet {
    fn family_name() -> &'static str {
        "ethtool"
    }

    fn command(&self) -> u8 {
        ETHTOOL_MSG_FEATURES_SET
    }

    fn version(&self) -> u8 {
        ETHTOOL_GENL_VERSION
    }
}

impl Emitable for FeaturesSet {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for FeaturesSet {
    /// Replies are asked to be omitted; one that comes all the same says nothing we need.
    fn parse_with_param(_: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { attributes: Vec::new() })
    }
}
