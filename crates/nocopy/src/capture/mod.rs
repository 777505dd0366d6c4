//! Passive capture of a whole interface, in blocks of packets that are owned.
//!
//! The host keeps its traffic. The kernel copies each packet once, into a block of memory that it shares with the program, and
//! hands over whole blocks: nothing is called or copied for a packet. A block can go to any thread, and goes back to the kernel when
//! it is dropped. While every block is away or waits to be taken, what arrives is dropped, and counted.
//!
//! ```no_run
//! use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut blocks = nocopy::capture::Blocks::builder("eth0").open()?;
//! while let Some(mut block) = blocks.next(Duration::from_secs(1))? {
//!     for packet in block.packets() {
//!         println!("{} bytes at {}", packet.original_bytes, packet.time_ns);
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! [`Block::into_pcapng`] makes a block a piece of a capture file where it lies, for a [`Writer`](crate::disk::Writer) to take to the
//! disk.

pub mod disk;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_proto::filter::{Instruction, InvalidProgram, Program};
pub use nocopy_proto::pcapng::Counts;
use nocopy_proto::pcapng::SNAP_BYTES_MAX;

use crate::facts::evidence::{Cause, Evidence};
pub use crate::sys::interface::InterfaceError;
use crate::sys::interface::{Condition, Inquiry, Interface, Promiscuous};
pub use crate::sys::packet::{Block, BlockReader, Captured, Contents, Packets, PcapngBlock, PcapngLayout};
use crate::sys::packet::{Capture, OwnedBlocks, PacketSocket, SINGLE_FRONT_BYTES};
use crate::sys::poll::wait_readable_or_broken;

/// A block is made of pages.
const PAGE_BYTES: u32 = 4096;
/// The kernel's limit of a ring is 4 GiB less a page, of a block what memory it finds in one piece.
const BLOCK_BYTES_MAX: u32 = 64 << 20;

/// The longest packet that is joined or not cut yet (IPv4's), and what may be in front of it and behind: two tags, a checksum.
const JOINED_BYTES_MAX: u32 = 65_535;
const LINK_BYTES_MAX: u32 = 14 + 2 * 4 + 4;

/// Blocks of single packets there are at least, so that a burst finds room.
const SINGLE_COUNT_MIN: u32 = 128;

/// How long a wait looks away while the kernel says that there are blocks and means those that are away.
const GLANCE: Duration = Duration::from_millis(1);

/// How long a wait goes without a look at the interface: poll never tells that it is gone.
const LOOK: Duration = Duration::from_millis(100);

/// Prepares to capture; see [`Blocks::builder`].
#[derive(Debug, Clone)]
pub struct BlocksBuilder {
    interface: String,
    block_bytes: u32,
    block_count: u32,
    block_timeout: Duration,
    snap_bytes: u32,
    promiscuous: bool,
    outgoing: bool,
    immediate: bool,
    filter: Option<Program>,
}

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A capability is missing.
    #[error(
        "{interface}: capturing needs CAP_NET_RAW, which this process lacks; run as root, or grant it with 'setcap'"
    )]
    Capability {
        /// The interface.
        interface: String,
    },
    /// Blocks that the kernel does not make.
    #[error(
        "{count} blocks of {bytes} B: a block is a power of two from {PAGE_BYTES} B to {BLOCK_BYTES_MAX} B, there are at least 2, and \
         they are less than 4 GiB; ask for others"
    )]
    Blocks {
        /// Blocks asked for.
        count: u32,
        /// Bytes of each.
        bytes: u32,
    },
    /// No memory for the blocks.
    #[error("{interface}: the kernel has no {bytes} B for the blocks ({source}); ask for less")]
    Memory {
        /// The interface.
        interface: String,
        /// Bytes of all blocks.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The filter cannot be made to see VLAN tags, which the kernel has taken out.
    #[error("{interface}: the filter does not do for a packet socket: {source}")]
    Filter {
        /// The interface.
        interface: String,
        /// What is in the way.
        source: InvalidProgram,
    },
    /// Anything else the kernel refused.
    #[error("{interface}: cannot {operation}: {source}")]
    System {
        /// The interface.
        interface: String,
        /// What was to be done.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl BlocksBuilder {
    /// Bytes of a block, a power of two from 4096 (default 1 MiB), and how many there are (default 64).
    #[must_use]
    pub fn blocks(mut self, bytes: u32, count: u32) -> Self {
        (self.block_bytes, self.block_count) = (bytes, count);
        self
    }

    /// How long a packet may wait in a block that is not full, in whole milliseconds (default 100 ms).
    #[must_use]
    pub fn block_timeout(mut self, timeout: Duration) -> Self {
        self.block_timeout = timeout;
        self
    }

    /// The most bytes of a packet that the kernel copies (default, and most: 262,144).
    #[must_use]
    pub fn snap(mut self, bytes: u32) -> Self {
        self.snap_bytes = bytes.clamp(1, SNAP_BYTES_MAX);
        self
    }

    /// Captures packets addressed to other hosts too (default false).
    #[must_use]
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Captures what the host sends, too (default false).
    #[must_use]
    pub fn outgoing(mut self, on: bool) -> Self {
        self.outgoing = on;
        self
    }

    /// Hands each packet over as soon as it is there, in a block of its own (default false). The blocks have as many bytes altogether as
    /// was asked for, or more, so that there are at least 128; each has room for the longest packet, as far as it is kept: say by
    /// [`BlocksBuilder::snap`] what is wanted, or a short one takes 128 KiB. `tp_freeze_q_cnt` is not counted then.
    #[must_use]
    pub fn immediate(mut self, on: bool) -> Self {
        self.immediate = on;
        self
    }

    /// Captures only packets that match, which the kernel decides before it copies (default: all).
    #[must_use]
    pub fn filter(mut self, filter: Option<&Program>) -> Self {
        self.filter = filter.cloned();
        self
    }

    /// Opens the capture, on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`CaptureError`] says what is in the way.
    pub fn open(self) -> Result<Blocks, CaptureError> {
        self.check()?;
        let system = |operation| {
            let interface = self.interface.clone();
            move |source| CaptureError::System { interface, operation, source }
        };
        let interface = Interface::named(&self.interface).map_err(|error| {
            InterfaceError::of(&self.interface, &error)
                .map_or_else(|| system("look it up")(error), Into::into)
        })?;
        interface.check()?;
        let capture = self.capture(&interface);
        let instructions = self.instructions()?;
        let lend = if self.immediate { PacketSocket::lending_single_packets } else { PacketSocket::lending };
        let (socket, blocks) =
            lend(&capture, &instructions).map_err(|error| self.refused(&capture, error))?;
        let promiscuous = self.promiscuous.then(|| Promiscuous::on(interface.index)).transpose();
        let shared = Shared {
            interface: self.interface.clone(),
            socket,
            snap_bytes: self.snap_bytes,
            packets: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            freezes: AtomicU64::new(0),
        };
        Ok(Blocks {
            blocks,
            shared: Arc::new(shared),
            inquiry: Inquiry::of(interface.index).map_err(system("look after it"))?,
            _promiscuous: promiscuous.map_err(system("make it promiscuous"))?,
            block_timeout: self.block_timeout,
        })
    }

    fn check(&self) -> Result<(), CaptureError> {
        let (bytes, count) = (self.block_bytes, self.block_count);
        let is_block = bytes.is_power_of_two() && (PAGE_BYTES..=BLOCK_BYTES_MAX).contains(&bytes);
        let fits = u64::from(bytes) * u64::from(count) < 4 << 30;
        if is_block && count >= 2 && fits { Ok(()) } else { Err(CaptureError::Blocks { count, bytes }) }
    }

    /// Blocks of single packets in place of those that were asked for: bytes of each, and how many.
    fn single_packet_blocks(&self, interface: &Interface) -> (u32, u32) {
        // What the host sends has not been cut into segments yet; what comes in may have been joined, or come from a host that is this one.
        let longest = JOINED_BYTES_MAX.max(interface.mtu_bytes) + LINK_BYTES_MAX;
        let block_bytes = (longest.min(self.snap_bytes) + SINGLE_FRONT_BYTES).next_power_of_two();
        let count = u64::from(self.block_bytes) * u64::from(self.block_count) / u64::from(block_bytes);
        (block_bytes, u32::try_from(count).unwrap_or(u32::MAX).max(SINGLE_COUNT_MIN))
    }

    fn refused(&self, capture: &Capture, source: io::Error) -> CaptureError {
        let interface = self.interface.clone();
        match source.raw_os_error() {
            Some(libc::EPERM) => CaptureError::Capability { interface },
            Some(libc::ENOMEM) => {
                let bytes = u64::from(capture.block_bytes) * u64::from(capture.block_count);
                CaptureError::Memory { interface, bytes, source }
            }
            _ => CaptureError::System { interface, operation: "open a packet socket on it", source },
        }
    }

    fn capture(&self, interface: &Interface) -> Capture {
        let (block_bytes, block_count) = match self.immediate {
            true => self.single_packet_blocks(interface),
            false => (self.block_bytes, self.block_count),
        };
        Capture {
            interface_index: interface.index,
            receives: true,
            share: None,
            fanout: None,
            outgoing: self.outgoing,
            hash: false,
            block_bytes,
            block_count,
            block_timeout: self.block_timeout,
        }
    }

    fn instructions(&self) -> Result<Vec<Instruction>, CaptureError> {
        let filter = of_the_wire(self.filter.as_ref(), &self.interface)?;
        Ok(instructions(filter.as_ref(), self.snap_bytes))
    }
}

/// A filter over frames as they are on the wire, for a socket that has them without their tags.
fn of_the_wire(filter: Option<&Program>, interface: &str) -> Result<Option<Program>, CaptureError> {
    let filter = filter.map(Program::for_packet_socket).transpose();
    filter.map_err(|source| CaptureError::Filter { interface: interface.to_owned(), source })
}

/// The filter, or one that takes everything; what it gives is how many bytes are kept.
fn instructions(filter: Option<&Program>, snap_bytes: u32) -> Vec<Instruction> {
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let everything = [Instruction { code: RETURN, jump_true: 0, jump_false: 0, constant: u32::MAX }];
    let instructions = filter.map_or(&everything[..], Program::instructions);
    let limited = instructions.iter().map(|&instruction| match instruction {
        Instruction { code: RETURN, constant, .. } => {
            Instruction { constant: constant.min(snap_bytes), ..instruction }
        }
        other => other,
    });
    limited.collect()
}

/// What the kernel counted for a capture since it was opened, under its names (`struct tpacket_stats_v3`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Packets that matched the filter, also those that were dropped then.
    pub tp_packets: u64,
    /// Packets dropped because no block was free.
    pub tp_drops: u64,
    /// How often the kernel came to a block that was not free.
    pub tp_freeze_q_cnt: u64,
}

/// How many blocks the kernel cannot write to now: they are away, or wait to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Those.
    pub used: u32,
    /// All.
    pub total: u32,
}

impl Fill {
    /// The part of all, from 0 to 1.
    pub fn ratio(&self) -> f64 {
        f64::from(self.used) / f64::from(self.total.max(1))
    }
}

/// A capture that hands out blocks.
#[derive(Debug)]
pub struct Blocks {
    blocks: OwnedBlocks,
    shared: Arc<Shared>,
    inquiry: Inquiry,
    _promiscuous: Option<Promiscuous>,
    block_timeout: Duration,
}

impl Blocks {
    /// Prepares to capture an interface: all its queues, in the order in which packets come.
    pub fn builder(interface: &str) -> BlocksBuilder {
        BlocksBuilder {
            interface: interface.to_owned(),
            block_bytes: 1 << 20,
            block_count: 64,
            block_timeout: Duration::from_millis(100),
            snap_bytes: SNAP_BYTES_MAX,
            promiscuous: false,
            outgoing: false,
            immediate: false,
            filter: None,
        }
    }

    /// The next block; `None` if there is none for so long, or a signal came.
    ///
    /// # Errors
    /// The interface is down ([`io::ErrorKind::NetworkDown`]) or gone ([`io::ErrorKind::NotConnected`]).
    pub fn next(&mut self, timeout: Duration) -> io::Result<Option<Block>> {
        if let Some(block) = self.blocks.take() {
            return Ok(Some(block));
        }
        let end = Instant::now().checked_add(timeout);
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            if !self.wait(left.min(LOOK))? {
                return Ok(self.blocks.take());
            }
            if let Some(block) = self.blocks.take() {
                return Ok(Some(block));
            }
        }
    }

    /// Waits; false if a signal came.
    fn wait(&self, timeout: Duration) -> io::Result<bool> {
        use crate::sys::poll::Wakeup;
        // The kernel calls a socket readable while the block before the one it writes to is not its own (`packet_poll`): one
        // that is away makes every poll return at once.
        if self.blocks.last_is_away() {
            sleep(timeout.min(GLANCE));
            return Ok(true);
        }
        let (wakeup, broken) = wait_readable_or_broken(self.shared.socket.as_fd(), timeout)?;
        if broken || wakeup == Wakeup::TimedOut {
            self.check()?;
        }
        Ok(wakeup != Wakeup::Interrupted)
    }

    /// Whether the interface is still there and up.
    ///
    /// # Errors
    /// As [`Blocks::next`].
    pub fn check(&self) -> io::Result<()> {
        self.shared.socket.forget_error()?;
        let (kind, errno) = match self.inquiry.condition() {
            Condition::Up => return Ok(()),
            Condition::Down => (io::ErrorKind::NetworkDown, libc::ENETDOWN),
            Condition::Gone => (io::ErrorKind::NotConnected, libc::ENXIO),
        };
        Err(io::Error::new(kind, io::Error::from_raw_os_error(errno)))
    }

    /// Ends the capture: nothing more comes in. What is there already comes from [`Blocks::next`]; a block that is not full within
    /// twice the time that is set for it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn stop(&mut self) -> io::Result<()> {
        self.shared.socket.deafen()
    }

    /// How long a packet may wait in a block that is not full.
    pub fn block_timeout(&self) -> Duration {
        self.block_timeout
    }

    /// What the kernel counted so far.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn totals(&mut self) -> io::Result<Totals> {
        self.shared.totals()
    }

    /// What can be done with the capture from elsewhere while blocks are taken here.
    pub fn control(&self) -> Control {
        Control { shared: Arc::clone(&self.shared) }
    }

    /// How full the blocks are.
    pub fn fill(&self) -> Fill {
        Fill { used: self.blocks.in_use(), total: self.blocks.count() }
    }

    /// What is known of copies between the wire and the blocks.
    pub fn evidence(&self) -> Evidence {
        Evidence::Copied(Cause::PacketRing)
    }
}

impl AsFd for Blocks {
    /// Readable when there is a block, and while the block before the next is away.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

/// What a capture shares with its controls.
#[derive(Debug)]
struct Shared {
    interface: String,
    socket: PacketSocket,
    snap_bytes: u32,
    // Sums of what the kernel told each time it was asked. Nothing else depends on them, so their order does not matter.
    packets: AtomicU64,
    drops: AtomicU64,
    freezes: AtomicU64,
}

impl Shared {
    /// Whoever asks, and in whatever order: each answer of the kernel, which starts anew each time, is added once.
    fn totals(&self) -> io::Result<Totals> {
        let since = self.socket.counts()?;
        let add = |sum: &AtomicU64, more: u32| {
            sum.fetch_add(more.into(), Ordering::Relaxed).wrapping_add(more.into())
        };
        Ok(Totals {
            tp_packets: add(&self.packets, since.packets),
            tp_drops: add(&self.drops, since.drops),
            tp_freeze_q_cnt: add(&self.freezes, since.freezes),
        })
    }
}

/// A capture's filter and counts, for others than the one who takes its blocks: another thread, or a signal handler. It keeps the
/// capture's socket open.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

impl Control {
    /// Has the kernel decide by another filter from now on; `None` takes everything. It replaces the old one at once: no packet goes
    /// by neither. What the old one let through and is in blocks, also in the one that the kernel writes to, stays there.
    ///
    /// # Errors
    /// [`CaptureError::Filter`] and [`CaptureError::System`]; the old filter stays.
    pub fn set_filter(&self, filter: Option<&Program>) -> Result<(), CaptureError> {
        self.replace_filter(of_the_wire(filter, &self.shared.interface)?.as_ref())
    }

    /// As [`Control::set_filter`], with a filter for packet sockets, which have a frame without its VLAN tag and the tag beside it
    /// (`SKF_AD_VLAN_TAG`): what libpcap compiles for its live captures is one.
    ///
    /// # Errors
    /// [`CaptureError::System`]; the old filter stays.
    pub fn set_socket_filter(&self, filter: Option<&Program>) -> Result<(), CaptureError> {
        self.replace_filter(filter)
    }

    fn replace_filter(&self, filter: Option<&Program>) -> Result<(), CaptureError> {
        let Shared { interface, socket, snap_bytes, .. } = &*self.shared;
        socket.filter(&instructions(filter, *snap_bytes)).map_err(|source| CaptureError::System {
            interface: interface.clone(),
            operation: "set the filter",
            source,
        })
    }

    /// What the kernel counted so far: one system call, no lock and no allocation, so a signal handler may ask.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn totals(&self) -> io::Result<Totals> {
        self.shared.totals()
    }
}

impl AsFd for Control {
    /// The capture's, as [`Blocks`] has it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}
