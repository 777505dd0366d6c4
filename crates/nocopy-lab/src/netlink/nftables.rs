//! Chains of nftables on one interface, in the calling thread's namespace.

use std::convert::Infallible;

use netlink_packet_core::{
    NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::libc;

use super::{NetlinkSocket, netlink_error};
use crate::Error;
use crate::missing::require_capabilities;

// include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFTA_CHAIN_HOOK: u16 = 4;
/// The length of `struct nfgenmsg`; all zeros asks for every family.
const GENERIC_HEADER_BYTES: usize = 4;

/// Whether the interface has a chain (family `netdev`, or hook `ingress`).
pub(crate) fn has_chain(interface: &str) -> Result<bool, Error> {
    require_capabilities()?; // to list them, too
    let name = [interface.as_bytes(), b"\0"].concat();
    let names_it = |answer: &ChainMessage| {
        NlasIterator::new(&answer.attributes)
            .flatten()
            .any(|attribute| attribute.kind() == NFTA_CHAIN_HOOK && contains_value(attribute.value(), &name))
    };
    let listed = NetlinkSocket::open(NETLINK_NETFILTER)
        .and_then(|socket| socket.request(ChainMessage { attributes: Vec::new() }, NLM_F_DUMP));
    match listed {
        Ok(answers) => Ok(answers.iter().any(names_it)),
        // A kernel without netfilter's sockets, or without nftables.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EINVAL)) => Ok(false),
        Err(error) => Err(netlink_error("list the chains of nftables".into())(error)),
    }
}

/// Whether an attribute has this value, or one inside another: the kernel does not flag nested ones here.
fn contains_value(attributes: &[u8], value: &[u8]) -> bool {
    NlasIterator::new(attributes)
        .flatten()
        .any(|attribute| attribute.value() == value || contains_value(attribute.value(), value))
}

/// A question without attributes, or an answer.
#[derive(Debug)]
struct ChainMessage {
    attributes: Vec<u8>,
}

impl NetlinkSerializable for ChainMessage {
    fn message_type(&self) -> u16 {
        NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN
    }

    fn buffer_len(&self) -> usize {
        GENERIC_HEADER_BYTES
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

impl NetlinkDeserializable for ChainMessage {
    type Error = Infallible;

    fn deserialize(_: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let attributes = payload.get(GENERIC_HEADER_BYTES..).unwrap_or_default().to_vec();
        Ok(Self { attributes })
    }
}

impl From<ChainMessage> for NetlinkPayload<ChainMessage> {
    fn from(message: ChainMessage) -> Self {
        NetlinkPayload::InnerMessage(message)
    }
}
