//! Part of the `nocopy` command, without a promised API: private network laboratories for tests, benchmarks
//! and demonstrations.
//!
//! A [`Lab`] is two *unnamed* network namespaces joined by a veth pair:
//!
//! ```text
//!   left namespace                          right namespace
//!   nc0  02:6e:63:00:00:01  10.77.0.1/24 ── 10.77.0.2/24  02:6e:63:00:00:02  nc1
//! ```
//!
//! The namespaces have no name in the file system. They live as long as a descriptor, a socket or a thread
//! refers to them, so a process killed with SIGKILL leaves nothing to clean up. The machine's own interfaces
//! are never touched.
//!
//! ```no_run
//! # fn main() -> Result<(), nocopy_lab::Error> {
//! use std::net::UdpSocket;
//! let lab = nocopy_lab::Lab::new()?;
//! let receiver = lab.right().namespace().run(|| UdpSocket::bind((lab.right().ipv4(), 7000)).unwrap());
//! let sender = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
//! sender.send_to(b"hello", (lab.right().ipv4(), 7000)).unwrap();
//! assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 5);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod borrowed;
mod chain;
mod error;
mod lab;
pub mod libtest;
mod missing;
mod namespace;
mod netlink;
pub mod patience;
mod preload;
mod program;
#[cfg(feature = "refused")]
pub mod refused;
mod skip;
pub mod suspended;
pub mod witness;

pub use borrowed::{BorrowedPair, Obstacle, SavedInterface};
pub use chain::ThreeNodeLab;
pub use error::Error;
pub use lab::{Builder, End, Lab, PREFIX_BITS};
pub use missing::Missing;
pub use namespace::{Namespace, SYSCTLS};
pub use netlink::link::Interface;
pub use preload::{PreloadLibrary, preloadable_path};
pub use program::ProgramForAnyUser;
pub use skip::{
    ALLOWED_SKIPS, AllowedSkip, REMOVED, descriptors_or_skip, has_io_uring, has_ipv6, has_ipv6_sockets,
    io_uring_or_skip, ipv6_or_skip, ipv6_sockets_or_skip, lab_or_skip, skip, without_missing_ipv6,
    without_missing_ipv6_sockets, without_refused_io_uring,
};
