//! What travels with a packet besides its bytes: when it arrived or left, its hash, its VLAN tag, a checksum left to the card.
//!
//! # Receiving
//!
//! [`Packet::arrival`](crate::Packet::arrival) returns when a packet arrived, its flow hash, and the VLAN tag that the card took out.
//!
//! | mode | where it comes from | |
//! |---|---|---|
//! | `xdp zero-copy`, `xdp copy native` | the card, asked by the XDP program for each packet | [`PortBuilder::receive_metadata`], Linux 6.3, a driver that has it |
//! | `packet ring` | the header in front of each packet: time and hash by the kernel if the card gave none | time always; the hash with [`PortBuilder::receive_metadata`] |
//! | `memory` | | nothing |
//!
//! The program puts what the driver says in front of the packet, in the frame. Those bytes cannot be an earlier packet's: they are
//! erased each time the frame is lent to the kernel, and count only with a random number behind them that this port's program
//! writes last and that is kept secret (kernel: Documentation/networking/xdp-rx-metadata.rst).
//!
//! # Sending
//!
//! [`Sender::send_with`] sends a frame with a [`Request`]: complete its checksum, note when it left. What a port opened with
//! [`PortBuilder::send_metadata`] can do is in its [`Explanation`].
//!
//! | mode | checksum | time of leaving |
//! |---|---|---|
//! | `xdp zero-copy` | the card, where its driver says so | the card's clock, where its driver says so |
//! | `xdp copy native`, `xdp copy generic` | the kernel, while it copies; not with virtio_net, which takes packets from the area itself | when the kernel was done with the packet, by the system's clock |
//! | `packet ring`, `memory` | | |
//!
//! Needs Linux 6.11 (kernel: Documentation/networking/xsk-tx-metadata.rst). Where neither card nor kernel completes checksums,
//! [`Sender::send_with`] does, in software, so the program is the same:
//!
//! ```no_run
//! use nocopy::metadata::Request;
//! use nocopy_proto::{UdpChecksum, UdpFrame};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let flow: UdpFrame = unimplemented!();
//! let mut port = nocopy::Port::builder("eth0").send_metadata(true).open()?;
//! let flow = UdpFrame { checksum: UdpChecksum::Offloaded, ..flow };
//! let mut frame = port.sender().buffer().ok_or("no frame is free")?;
//! frame.fill(&vec![7; flow.header_bytes() + 100]).ok_or("too long")?;
//! let (headers, payload) = frame.split_at_mut(flow.header_bytes());
//! flow.emit_headers(headers, payload)?;
//! port.sender().send_with(frame, Request::default().checksum(flow.checksum_place()))?;
//! port.sender().flush()?;
//! # Ok(()) }
//! ```
//!
//! The request is written in front of the packet as the frame is sent and holds for that one time: a frame that is forwarded, or
//! sent again, carries none unless it is given a new one.
//!
//! [`PortBuilder::receive_metadata`]: crate::port::PortBuilder::receive_metadata
//! [`PortBuilder::send_metadata`]: crate::port::PortBuilder::send_metadata
//! [`Explanation`]: crate::Explanation
//! [`Sender::send_with`]: crate::Sender::send_with

pub use crate::facts::metadata::{Arrival, Clock, Request, Timestamp, Unsupported};
