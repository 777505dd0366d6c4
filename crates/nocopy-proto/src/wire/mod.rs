//! Packet headers: read them in place, write them in place.
//!
//! Every format has two types. The **view** (`ethernet::Frame`, `ipv4::Packet`, …) borrows the bytes. Its
//! `parse` checks every length the format has, once; after that no accessor can fail, and `payload()` ends
//! where the header says it does, without link-layer padding. The **repr** (`ethernet::Repr`, …) is an owned
//! plain struct that `emit` writes as a header.
//!
//! `parse` does not check values that a receiver may tolerate: checksums (a device may have checked them, or
//! may still have to compute them) and other fields. These checks have methods of their own.
//!
//! Packets that were cut, for example by a capture length, are refused. A caller for whom the headers suffice
//! calls `parse_cut`: accessors then return the declared lengths, and `payload()` the bytes that are present.
//!
//! ```
//! use nocopy_proto::wire::{EtherType, IpAddresses, IpProtocol, MacAddress, UdpChecksum, UdpFrame};
//! use nocopy_proto::wire::{ethernet, ipv4, udp};
//!
//! let template = UdpFrame {
//!     source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
//!     destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
//!     vlan: None,
//!     addresses: IpAddresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() },
//!     traffic_class: 0,
//!     hop_limit: 64,
//!     source_port: 4660,
//!     destination_port: 7,
//!     checksum: UdpChecksum::Computed,
//! };
//! let mut bytes = [0; 64];
//! let (headers, payload) = bytes.split_at_mut(template.header_bytes());
//! template.emit_headers(headers, payload)?;
//!
//! let frame = ethernet::Frame::parse(&bytes)?;
//! assert_eq!(frame.ether_type(), EtherType::IPV4);
//! let packet = ipv4::Packet::parse(frame.payload())?;
//! assert!(packet.checksum_is_valid());
//! assert_eq!(packet.protocol(), IpProtocol::UDP);
//! let datagram = udp::Datagram::parse(packet.payload())?;
//! datagram.verify_checksum(&packet.addresses())?;
//! assert_eq!(datagram.payload().len(), 64 - template.header_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
#[doc(hidden)]
pub mod oracle;
pub mod tcp;
pub mod udp;
#[cfg(feature = "unfinished")]
pub mod unfinished;
pub mod vlan;

mod ecn;
mod emit;
pub(crate) mod field;
mod ip;
mod mac;
mod udp_flow;
mod udp_frame;
mod udp_packet;
mod udp_template;

#[cfg(test)]
pub(crate) mod captured;

pub use ecn::Ecn;
pub use emit::{BufferTooSmall, EmitError, PayloadTooLong};
pub use ethernet::EtherType;
pub use ip::{IpAddresses, IpProtocol};
pub use mac::{MacAddress, NotAMacAddress};
pub use udp_flow::UdpFlow;
pub use udp_frame::{UdpChecksum, UdpFrame, UdpFrameError};
pub use udp_packet::{NotUdp, UdpPacket};
pub use udp_template::UdpTemplate;
