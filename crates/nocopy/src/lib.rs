//! Zero-copy network I/O for stock Linux: one API of owned buffers over everything the kernel offers, and for
//! every byte evidence whether it was copied, and why.
//!
//! ```text
//! cargo add nocopy
//! cargo add --path ../nocopy/crates/nocopy    # from a clone of the repository
//! ```
//!
//! # One shape for every kind of I/O
//!
//! Packets, datagrams, streams and messages are sent and received in the same way: open or bind, then use the
//! half that receives and the half that sends, each on its own thread if you like.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use nocopy::udp::Socket;
//!
//! let socket = Socket::bind("127.0.0.1:0")?;
//! let to = socket.local_addr()?;
//! let (mut receiver, mut sender) = socket.split();
//!
//! let mut buffer = sender.buffer().ok_or("all buffers are in use")?;
//! buffer.fill(b"hello")?;
//! sender.send_to(buffer, to)?; // moved: to touch the buffer from here on does not compile
//! sender.flush()?;
//!
//! for datagram in receiver.receive()? {
//!     assert_eq!(&datagram[..], b"hello");
//! }
//! println!("{}", sender.ledger()); // how many bytes were copied, and why
//! # Ok(()) }
//! ```
//!
//! | To move | open | it moves |
//! |---|---|---|
//! | packets of an interface | [`Port::open`]`("eth0")` | [`Frame`]s of an [`Area`], by AF_XDP, a packet ring, or memory |
//! | datagrams | [`udp::Socket::bind`]`(address)`; [`port`](udp::Builder::port): over a port | [`Buffer`]s of a [`Pool`], or frames |
//! | a stream | [`tcp::Stream::connect`]`(address)`, [`tcp::Listener::bind`]`(address)` | [`Buffer`]s, files, [`Published`](tcp::Published) data |
//! | messages between nodes | [`message::Endpoint::builder`]`().bind(address)` | [`Buffer`]s, over sockets or a port |
//! | all packets, which the host keeps | [`Capture::open`]`("eth0")` | [`Block`](capture::Block)s of packets |
//!
//! **Memory.** A [`BufferMut`] has one owner, which writes by `fill`, `resize`, `io::Write`, or as to a
//! `[u8]`. A [`Buffer`] is only read. `freeze` and `try_into_mut` turn one into the other without a copy. A
//! `Vec<u8>`, a `&'static [u8]`, another value that has bytes ([`Buffer::from_owner`]) and memory that is not
//! Rust's ([`BufferMut::from_raw`]) are sent from where they lie; [`Pool::of`] makes buffers of the program's
//! memory, to send from and to receive into. A port moves only frames of its [`Area`].
//!
//! **Receiving.** `receive` waits without limit, `receive_timeout` for a time, `try_receive` not at all.
//! Received data is borrowed until the next call; `take` makes it yours. A datagram has its `source` and its
//! `metadata`, a message its `peer`. How to wait is a setting ([`Wait`]): spin for the lowest latency, sleep
//! for the least work, or spin first and then sleep.
//!
//! **Sending.** `buffer` gives an empty buffer. `send` takes a buffer over and puts it into a queue, without
//! a system call; `flush` hands the whole queue to the kernel at once. `send` is for halves with one
//! destination: a port, a stream, a connected socket. `send_to` names an address or a peer, and `send_with`
//! sets more ([`udp::Ancillary`], [`metadata::Request`]). The memory is yours again when the kernel no longer
//! reads it: `reap` looks for such memory, `in_flight` counts sends that the kernel still reads, and `drain`
//! waits for all of them. An item that cannot be sent is returned with the reason ([`Rejected`]); if it can
//! be sent later, the reason is always [`Reason::Full`]. `send_copy` and `send_copy_to` copy the bytes, which
//! stay yours. `close` drains, and ends sending.
//!
//! **Waiting.** What may wait is a method of the half itself. Everything else is a method of a type that
//! never waits, such as [`udp::NonblockingSender`], to which the half derefs. In a tokio program (feature
//! `tokio`), `into_async` turns a half into one that derefs to the same type, and has `receive`, `buffer`,
//! `flush`, `drain` and the like as `async` methods; those that block are not there. (Give `send_to` an
//! address: looking up a name waits.) With the feature `futures`, those that receive are `Stream`s, and those
//! that send datagrams or messages `Sink`s. Elsewhere, every half has a descriptor for `poll`, `epoll` and
//! the like; call `arm` before each wait on it.
//!
//! **Other crates.** Names are those of std: `local_addr`, `peer_addr`, an `impl ToSocketAddrs` wherever an
//! address is taken; a [`tcp::Stream`] is `Read`, `BufRead` and `Write`. Every error, and [`Rejected`],
//! converts into [`std::io::Error`], whose `get_ref` is the error itself. With the feature `bytes`,
//! [`Buffer`]s, owned datagrams, chunks and messages convert into `bytes::Bytes`, without a copy unless their
//! bytes lie in pieces or on mapped pages, and [`Buffer`] from it; [`BufferMut`] is a `bytes::BufMut`.
//!
//! **Finding out.** `ledger` returns how many bytes were moved without a copy, how many were copied and why,
//! and how many are unknown ([`Evidence`]). `stats` has every counter, so every loss is counted. `explain`
//! returns which method is used on this machine for this work, and how it compared with the others.
//!
//! [`ReceiverHalf`] and [`SenderHalf`] are this contract as traits, for code that takes any half.
//!
//! # Features
//!
//! Datagrams and their buffers are always there: 17 crates with all below them. `default-features = false`
//! and a choice of these compile less than all:
//!
//! | feature | gives | needs | default |
//! |---|---|---|---|
//! | `port` | [`port`]s and [`Capture`]s; [`area`], [`filter`], [`metadata`] of packets | aya-obj, crc32c | yes |
//! | `uring` | sends and writes of captures by io_uring | io-uring | yes |
//! | `tcp` | [`tcp`] | | yes |
//! | `message` | [`message`] | feature `tcp`, crc32c, siphasher | yes |
//! | `tokio` | asynchronous halves | tokio, and its runtime with `enable_io` | no |
//! | `futures` | those as `Stream`s and `Sink`s | feature `tokio`, futures-core, futures-sink | no |
//! | `bytes` | conversions from and into `bytes::Bytes` | bytes 1.9 | no |
//! | `tracing` | [events](#events) when a method or a mode changes, and at first copies | tracing | no |
//!
//! Where `uring` is missing, io_uring's methods are ruled out, and `explain` says so. `cargo doc
//! --all-features` documents all of them.
//!
//! # Events
//!
//! With the feature `tracing` there is one event when something is new in what `explain` or `ledger` of a
//! half says, in the same words, and none per packet or call. All have the target `nocopy` and the field
//! `half`; those of ports also `interface` and `queue`, those of captures `interface`.
//!
//! | event | level | more fields |
//! |---|---|---|
//! | `mode refused`: a port does not get a faster mode | warn | `mode`, `reason` |
//! | `mode taken`: a port or a capture was opened | info | `mode`, `reason` if modes were tried in another order |
//! | `method changed`: another one was measured to be faster, or is used instead | info | `method`, `work`, `reason`: the former one |
//! | `method ruled out`: after the half was made | info | `method`, `reason` |
//! | `first copy` of a half for a cause | info | `cause` |
//!
//! A port below a socket or an endpoint has its own events, as have streams by which an endpoint sends.
//!
//! # What else there is
//!
//! * [`port`]: modes of a port and how one is chosen, all queues of an interface, granting a port to a
//!   process without privileges.
//! * [`filter`]: which packets a port receives, decided before they are copied; [`metadata`]: checksums and
//!   times that the card adds.
//! * [`area`], [`pool`]: the memory, which half holds which part of it, and the balance of all parts.
//! * [`tcp`]: sending published data by reference to any number of peers, files, and pages on their way
//!   between sockets and files.
//!
//! The modules in their layers: each uses only modules below it (`cargo xtask check` reads this list).
//!
//! ```text
//! integration
//! bytes  futures
//! message
//! udp  tcp
//! inspect
//! port  capture
//! engine
//! memory
//! sys
//! ring
//! stats  events
//! sync  counter  facts
//! ```

#[cfg(feature = "bytes")]
mod bytes;
#[cfg(feature = "port")]
pub mod capture;
mod counter;
mod engine;
mod events;
mod facts;
#[cfg(feature = "futures")]
mod futures;
#[cfg(feature = "port")]
mod inspect;
#[doc(hidden)]
pub mod integration;
mod memory;
#[cfg(feature = "message")]
pub mod message;
#[cfg(any(feature = "fuzzing", test))]
#[doc(hidden)]
pub mod model;
#[cfg(feature = "port")]
pub mod port;
#[cfg(not(feature = "port"))]
#[path = "port/absent.rs"]
mod port;
#[cfg(feature = "port")]
mod ring;
mod stats;
#[cfg(any(feature = "message", feature = "port"))]
mod sync;
mod sys;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod udp;

#[cfg(feature = "port")]
pub use capture::Capture;
pub use counter::Counter;
#[cfg(feature = "tokio")]
pub use engine::asynchronous::{AsyncReceiver, AsyncSender};
pub use engine::half::{ReceiverHalf, SenderHalf};
pub use engine::process_stats;
pub use engine::wait::Wait;
pub use facts::evidence::{Cause, Evidence, Ledger};
pub use facts::method_explanation::Explanation;
pub use facts::rejected::{Reason, Rejected, TooLong};
#[cfg(feature = "port")]
pub use memory::area::{self, Area, Chain, Draft, Drafts, Frame, Packet, SharedFrame};
pub use memory::pool::{self, Buffer, BufferMut, Pool};
pub use memory::send_queue::{Completed, Ticket};
pub use port::metadata;
#[cfg(feature = "port")]
pub use port::{Mode, Port, Receiver, Sender, ToHost, filter};
pub use stats::Stats;

/// The hardware (MAC) address of an interface of the calling thread's network namespace.
///
/// ```
/// assert_eq!(nocopy::hardware_address("lo")?, [0; 6]); // loopback has none
/// assert!(nocopy::hardware_address("no such interface").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// No such interface.
#[cfg(feature = "port")]
pub fn hardware_address(interface: &str) -> std::io::Result<[u8; 6]> {
    sys::interface::hardware_address(interface)
}
