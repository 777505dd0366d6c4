//! Passive capture of a whole interface, in owned blocks of packets.
//!
//! The host keeps its traffic. The kernel copies each packet once, into a block of memory that it shares with
//! the program, and hands over whole blocks: there is no call and no copy per packet. A [`Block`] can go to
//! any thread, and returns to the kernel when it is dropped. While the program holds every block, arriving
//! packets are dropped and counted.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut capture = nocopy::Capture::open("eth0")?;
//! while let Some(mut block) = capture.receive()? {
//!     for packet in block.packets() {
//!         println!("{} bytes at {}", packet.original_bytes, packet.time_ns);
//!     }
//! }
//! # Ok(()) }
//! ```

mod builder;
pub(crate) mod control;
pub(crate) mod disk;
mod open_error;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::counter::Counter;
#[cfg(feature = "tokio")]
use crate::engine::asynchronous::AsyncReceiver;
use crate::engine::half::{blocking_half, receiver_half};
use crate::engine::wait::{self, Wait, WaitSource, WakeupCoalescer};
use crate::events;
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::{Explanation, FilterPlace};
use crate::facts::mode::Mode;
use crate::stats::Stats;
use crate::sys::interface::{InterfaceQuery, LinkState, PromiscuousGuard};
use crate::sys::packet::OwnedBlocks;
pub use crate::sys::packet::{Block, Captured};
use crate::sys::poll::{Wakeup, wait_readable_or_broken};
pub use builder::Builder;
use control::{BlockUsage, CaptureState, CaptureTotals, Control};
pub use open_error::OpenError;

/// How long to sleep instead of using poll(2), which returns at once while the program holds a block that the
/// kernel has filled.
const GLANCE: Duration = Duration::from_millis(1);

/// How often a waiting receiver checks the interface: poll(2) does not report that it was removed.
const LOOK: Duration = Duration::from_millis(100);

/// The assumed bytes of a packet in a block, until some have arrived.
const PACKET_BYTES_ASSUMED: u64 = 2048;

/// A capture of an interface; see the [module](self).
#[derive(Debug)]
pub struct Capture(NonblockingCapture);

blocking_half!(Capture, NonblockingCapture);

impl Capture {
    /// Captures an interface with default settings: all its queues, packets in the order of their arrival.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        Self::builder(interface).open()
    }

    /// Settings for a capture of an interface.
    pub fn builder(interface: &str) -> Builder {
        Builder::new(interface)
    }

    /// Waits for the next block, as set by [`Builder::wait`]. `None` if a signal ended the wait.
    ///
    /// # Errors
    /// The interface is down ([`io::ErrorKind::NetworkDown`]) or was removed
    /// ([`io::ErrorKind::NotConnected`]).
    pub fn receive(&mut self) -> io::Result<Option<Block>> {
        self.receive_until(None)
    }

    /// Waits for the next block for `timeout` at most. `None` if there was none, or a signal ended the wait.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<Block>> {
        self.receive_until(Instant::now().checked_add(timeout))
    }

    fn receive_until(&mut self, deadline: Option<Instant>) -> io::Result<Option<Block>> {
        let half = &mut self.0;
        if !half.blocks.is_ready() {
            wait::wait(half, half.wait, deadline)?;
        }
        half.try_receive()
    }

    /// Changes how to wait, from the next wait on.
    pub fn set_wait(&mut self, wait: Wait) {
        self.0.wait = wait;
    }

    /// The capture for a tokio program, whose `receive` is a future: it resolves to a block.
    ///
    /// # Errors
    /// No tokio reactor runs here, or no descriptor is left.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> io::Result<AsyncReceiver<NonblockingCapture>> {
        AsyncReceiver::new(self.0)
    }
}

/// What never waits of a [`Capture`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingCapture {
    blocks: OwnedBlocks,
    shared: Arc<CaptureState>,
    query: InterfaceQuery,
    _promiscuous: Option<PromiscuousGuard>,
    wait: Wait,
    coalescer: WakeupCoalescer,
    received: ReceivedCounts,
}

#[derive(Debug, Clone, Copy, Default)]
struct ReceivedCounts {
    blocks: u64,
    packets: u64,
    bytes: u64,
}

impl NonblockingCapture {
    /// The next block if there is one, without waiting.
    ///
    /// # Errors
    /// None; only [`Capture::receive`] and [`arm`](Self::arm) check the interface.
    pub fn try_receive(&mut self) -> io::Result<Option<Block>> {
        let Some((block, bytes)) = self.blocks.take_block() else { return Ok(None) };
        if events::ENABLED && self.received.bytes == 0 && bytes > 0 {
            events::first_copy(self.shared.subject(), Cause::PacketRing);
        }
        self.received.blocks += 1;
        self.received.packets += u64::from(block.packet_count());
        self.received.bytes += u64::from(bytes);
        Ok(Some(block))
    }

    /// Gives a block back to the kernel, as dropping it does.
    pub fn recycle(&mut self, block: Block) {
        drop(block);
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]) until it is readable, and returns whether there is a
    /// block already. Call it before each such wait.
    ///
    /// # Errors
    /// As [`Capture::receive`].
    pub fn arm(&mut self) -> io::Result<bool> {
        if !self.blocks.is_ready() {
            Self::check_interface(self)?;
        }
        Ok(self.blocks.is_ready())
    }

    /// Bytes of the received blocks, including the headers that the kernel writes before packets. All were
    /// copied into the ring.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(Evidence::Copied(Cause::PacketRing), self.received.packets, self.received.bytes);
        ledger
    }

    /// All counters: `moved` and `bytes` count blocks. The kernel's counters are `tp_packets`, all packets
    /// that matched the filter, including those then dropped; `tp_drops`, those dropped because no block was
    /// free; `tp_freeze_q_cnt`, how often the kernel reached a block that was not free. They are
    /// absent if it refuses to return them.
    pub fn stats(&self) -> Stats {
        let counter = |name: &'static str, meaning, value| Counter { name: name.into(), meaning, value };
        let received = counter("packets", "Packets in the blocks that were received.", self.received.packets);
        let stats = Stats::with_moved(self.received.blocks, self.received.bytes).with_counters([received]);
        let Ok(CaptureTotals { tp_packets, tp_drops, tp_freeze_q_cnt }) = self.shared.totals() else {
            return stats;
        };
        stats
            .with_dropped([counter("tp_drops", "Packets dropped because no block was free.", tp_drops)])
            .with_counters([
                counter("tp_packets", "Packets that matched the filter, also dropped ones.", tp_packets),
                counter("tp_freeze_q_cnt", "How often the next block was not free.", tp_freeze_q_cnt),
            ])
    }

    /// How packets are received. A capture always uses a packet ring, without comparing modes; for that, open
    /// a port for [`Purpose::Capture`](crate::port::Purpose::Capture).
    ///
    /// ```no_run
    /// let capture = nocopy::Capture::open("eth0")?;
    /// println!("{}", capture.explain());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self) -> Explanation {
        let evidence = Evidence::Copied(Cause::PacketRing);
        let filter = self.shared.has_filter().then_some(FilterPlace::Socket);
        let filter_line = match filter {
            Some(_) => "at the socket: packets that do not match are not copied",
            None => "none: every packet is copied",
        };
        let (count, bytes) = (self.blocks.block_count(), self.blocks.total_bytes());
        let (interface, mode) = (self.shared.interface(), Mode::PacketRing);
        let lines = format!(
            "{interface}: {mode}, {evidence}; not compared, since a capture has only this mode\n  \
             host     also gets every packet: a capture is passive\n  \
             filter   {filter_line}\n  \
             memory   {count} blocks, {bytes} B in all"
        );
        let mut explanation = Explanation::from_choice(&lines, evidence);
        explanation.filter = filter;
        explanation
    }

    fn check_interface(&self) -> io::Result<()> {
        self.shared.socket.clear_error()?;
        let (kind, errno) = match self.query.link_state() {
            LinkState::Up => return Ok(()),
            LinkState::Down => (io::ErrorKind::NetworkDown, libc::ENETDOWN),
            LinkState::Gone => (io::ErrorKind::NotConnected, libc::ENXIO),
        };
        Err(io::Error::new(kind, io::Error::from_raw_os_error(errno)))
    }

    /// Ends the capture: no further packets are captured. Packets already captured can be received; those in
    /// a block that is not full, within twice its timeout.
    #[doc(hidden)]
    pub fn stop(&mut self) -> io::Result<()> {
        self.shared.socket.reject_all()
    }

    /// A handle for other threads, with the filter and the counts.
    #[doc(hidden)]
    pub fn control(&self) -> Control {
        Control { shared: Arc::clone(&self.shared) }
    }

    /// How many blocks are in use.
    #[doc(hidden)]
    pub fn fill(&self) -> BlockUsage {
        BlockUsage { used: self.blocks.in_use_count(), total: self.blocks.block_count() }
    }
}

receiver_half!(NonblockingCapture, Option<Block>);

impl AsFd for NonblockingCapture {
    /// Readable when there is a block, and while the program holds the block before the next one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

impl WaitSource for NonblockingCapture {
    fn is_ready(&mut self) -> bool {
        self.blocks.is_ready()
    }

    fn arm(&mut self) -> io::Result<bool> {
        Ok(self.blocks.is_ready())
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn check_usable(&mut self) -> io::Result<()> {
        Self::check_interface(self)
    }

    fn sleep_max(&self) -> Duration {
        LOOK
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        // The kernel reports a socket as readable while the block before the one it writes to is not its own
        // (`packet_poll`): a block that the program holds makes every poll return at once.
        if self.blocks.is_previous_block_held() {
            sleep(timeout.min(GLANCE));
            return Ok(Wakeup::TimedOut);
        }
        let (wakeup, broken) = wait_readable_or_broken(self.shared.socket.as_fd(), timeout)?;
        if broken || wakeup == Wakeup::TimedOut {
            Self::check_interface(self)?;
        }
        Ok(wakeup)
    }

    /// Packets received, and room for more of their average length.
    fn read_count_and_room(&self) -> (u32, u32) {
        let ReceivedCounts { packets, bytes, .. } = self.received;
        let packet_bytes = bytes.checked_div(packets).unwrap_or(PACKET_BYTES_ASSUMED).max(1);
        let room = if self.blocks.holds_single_packets() {
            self.blocks.block_count().into()
        } else {
            self.blocks.total_bytes() / packet_bytes
        };
        (packets as u32, u32::try_from(room).unwrap_or(u32::MAX))
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.coalescer
    }
}
