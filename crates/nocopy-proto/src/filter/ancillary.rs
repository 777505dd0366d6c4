//! Facts about a packet that are not in its bytes.

use super::instruction::Operation;
use super::{Extension, Program};

/// Facts about a packet that are not in its bytes. The default is a frame as on the wire, from an unknown
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AncillaryData {
    /// The places of the headers.
    pub headers: HeaderLocation,
    /// The number of the interface; `None` if no device received the packet: the kernel then ends the filter
    /// at such a question, with what is in A.
    pub interface_index: Option<u32>,
    /// The queue in the socket buffer: the device's queue plus one, 0 if unknown.
    pub queue: u16,
    /// The socket buffer's mark.
    pub mark: u32,
    /// The processor the filter runs on.
    pub cpu: u32,
    /// The value of the filter's random number.
    pub random: u32,
    /// The VLAN tag that was removed from the frame.
    pub vlan: Option<VlanTag>,
    /// How long the packet was, if bytes of it are missing: what the filter gets as its length, in bytes.
    /// `None`: they are all there.
    pub original_bytes: Option<u32>,
}

/// The places of the headers, for loads relative to them (`SKF_LL_OFF`, `SKF_NET_OFF`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderLocation {
    /// An Ethernet frame as a packet socket receives it: the network header follows Ethernet's header and a
    /// tag in the frame, unless the tag was removed before (`skb_vlan_untag`). In the kernel such loads reach
    /// the linear part of the packet, which the driver decides; here they reach the whole packet.
    #[default]
    Ethernet,
    /// A datagram of a Unix socket: no link header, and the network header at the beginning.
    Datagram {
        /// The linear part.
        linear_bytes: u32,
    },
}

/// A VLAN tag beside the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// The type that announced it, such as 0x8100.
    pub protocol: u16,
    /// Priority and VLAN.
    pub control: u16,
}

/// A filter asks for a fact that only the kernel knows about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("instruction {index} asks for {extension}, which {}; run the filter on a packet socket", .extension.unanswerable_reason())]
pub struct UnanswerableLoad {
    /// Which instruction.
    pub index: usize,
    /// The requested fact.
    pub extension: Extension,
}

impl Extension {
    /// Why neither [`Program::run`] nor an XDP program knows it; `None` if they do.
    const fn why_unanswerable(self) -> Option<&'static str> {
        Some(match self {
            Self::PacketType => "depends on the device's addresses",
            Self::ReceiveHash => "is computed by the device or later",
            Self::PayloadOffset => "takes the kernel's flow dissector",
            Self::NetlinkAttribute | Self::NestedNetlinkAttribute => "no packet of a network has",
            Self::Protocol => "the kernel decides when it has taken the packet apart",
            _ => return None,
        })
    }

    const fn unanswerable_reason(self) -> &'static str {
        match self.why_unanswerable() {
            Some(reason) => reason,
            None => "is known",
        }
    }
}

impl std::fmt::Display for Extension {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Protocol => "the protocol",
            Self::PacketType => "the packet's type",
            Self::InterfaceIndex => "the interface",
            Self::NetlinkAttribute | Self::NestedNetlinkAttribute => "a netlink attribute",
            Self::Mark => "the mark",
            Self::Queue => "the queue",
            Self::HardwareType => "the hardware type",
            Self::ReceiveHash => "the receive hash",
            Self::Cpu => "the processor",
            Self::XorX => "A xor X",
            Self::VlanTag => "the VLAN tag",
            Self::VlanTagPresent => "whether there is a VLAN tag",
            Self::PayloadOffset => "the payload's offset",
            Self::Random => "a random number",
            Self::VlanProtocol => "the VLAN protocol",
        })
    }
}

impl Program {
    /// Checks that [`Program::run`] and [`Program::to_xdp`] can answer everything the filter asks for.
    ///
    /// # Errors
    /// The first question that only the kernel's socket buffer answers.
    pub fn check_answerable(&self) -> Result<(), UnanswerableLoad> {
        for (index, operation) in self.operations.iter().enumerate() {
            if let &Operation::LoadExtension(extension) = operation
                && extension.why_unanswerable().is_some()
            {
                return Err(UnanswerableLoad { index, extension });
            }
        }
        Ok(())
    }
}
