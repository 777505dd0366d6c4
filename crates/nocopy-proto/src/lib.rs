//! Wire formats and sans-I/O protocol logic of nocopy.
//!
//! Nothing here opens a socket, reads a clock or draws a random number, and nothing is `unsafe`. Bytes are
//! the input, typed views and bytes the output, so every part runs in a simulation and under a fuzzer exactly
//! as on a port.
//!
//! * [`describe`]: one line of text for a packet.
//! * [`discipline`]: what queueing disciplines do with packets.
//! * [`distribution`]: what distributions call libpcap.
//! * [`ebpf`]: the instructions of XDP programs.
//! * [`errno`]: errors of the kernel, as messages say them.
//! * [`filter`]: packet filters, checked, run and translated.
//! * [`message`]: the message protocol.
//! * [`pcapng`]: capture files, also made around packets where these lie.
//! * [`quantity`]: amounts as people read them.
//! * [`run`]: what `nocopy run` and the library it preloads say to each other.
//! * [`wire`]: Ethernet, VLAN tags, ARP, IPv4, IPv6, ICMP, ICMPv6, TCP, UDP and the Internet checksum.
//!
//! Features, all of them default: `errno`, `message`, `run` and `unfinished` (of [`wire`]) turn on the module
//! of that name.
//!
//! The modules in their layers: each uses those below it only (`cargo xtask check` reads this list).
//!
//! ```text
//! describe  message  run
//! filter  pcapng
//! discipline  distribution  ebpf  errno  quantity  wire
//! ```

#![forbid(unsafe_code)]

pub mod describe;
pub mod discipline;
pub mod distribution;
pub mod ebpf;
#[cfg(feature = "errno")]
pub mod errno;
pub mod filter;
#[cfg(feature = "message")]
pub mod message;
pub mod pcapng;
pub mod quantity;
#[cfg(feature = "run")]
pub mod run;
pub mod wire;

pub use wire::{
    EtherType, IpAddresses, IpProtocol, MacAddress, UdpChecksum, UdpFrame, UdpPacket, UdpTemplate,
};
