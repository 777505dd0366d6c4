//! Settings and opening of a capture.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nocopy_proto::filter::{Instruction, Program};
use nocopy_proto::pcapng::SNAP_BYTES_MAX;

use super::control::{CaptureState, limited_instructions, packet_socket_filter};
use super::open_error::{BLOCK_BYTES_MAX, OpenError, PAGE_BYTES};
use super::{Capture, NonblockingCapture, ReceivedCounts};
use crate::engine::wait::{Wait, WakeupCoalescer};
use crate::events;
use crate::facts::mode::Mode;
use crate::sys::interface::{Interface, InterfaceError, InterfaceQuery, PromiscuousGuard};
use crate::sys::packet::{self, PacketSocket, SINGLE_FRONT_BYTES};

/// The longest packet that is joined or not yet segmented, as most hosts are set: more than an IP header can
/// say (BIG TCP).
const JOINED_BYTES_MAX: u32 = 128 << 10;
/// Blocks longer than this are multiples of it, others powers of two: multiples of every page size.
const LONG_BLOCK_BYTES: u32 = 64 << 10;
const LINK_BYTES_MAX: u32 = 14 + 2 * 4 + 4;

/// The least number of single-packet blocks, so that a burst finds room.
const SINGLE_COUNT_MIN: u32 = 128;

/// Settings for a [`Capture`].
///
/// ```
/// use nocopy::{Capture, capture::OpenError};
/// use std::time::Duration;
/// let builder = Capture::builder("absent0")
///     .blocks(1 << 20, 128) // 128 MiB
///     .block_timeout(Duration::from_millis(10)) // a packet waits no longer for company
///     .snap(96) // headers
///     .outgoing(true) // what the host sends, too
///     .promiscuous(true);
/// assert!(matches!(builder.clone().open(), Err(OpenError::Interface(_)))); // there is no such interface
/// let at_once = builder.immediate(true); // a block for each packet, without delay
/// assert!(at_once.open().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "settings alone capture nothing"]
pub struct Builder {
    interface: String,
    block_bytes: u32,
    block_count: u32,
    block_timeout: Duration,
    snap_bytes: u32,
    promiscuous: bool,
    outgoing: bool,
    immediate: bool,
    filter: Option<Program>,
    wait: Wait,
}

impl Builder {
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            block_bytes: 1 << 20,
            block_count: 64,
            block_timeout: Duration::from_millis(100),
            snap_bytes: SNAP_BYTES_MAX,
            promiscuous: false,
            outgoing: false,
            immediate: false,
            filter: None,
            wait: Wait::Interrupt,
        }
    }

    /// Bytes of a block, a power of two from 4096 (default 1 MiB), and the number of blocks (default 64).
    pub fn blocks(mut self, bytes: u32, count: u32) -> Self {
        (self.block_bytes, self.block_count) = (bytes, count);
        self
    }

    /// How long a packet may wait in a block that is not full, in whole milliseconds (default 100 ms).
    pub fn block_timeout(mut self, timeout: Duration) -> Self {
        self.block_timeout = timeout;
        self
    }

    /// How many bytes of a packet the kernel copies at most (default, and largest value: 262,144).
    pub fn snap(mut self, bytes: u32) -> Self {
        self.snap_bytes = bytes.clamp(1, SNAP_BYTES_MAX);
        self
    }

    /// Captures packets addressed to other hosts too (default false).
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Captures packets that the host sends, too (default false).
    pub fn outgoing(mut self, on: bool) -> Self {
        self.outgoing = on;
        self
    }

    /// Delivers each packet at once, in a separate block (default false). The blocks have at least as many
    /// bytes in total as [`blocks`](Self::blocks) asks for, and there are at least 128. Each has room for the
    /// longest packet, 128 KiB unless [`snap`](Self::snap) is less. With this setting `tp_freeze_q_cnt` is
    /// not counted.
    pub fn immediate(mut self, on: bool) -> Self {
        self.immediate = on;
        self
    }

    /// Captures only packets that match; the kernel decides that before it copies (default: all).
    pub fn filter(mut self, filter: Option<&Program>) -> Self {
        self.filter = filter.cloned();
        self
    }

    /// How to wait for blocks (default: sleeping, [`Wait::Interrupt`]). With every setting, the kernel hands
    /// a block over only when it is full or after the [`block_timeout`](Self::block_timeout): spinning saves
    /// the wake-up, not that delay; [`immediate`](Self::immediate) avoids the delay.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Opens the capture, on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(self) -> Result<Capture, OpenError> {
        self.check_blocks()?;
        let system = |operation| {
            let interface = self.interface.clone();
            move |source| OpenError::System { interface, operation, source }
        };
        let interface = Interface::look_up(&self.interface).map_err(|error| {
            InterfaceError::from_refusal(&self.interface, &error)
                .map_or_else(|| system("look it up")(error), Into::into)
        })?;
        interface.check_usable()?;
        let capture = self.socket_settings(&interface);
        let instructions = self.filter_instructions()?;
        let lend = if self.immediate {
            PacketSocket::new_with_owned_packets
        } else {
            PacketSocket::new_with_owned_blocks
        };
        let (socket, blocks) =
            lend(&capture, &instructions).map_err(|error| self.refusal_error(&capture, error))?;
        let promiscuous = self.promiscuous.then(|| PromiscuousGuard::turn_on(interface.index)).transpose();
        let capture = NonblockingCapture {
            blocks,
            shared: Arc::new(self.capture_state(socket)),
            query: InterfaceQuery::of(interface.index).map_err(system("look after it"))?,
            _promiscuous: promiscuous.map_err(system("make it promiscuous"))?,
            wait: self.wait,
            coalescer: WakeupCoalescer::default(),
            received: ReceivedCounts::default(),
        };
        events::mode_taken(capture.shared.subject(), Mode::PacketRing, None, &[]);
        Ok(Capture(capture))
    }

    fn capture_state(&self, socket: PacketSocket) -> CaptureState {
        CaptureState::new(self.interface.clone(), socket, self.snap_bytes, self.filter.is_some())
    }

    fn check_blocks(&self) -> Result<(), OpenError> {
        let (bytes, count) = (self.block_bytes, self.block_count);
        let is_block = bytes.is_power_of_two() && (PAGE_BYTES..=BLOCK_BYTES_MAX).contains(&bytes);
        let fits = u64::from(bytes) * u64::from(count) < 4 << 30;
        if is_block && count >= 2 && fits { Ok(()) } else { Err(OpenError::Blocks { count, bytes }) }
    }

    /// The single-packet blocks that replace the blocks asked for: bytes of each, and how many.
    fn single_packet_blocks(&self, interface: &Interface) -> (u32, u32) {
        // Outgoing packets are not yet segmented; incoming ones may have been joined, or come unsegmented
        // from this same host.
        let longest = JOINED_BYTES_MAX.max(interface.mtu_bytes) + LINK_BYTES_MAX;
        let block_bytes = match longest.min(self.snap_bytes) + SINGLE_FRONT_BYTES {
            short @ ..LONG_BLOCK_BYTES => short.next_power_of_two(),
            long => long.next_multiple_of(LONG_BLOCK_BYTES),
        };
        let count = u64::from(self.block_bytes) * u64::from(self.block_count) / u64::from(block_bytes);
        (block_bytes, u32::try_from(count).unwrap_or(u32::MAX).max(SINGLE_COUNT_MIN))
    }

    fn refusal_error(&self, capture: &packet::PacketSocketSettings, source: io::Error) -> OpenError {
        let interface = self.interface.clone();
        match source.raw_os_error() {
            Some(libc::EPERM) => OpenError::Capability { interface },
            Some(libc::ENOMEM) => {
                let bytes = u64::from(capture.block_bytes) * u64::from(capture.block_count);
                OpenError::Memory { interface, bytes, source }
            }
            _ => OpenError::System { interface, operation: "open a packet socket on it", source },
        }
    }

    fn socket_settings(&self, interface: &Interface) -> packet::PacketSocketSettings {
        let (block_bytes, block_count) = match self.immediate {
            true => self.single_packet_blocks(interface),
            false => (self.block_bytes, self.block_count),
        };
        packet::PacketSocketSettings {
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

    fn filter_instructions(&self) -> Result<Vec<Instruction>, OpenError> {
        let filter = packet_socket_filter(self.filter.as_ref(), &self.interface)?;
        Ok(limited_instructions(filter.as_ref(), self.snap_bytes))
    }
}
