//! Zero-copy network I/O for stock Linux: one API of owned buffers over everything the kernel offers, and for
//! every byte evidence whether it was copied, and why.
//!
//! The library is not on crates.io. Depend on a clone of its repository, or on the repository's address:
//!
//! ```text
//! cargo add --path ../nocopy/crates/nocopy
//! cargo add nocopy --git ADDRESS
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
//! **Receiving.** `receive` waits without limit, `receive_timeout` for a time, `try_receive` not at all.
//! Received data is borrowed until the next call; `take` makes it yours. How to wait is a setting ([`Wait`]):
//! spin for the lowest latency, sleep for the least work, or spin first and then sleep.
//!
//! **Sending.** `buffer` gives an empty buffer. `send` takes it over and puts it into a queue, without a
//! system call; `flush` hands the whole queue to the kernel at once. The memory is yours again when the
//! kernel no longer reads it: `reap` looks for such memory, `in_flight` counts sends that the kernel still
//! reads, and `drain` waits for all of them. An item that cannot be sent is returned with the reason
//! ([`Rejected`]); if it can be sent later, the reason is always [`Reason::Full`]. `send_copy` copies the
//! bytes, which stay yours. `close` drains, and ends sending.
//!
//! **Waiting elsewhere.** Every half has a descriptor for `poll`, `epoll` and the like; call `arm` before
//! each wait on it. With the feature `tokio`, `into_async` turns a half into one whose waits are futures;
//! with `futures`, such halves are `Stream`s and `Sink`s.
//!
//! **Other crates.** With the feature `bytes`, [`Buffer`]s, owned datagrams, chunks and messages convert into
//! `bytes::Bytes` without a copy, and [`Buffer`] from it; [`BufferMut`] is a `bytes::BufMut`.
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
//! | feature | gives | default |
//! |---|---|---|
//! | `port` | [`port`]s and [`Capture`]s; [`area`], [`filter`], [`metadata`] of packets | yes |
//! | `uring` | sends and writes of captures by io_uring | yes |
//! | `tcp` | [`tcp`] | yes |
//! | `message` | [`message`], with `tcp` | yes |
//! | `tokio` | asynchronous halves | no |
//! | `futures` | those as `Stream`s and `Sink`s, with `tokio` | no |
//! | `bytes` | conversions from and into `bytes::Bytes` | no |
//! | `tracing` | [events](#events) when a method or a mode changes, and at first copies | no |
//!
//! Where `uring` is missing, io_uring's methods are ruled out, and `explain` says so.
//!
//! # Events
//!
//! With the feature `tracing` there is one event when something is new in what `explain` or `ledger` of a half
//! says, in the same words, and none per packet or call. All have the target `nocopy` and the field `half`;
//! those of ports and captures also `interface` and `queue`.
//!
//! | event | level | more fields |
//! |---|---|---|
//! | `mode refused`: a port does not get a faster mode | warn | `mode`, `reason` |
//! | `mode taken`: a port or a capture was opened | info | `mode`, `reason` if modes were tried in another order |
//! | `method changed`: another one was measured to be faster, or is used instead | info | `method`, `work`, `reason`: the former one |
//! | `method ruled out`: after the half was made | info | `method`, `reason` |
//! | `first copy` of a half for a cause | info | `cause` |
//!
//! A port below a socket or an endpoint, and the streams of an endpoint, have their own events.
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
pub use facts::rejected::{Reason, Rejected};
#[cfg(feature = "port")]
pub use memory::area::{self, Area, Chain, Draft, Drafts, Frame, Packet, SharedFrame};
pub use memory::pool::{self, Buffer, BufferMut, Pool, TooLong};
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
