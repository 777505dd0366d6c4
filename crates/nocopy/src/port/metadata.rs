//! Metadata of packets: time of arrival or departure, flow hash, VLAN tag, a checksum that the card
//! completes.
//!
//! # Receiving
//!
//! [`Packet::arrival`](crate::Packet::arrival) returns when a packet arrived, its flow hash, and the VLAN tag
//! that the card removed.
//!
//! | mode | source | condition |
//! |---|---|---|
//! | `xdp zero-copy`, `xdp copy native` | the card, asked by the XDP program for each packet | [`PortBuilder::receive_metadata`], Linux 6.3, driver support |
//! | `packet ring` | the header in front of each packet: time and hash by the kernel if the card gave none | time always; the hash with [`PortBuilder::receive_metadata`] |
//! | `memory` | | nothing |
//!
//! The XDP program writes the driver's answers in front of the packet, in the frame. They cannot be left from
//! an earlier packet: the bytes are erased each time the frame is lent to the kernel, and are valid only if
//! followed by a secret random number that this port's program writes last (kernel:
//! Documentation/networking/xdp-rx-metadata.rst).
//!
//! # Sending
//!
//! [`Sender::send_with`] sends a frame with a [`Request`]: complete its checksum, report its departure time.
//! The port's [`Explanation`] says what a port opened with [`PortBuilder::send_metadata`] can do.
//!
//! | mode | checksum | departure time |
//! |---|---|---|
//! | `xdp zero-copy` | the card, if its driver says so | the card's clock, if its driver says so |
//! | `xdp copy native`, `xdp copy generic` | the kernel, while it copies; not with virtio_net, which reads packets in the area itself | when the kernel had finished with the packet, by the system's clock |
//! | `packet ring`, `memory` | software | none |
//!
//! Needs Linux 6.11 (kernel: Documentation/networking/xsk-tx-metadata.rst). If neither card nor kernel
//! completes checksums, [`Sender::send_with`] completes them in software, so the program is the same:
//!
//! ```no_run
//! use nocopy::metadata::Request;
//! use nocopy_proto::{UdpChecksum, UdpFrame};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let flow: UdpFrame = unimplemented!();
//! let mut port = nocopy::Port::builder("eth0").send_metadata(true).open()?;
//! let flow = UdpFrame { checksum: UdpChecksum::Offloaded, ..flow };
//! let mut frame = port.sender().buffer().ok_or("no frame is free")?;
//! frame.fill(&vec![7; flow.header_bytes() + 100])?;
//! let (headers, payload) = frame.split_at_mut(flow.header_bytes());
//! flow.emit_headers(headers, payload)?;
//! port.sender().send_with(frame, Request::default().checksum(flow.checksum_field()))?;
//! port.sender().flush()?;
//! # Ok(()) }
//! ```
//!
//! The request is written in front of the packet when the frame is sent, and is used once: a frame that is
//! forwarded or sent again carries no request unless a new one is given. [`Sender::forward`] makes the
//! request for packets whose sender left the checksum to a device.
//!
//! [`PortBuilder::receive_metadata`]: crate::port::PortBuilder::receive_metadata
//! [`PortBuilder::send_metadata`]: crate::port::PortBuilder::send_metadata
//! [`Explanation`]: crate::Explanation
//! [`Sender::send_with`]: crate::port::NonblockingSender::send_with
//! [`Sender::forward`]: crate::port::NonblockingSender::forward

pub use crate::facts::metadata::{Arrival, Clock, Request, Timestamp, Unsupported};
