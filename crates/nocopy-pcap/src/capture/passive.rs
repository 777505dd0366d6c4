//! Captures that leave the host its traffic: the kernel's blocks, read in place.
//!
//! This behaves like libpcap 1.10.3 with such blocks (its pcap-linux.c): calls wait and return at the same
//! moments, errors for a removed interface are the same, and packets that passed an old filter are run
//! through the new one.

use std::ffi::{CStr, CString};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use nocopy::Capture;
use nocopy::capture::OpenError;
use nocopy::integration::{self, BlockReader};
use nocopy_proto::filter::VlanTag;

use super::filter_slot::{FilterSlot, FilterVersion, PlacedFilter};
use super::{
    Counts, Direction, Filter, Packet, PlannedSleep, Refusal, Settings, SleepResult, StopRequest,
    WaitOptions, WaitResult,
};
use crate::abi::SNAP_BYTES_MAX;
use crate::report::FilterLocation;
use crate::text;

use super::interface::{self, InterfaceDrops, InterfaceKind};

/// Bytes of a block: as many as libpcap's.
const BLOCK_BYTES: u32 = SNAP_BYTES_MAX as u32;

/// Default bytes of all blocks (libpcap's default).
const BUFFER_BYTES: u32 = 2 << 20;

/// "No timeout", for the kernel: the longest time that packets wait in a block that is not full.
const TIMEOUT_MAX: Duration = Duration::from_millis(u32::MAX as u64);

/// The longest sleep while nothing arrives.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The reading side of a capture, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct PassiveCapture {
    blocks: Capture,
    is_immediate: bool,
    reading: Option<BlockReader>,
    /// The filter that this library runs, in addition to the kernel's.
    filter: Option<UserSpaceFilter>,
    /// The change of the settings from which `filter` comes.
    version: FilterVersion,
    shared: Arc<SharedState>,
}

/// A filter that this library runs, not the kernel.
#[derive(Debug)]
struct UserSpaceFilter {
    filter: Filter,
    /// The number of blocks that may hold packets of the previous filter, for which this one runs; `None`:
    /// all blocks, because the kernel runs no filter.
    blocks: Option<u32>,
}

/// State shared by both sides.
#[derive(Debug)]
struct SharedState {
    control: integration::Control,
    device: CString,
    is_loopback: bool,
    /// A [`Direction`], as a number.
    direction: AtomicU8,
    /// Whether the interface went down, and was not seen up or removed since.
    is_down: AtomicBool,
    filter_slot: FilterSlot,
    /// Packets in blocks that contradict themselves.
    malformed: AtomicU64,
    drops: Option<InterfaceDrops>,
}

impl PassiveCapture {
    pub(super) fn open(device: &CStr, settings: &Settings) -> Result<(Self, PassiveControl), Refusal> {
        let name = device.to_str().map_err(|_| Refusal("the device's name is not text".into()))?;
        let kind = InterfaceKind::query_for_capture(device)?;
        let blocks = open_blocks(name, settings).map_err(|error| Refusal(error.to_string()))?;
        let shared = Arc::new(SharedState {
            control: blocks.control(),
            device: device.to_owned(),
            is_loopback: kind.is_loopback,
            direction: AtomicU8::new(Direction::Both as u8),
            is_down: AtomicBool::new(false),
            filter_slot: FilterSlot::default(),
            malformed: AtomicU64::new(0),
            drops: settings.promiscuous.then(|| InterfaceDrops::new(name)),
        });
        let control = PassiveControl { shared: Arc::clone(&shared) };
        let is_immediate = settings.immediate;
        let version = FilterVersion::default();
        Ok((Self { blocks, is_immediate, reading: None, filter: None, version, shared }, control))
    }

    /// Whether packets of a block are left; takes the next block if there are none.
    #[inline]
    pub(super) fn ensure_packets_claimed(&mut self) -> bool {
        if self.reading.as_ref().is_some_and(|block| block.packets_left() > 0) {
            return true;
        }
        self.next_block()
    }

    /// Returns the block and takes the next one, if the kernel has handed it over.
    #[cold]
    fn next_block(&mut self) -> bool {
        self.return_block();
        // An interface that is down or removed is no error here: `advance_wait` reports it in the words of
        // libpcap.
        self.reading = self.blocks.try_receive().ok().flatten().map(|block| block.into_reader());
        self.reading.is_some()
    }

    /// Returns a block that was read to its end.
    fn return_block(&mut self) {
        if self.reading.take().is_some()
            && let Some(UserSpaceFilter { blocks: Some(blocks), .. }) = &mut self.filter
        {
            // No underflow: it begins at 2 at least, and the filter is removed at 0.
            *blocks -= 1;
            if *blocks == 0 {
                self.filter = None;
            }
        }
    }

    /// The next packet in hand that the program wants; `None` if there is none, or a stop is requested.
    #[inline]
    pub(super) fn next_packet(&mut self, stop: &StopRequest) -> Option<Packet<'_>> {
        while !stop.is_requested() {
            if self.shared.filter_slot.has_changed_since(self.version) {
                self.update_filter();
            }
            let block = self.reading.as_mut()?;
            // `pause_delivery` gives the block back behind its last packet.
            let outlives_pause = block.packets_left() > 1;
            let Some(captured) = block.next_packet() else {
                self.shared.malformed.fetch_add(block.malformed_count().into(), Ordering::Relaxed);
                return None;
            };
            let vlan = captured.vlan.map(|tag| VlanTag { protocol: tag.protocol, control: tag.control });
            let matches = self.filter.as_ref().is_none_or(|user| {
                user.filter.matches_without_vlan_tag(captured.bytes, captured.original_bytes, vlan)
            });
            if matches && self.shared.matches_direction(captured.outgoing) {
                return Some(Packet {
                    // SAFETY: they lie in the block, which is not given back while this borrows the reader.
                    bytes: unsafe {
                        std::slice::from_raw_parts(captured.bytes.as_ptr(), captured.bytes.len())
                    },
                    original_bytes: captured.original_bytes,
                    time_ns: captured.time_ns,
                    outlives_pause,
                });
            }
        }
        None
    }

    /// A block that was read to its end is returned: while it is held the descriptor stays readable.
    #[inline]
    pub(super) fn pause_delivery(&mut self) {
        if self.reading.as_ref().is_some_and(|block| block.packets_left() == 0) {
            self.return_block();
        }
    }

    /// Takes over a filter that was set.
    #[cold]
    fn update_filter(&mut self) {
        let Some(PlacedFilter { filter, place }) = self.shared.filter_slot.read(&mut self.version) else {
            return;
        };
        let blocks = match place {
            // Those that wait or are held, the one that the kernel writes to, and perhaps one that it has
            // reached meanwhile.
            FilterLocation::UserSpace { .. } => None,
            // In immediate mode there may be one that is not written yet in front of others that are.
            FilterLocation::Socket | FilterLocation::Xdp => {
                let fill = self.blocks.fill();
                Some(if self.is_immediate { fill.total } else { fill.used } + 2)
            }
        };
        self.filter = Some(UserSpaceFilter { filter, blocks });
    }

    /// Waits for a block, as libpcap's `pcap_wait_for_frames_mmap` does.
    pub(super) fn advance_wait(
        &mut self,
        waiting: WaitOptions<'_>,
        slept: Option<SleepResult>,
    ) -> WaitResult {
        match slept.map(|slept| self.finish_sleep(waiting, slept)) {
            Some(Some(waited)) => waited,
            // The first time, or nothing has happened.
            None | Some(None) => WaitResult::Sleep(self.plan_sleep(waiting)),
        }
    }

    fn plan_sleep(&self, waiting: WaitOptions<'_>) -> PlannedSleep {
        let is_down = self.shared.is_down.load(Ordering::Relaxed);
        // The kernel hands a block over when the timeout is up, if there is anything in it, and in immediate
        // mode libpcap has no other timeout. While the interface is down the kernel does not report its
        // removal, so that is polled.
        let timeout = match (waiting.nonblocking, is_down) {
            (true, _) => Duration::ZERO,
            (false, true) => Duration::from_millis(1),
            (false, false) => SLEEP_MAX,
        };
        PlannedSleep::new(Some(self.shared.control.as_fd()), waiting.stop, timeout)
    }

    /// What a wait came to; `None`: it goes on.
    fn finish_sleep(&self, waiting: WaitOptions<'_>, slept: SleepResult) -> Option<WaitResult> {
        match self.has_packets(waiting.stop, slept) {
            Ok(true) => return Some(WaitResult::Check),
            Ok(false) => {}
            Err(words) => return Some(WaitResult::Failed(words)),
        }
        if !waiting.nonblocking && waiting.stop.take_request() {
            return Some(WaitResult::Stopped);
        }
        if self.shared.is_down.load(Ordering::Relaxed)
            && let Err(words) = self.check_interface_up()
        {
            return Some(WaitResult::Failed(words));
        }
        waiting.nonblocking.then_some(WaitResult::Check)
    }

    /// Whether there are packets to read.
    fn has_packets(&self, stop: &StopRequest, slept: SleepResult) -> Result<bool, String> {
        let is_event =
            slept.is_readable().map_err(|error| text::errno_text("can't poll on packet socket", &error))?;
        let is_readable = is_event && slept.events == libc::POLLIN;
        // With packets to read, the wish to stop is looked at behind them: the next wait still has to end by
        // it.
        if !is_readable && slept.woke_for_stop() {
            stop.clear_wakeups();
        }
        if is_event && !is_readable {
            self.check_socket_event(slept.events)?;
        }
        Ok(is_readable)
    }

    /// The error that a socket event other than packets stands for.
    fn check_socket_event(&self, events: i16) -> Result<(), String> {
        if events & libc::POLLNVAL != 0 {
            return Err("Invalid polling request on packet socket".into());
        }
        if events & (libc::POLLHUP | libc::POLLRDHUP) != 0 {
            return Err("Hangup on packet socket".into());
        }
        if events & libc::POLLERR == 0 {
            return Ok(());
        }
        match interface::take_socket_error(self.shared.control.as_fd()) {
            error if error.raw_os_error() == Some(libc::ENETDOWN) => {
                self.shared.is_down.store(true, Ordering::Relaxed);
                Ok(())
            }
            error if error.raw_os_error() == Some(0) => {
                Err("Error condition on packet socket: Reported error was 0".into())
            }
            error => Err(text::errno_text("Error condition on packet socket", &error)),
        }
    }

    /// Checks whether an interface that was down is up or removed.
    fn check_interface_up(&self) -> Result<(), String> {
        if interface::is_interface_up(self.shared.control.as_fd(), &self.shared.device)? {
            self.shared.is_down.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Closes it in the child of a fork.
    pub(super) fn close_in_forked_child(self) {
        if let Some(block) = self.reading {
            block.disown();
        }
    }
}

/// Opens the blocks; fewer than requested if the kernel has too little memory.
fn open_blocks(name: &str, settings: &Settings) -> Result<Capture, OpenError> {
    let buffer_bytes = u32::try_from(settings.buffer_bytes).ok().filter(|&bytes| bytes > 0);
    let mut count = buffer_bytes.unwrap_or(BUFFER_BYTES).div_ceil(BLOCK_BYTES).max(2);
    let timeout = u64::try_from(settings.timeout_ms).unwrap_or(0);
    let timeout = if timeout == 0 { TIMEOUT_MAX } else { Duration::from_millis(timeout) };
    let mut refused_bytes = None;
    loop {
        let builder = Capture::builder(name).blocks(BLOCK_BYTES, count).block_timeout(timeout).outgoing(true);
        let builder = builder.immediate(settings.immediate);
        let builder = builder.snap(settings.snap_bytes().cast_unsigned()).promiscuous(settings.promiscuous);
        match builder.open() {
            // The builder never asks for less than its minimum.
            Err(OpenError::Memory { bytes, .. }) if count > 2 && refused_bytes != Some(bytes) => {
                refused_bytes = Some(bytes);
                // Ends: `count` is above 2 here, and falls by 1 at least, but not below 2.
                count -= (count / 20).max(1);
            }
            opened => return opened,
        }
    }
}

impl SharedState {
    /// Whether a packet has the direction that the program asked for. Packets that the loopback interface
    /// sends, it also receives.
    fn matches_direction(&self, outgoing: bool) -> bool {
        // Relaxed: it guards no other memory.
        let direction = self.direction.load(Ordering::Relaxed);
        match outgoing {
            true => !self.is_loopback && direction != Direction::In as u8,
            false => direction != Direction::Out as u8,
        }
    }
}

/// The part that any thread may use.
#[derive(Debug)]
pub(crate) struct PassiveControl {
    shared: Arc<SharedState>,
}

impl PassiveControl {
    /// Sets the filter in the kernel or, if the kernel refuses it, in this library.
    pub(super) fn set_filter(&self, filter: Filter) -> Result<FilterLocation, String> {
        self.shared.filter_slot.set(filter, |filter, _| match self.set_kernel_filter(filter) {
            Ok(()) => Ok(FilterLocation::Socket),
            Err(refusal) => {
                // In libpcap's words; `eprintln!` would panic if standard error is broken.
                let _ = writeln!(io::stderr(), "Warning: {}", kernel_filter_warning(&refusal));
                self.shared.control.set_socket_filter(None).map_err(|error| match error {
                    OpenError::System { source, .. } => {
                        text::errno_text("can't remove kernel filter", &source)
                    }
                    other => format!("can't remove kernel filter: {other}"),
                })?;
                Ok(FilterLocation::UserSpace { why: refusal.to_string() })
            }
        })
    }

    fn set_kernel_filter(&self, filter: &Filter) -> Result<(), OpenError> {
        if filter.long.is_none() {
            return self.shared.control.set_socket_filter(Some(&filter.program));
        }
        Err(OpenError::System {
            interface: self.shared.device.to_string_lossy().into_owned(),
            operation: "set a filter of so many instructions",
            source: io::Error::from_raw_os_error(libc::EINVAL), // what the kernel would say
        })
    }

    pub(super) fn set_direction(&self, direction: Direction) {
        self.shared.direction.store(direction as u8, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Result<Counts, String> {
        let totals = self.shared.control.totals();
        let totals =
            totals.map_err(|error| text::errno_text("failed to get statistics from socket", &error))?;
        Ok(Counts {
            received: totals.tp_packets,
            dropped: totals.tp_drops + self.shared.malformed.load(Ordering::Relaxed),
            interface_dropped: self.shared.drops.as_ref().map_or(0, InterfaceDrops::dropped_since_open),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.control.as_fd()
    }

    pub(super) fn needs_polling(&self) -> bool {
        self.shared.is_down.load(Ordering::Relaxed)
    }
}

/// libpcap's warning for a filter that the kernel refuses.
fn kernel_filter_warning(refusal: &OpenError) -> String {
    match refusal {
        OpenError::System { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => {
            "Couldn't allocate kernel memory for filter: try increasing net.core.optmem_max with sysctl"
                .into()
        }
        OpenError::System { source, .. } => text::errno_text("Kernel filter failed", source),
        other => format!("Kernel filter failed: {other}"),
    }
}
