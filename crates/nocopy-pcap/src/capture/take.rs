//! Captures that take packets from the host: AF_XDP ports on all queues of an interface, read in place.
//!
//! Packets that do not match the filter go to the host: a filter before the ports hides them, and a filter
//! that runs here returns them, with one system call each. Packets that the host sends are not captured.

mod claimed;
mod coalescer;
mod descriptor;
mod reader_filters;
mod realtime;
mod watch;

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nocopy::integration::{FilterControl, FilterControlError, Meter, PortTuning, xdp};
use nocopy::metadata::{Clock, Timestamp};
use nocopy::port::{Queues, ToHost};
use nocopy::{Mode, Port};
use nocopy_proto::filter::{INSTRUCTIONS_MAX, Program};

use super::filter_slot::FilterSlot;
use super::interface::{InterfaceDrops, InterfaceKind};
use super::{Counts, Direction, Filter, Packet, Refusal, WaitOptions, WaitResult, filter};
use super::{PlannedSleep, Settings, SleepResult, StopRequest};
use crate::report::{self, CaptureMode, FilterLocation, FilterRefusal};
use crate::{packet_socket, text};
use claimed::{CLAIMED_MAX, ClaimedPackets};
use coalescer::WakeupCoalescer;
use descriptor::ReadinessDescriptor;
use reader_filters::ReaderFilters;
use realtime::RealtimeConverter;
use watch::InterfaceWatch;

/// Frames of all queues together, unless the program asks for more: with one queue the program may pause for
/// 6 ms at 2.5 million packets a second, about as long as with libpcap's buffer. More frames are slower: the
/// kernel uses all of them in turn, so they leave the caches.
const FRAMES_ALL: u32 = 16384;
/// The fewest frames of each queue, however many queues there are, because any of them may be the busy one.
const FRAMES_MIN: u32 = 8192;
/// The most frames, whatever the program asks for (`pcap_set_buffer_size`).
const FRAMES_MAX: u32 = 32768;
/// The frame size assumed when the program gives the buffer size in bytes: most frames are this long.
const FRAME_BYTES: u32 = 2048;

/// Frames to send from. The ports do not send.
const SEND_FRAMES: u32 = 16;

/// How often a waiting call checks whether the interface still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long packets may accumulate if the program set no timeout.
const DELAY: Duration = Duration::from_millis(100);

/// Instead of a handle's number, until it was reported.
const UNREPORTED: u64 = u64::MAX;

/// The reading side of a capture, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct TakeCapture {
    claimed: ClaimedPackets,
    realtime: RealtimeConverter,
    filters: ReaderFilters,
    /// `None` in immediate mode, where each packet wakes the program.
    coalescer: Option<WakeupCoalescer>,
    timeout: Option<Duration>,
    /// When the present wait is to end.
    deadline: Option<Instant>,
    stage: WaitStage,
    to_host: ToHost,
    /// An error that occurred while looking for packets.
    failure: Option<String>,
    watch: InterfaceWatch,
    shared: Arc<SharedState>,
}

/// What a waiting call sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitStage {
    /// The first packet.
    Arrival,
    /// More packets behind the first.
    Coalescing,
    /// As many as a flow has brought so far.
    Flow,
}

/// State that both sides use.
#[derive(Debug)]
struct SharedState {
    descriptor: ReadinessDescriptor,
    filter_slot: FilterSlot,
    /// Packets claimed, except those returned to the host. Only the reader writes it.
    received: AtomicU64,
    /// Claimed packets that should have returned to the host and did not reach it. Only the reader writes it.
    lost: AtomicU64,
    is_down: AtomicBool,
}

impl TakeCapture {
    pub(super) fn open(
        device: &CStr,
        settings: &Settings,
    ) -> Result<(Self, TakeControl, CaptureMode), Refusal> {
        let name = device.to_str().map_err(|_| Refusal("the device's name is not text".into()))?;
        if InterfaceKind::query_for_capture(device)?.is_loopback {
            return Err(Refusal("what the loopback interface receives was never on a wire".into()));
        }
        let frames = frames_per_queue(settings.buffer_bytes, receive_queue_count(name));
        let mut queues = open_queues(name, settings, frames)?;
        // All while there are privileges: the program may give them up.
        let to_host = queues.ports()[0].receiver().to_host().map_err(capture_refusal)?;
        let control = TakeControl::open(&mut queues, device, settings)?;
        let shared = Arc::clone(&control.shared);
        let watch = InterfaceWatch::open(device, shared.descriptor.as_fd()).map_err(capture_refusal)?;
        let mode =
            CaptureMode::Take { queues: queues.ports().iter().map(|port| port.mode().to_string()).collect() };
        let timeout = u64::try_from(settings.timeout_ms).ok().filter(|&ms| ms > 0).map(Duration::from_millis);
        let coalescer = || WakeupCoalescer::new(frames, timeout.unwrap_or(DELAY), Instant::now());
        let take = Self {
            claimed: ClaimedPackets::new(queues),
            realtime: RealtimeConverter::new(),
            filters: ReaderFilters::default(),
            coalescer: (!settings.immediate).then(coalescer),
            timeout,
            deadline: None,
            stage: WaitStage::Arrival,
            to_host,
            failure: None,
            watch,
            shared,
        };
        Ok((take, control, mode))
    }

    /// Whether packets are claimed; if none are, claims those that have arrived.
    #[inline]
    pub(super) fn ensure_packets_claimed(&mut self) -> bool {
        self.claimed.unread_count() > 0 || self.claim_arrived()
    }

    #[cold]
    fn claim_arrived(&mut self) -> bool {
        // `ensure_packets_claimed` calls this only when no claimed packet is left.
        self.filters.clear_claimed_filter();
        self.filters.load_if_newer(&self.shared.filter_slot);
        if let Err(error) = self.filters.apply_to_receivers(self.claimed.queues_after_release()) {
            self.failure = Some(error.to_string());
            return false;
        }
        // The only error is an interface that is down or removed, which `advance_wait` reports in libpcap's
        // words.
        let count = self.claimed.claim_batch().unwrap_or(0);
        let received = self.shared.received.load(Ordering::Relaxed) + count as u64;
        self.shared.received.store(received, Ordering::Relaxed); // nobody else stores
        if count == 0 {
            self.pause_delivery();
        }
        count > 0
    }

    /// As [`Self::next_packet`]; `None`, too, if packets of an earlier filter may have to go to the host.
    #[inline]
    pub(super) fn next_without_syscall(&mut self, stop: &StopRequest) -> Option<Packet<'_>> {
        self.filters.load_if_newer(&self.shared.filter_slot);
        if self.filters.filters_claimed_packets() { None } else { self.next_packet(stop) }
    }

    /// The next packet in hand that the program wants; `None` if there is none, or a stop is requested.
    #[inline]
    pub(super) fn next_packet(&mut self, stop: &StopRequest) -> Option<Packet<'_>> {
        while !stop.is_requested() {
            self.filters.load_if_newer(&self.shared.filter_slot);
            let packet = self.claimed.next_packet()?;
            if self.filters.matches_claimed(packet) {
                return Some(Packet {
                    // SAFETY: it stays claimed while this borrows the reader.
                    bytes: unsafe { std::slice::from_raw_parts(packet.as_ptr(), packet.len()) },
                    original_bytes: packet.len() as u32,
                    time_ns: arrival_time_ns(packet, &mut self.realtime),
                    outlives_pause: true,
                });
            }
            // If that is refused, the host loses it, as on a removed interface.
            let is_lost = self.to_host.hand_over(packet).is_err();
            self.count_returned_packet(is_lost);
        }
        None
    }

    /// Keeps the descriptor readable while packets are held, and no longer.
    #[inline]
    pub(super) fn pause_delivery(&self) {
        self.shared.descriptor.set_pending(self.claimed.unread_count() > 0);
    }

    /// Counts a claimed packet that was returned to the host.
    #[cold]
    fn count_returned_packet(&self, is_lost: bool) {
        let SharedState { received, lost, .. } = &*self.shared;
        // Nothing else stores.
        received.store(received.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        lost.store(lost.load(Ordering::Relaxed) + u64::from(is_lost), Ordering::Relaxed);
    }

    /// Waits for packets, and then until some more have gathered.
    pub(super) fn advance_wait(
        &mut self,
        waiting: WaitOptions<'_>,
        slept: Option<SleepResult>,
    ) -> WaitResult {
        let Some(slept) = slept else { return self.begin_wait(waiting) };
        if slept.woke_for_stop() {
            // Before the request is looked at below: one that comes later makes the descriptor readable
            // again.
            waiting.stop.clear_wakeups();
        }
        match slept.is_readable() {
            Err(error) => WaitResult::Failed(text::errno_text("can't poll on packet socket", &error)),
            Ok(is_readable) => match self.stage {
                WaitStage::Arrival if waiting.stop.take_request() => WaitResult::Stopped,
                WaitStage::Arrival => self.poll_queues(waiting, is_readable),
                WaitStage::Coalescing | WaitStage::Flow => self.coalesce(waiting),
            },
        }
    }

    fn begin_wait(&mut self, waiting: WaitOptions<'_>) -> WaitResult {
        if let Some(words) = self.failure.take() {
            return WaitResult::Failed(words);
        }
        self.deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let is_flowing =
            self.coalescer.as_ref().is_some_and(|coalescer| coalescer.has_high_rate(Instant::now()));
        // Packets that arrive so fast that poll(2) would wake at once for the first may accumulate. Those
        // that a filter here turns away are no flow: the program does not get them.
        if waiting.nonblocking || self.filters.receivers_run_filter() || !is_flowing {
            return self.poll_queues(waiting, waiting.nonblocking);
        }
        self.begin_coalescing(WaitStage::Flow, waiting)
    }

    /// Checks for packets, and for the interface; `is_readable`: the descriptor was, as far as is known.
    fn poll_queues(&mut self, waiting: WaitOptions<'_>, is_readable: bool) -> WaitResult {
        if is_readable {
            self.watch.clear_readiness();
        }
        let is_down = match self.claimed.queues_after_release().arm() {
            Ok(true) if waiting.nonblocking => return WaitResult::Check,
            Ok(true) => return self.begin_coalescing(WaitStage::Coalescing, waiting),
            Ok(false) => false,
            Err(error) => match self.watch.is_down_after_error(&error) {
                Ok(is_down) => is_down,
                Err(words) => return WaitResult::Failed(words),
            },
        };
        self.shared.is_down.store(is_down, Ordering::Relaxed);
        let now = Instant::now();
        let left = self.deadline.map_or(CHECK_INTERVAL, |deadline| deadline.saturating_duration_since(now));
        if waiting.nonblocking || left.is_zero() {
            return WaitResult::Check;
        }
        self.stage = WaitStage::Arrival;
        let packets = (!is_down).then(|| self.shared.descriptor.as_fd());
        WaitResult::Sleep(PlannedSleep::new(packets, waiting.stop, left.min(CHECK_INTERVAL)))
    }

    fn begin_coalescing(&mut self, stage: WaitStage, waiting: WaitOptions<'_>) -> WaitResult {
        self.shared.is_down.store(false, Ordering::Relaxed);
        self.stage = stage;
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.begin_coalescing(Instant::now());
        }
        self.coalesce(waiting)
    }

    /// Waits while packets gather.
    fn coalesce(&mut self, waiting: WaitOptions<'_>) -> WaitResult {
        if let Some(coalescer) = self.coalescer.as_mut().filter(|_| !waiting.stop.is_requested())
            && let Some(slice) =
                coalescer.next_sleep(Instant::now(), self.claimed.queues_after_release().arrival_counts())
        {
            return WaitResult::Sleep(PlannedSleep::new(None, waiting.stop, slice));
        }
        if waiting.stop.take_request() {
            return WaitResult::Stopped;
        }
        // The flow may be over: then they are waited for as usual.
        if self.stage == WaitStage::Flow && self.claimed.queues_after_release().arrival_counts().1 == 0 {
            return self.poll_queues(waiting, false);
        }
        WaitResult::Check
    }

    /// Closes it in the child of a fork.
    pub(super) fn close_in_forked_child(self) {
        self.claimed.close_in_forked_child();
    }
}

fn capture_refusal(why: impl std::fmt::Display) -> Refusal {
    Refusal(why.to_string())
}

fn open_queues(name: &str, settings: &Settings, frames: u32) -> Result<Queues, Refusal> {
    let builder = Port::builder(name)
        .frame_count(frames + CLAIMED_MAX, SEND_FRAMES)
        .ring_sizes(frames, SEND_FRAMES)
        .batch(CLAIMED_MAX)
        .promiscuous(settings.promiscuous)
        .tuning(PortTuning {
            arrival_times: true,
            prepare_host_path: true,
            inherited: true,
            ..PortTuning::default()
        });
    let mut queues = builder.open_queues(..).map_err(capture_refusal)?;
    match queues.ports().iter().find(|port| port.mode() == Mode::PacketRing) {
        None => Ok(queues),
        Some(port) => {
            let reasons: Vec<_> = port.explain().refusals.iter().map(ToString::to_string).collect();
            Err(Refusal(reasons.join("; ")))
        }
    }
}

/// Receive queues of an interface; 1 if that is not known.
fn receive_queue_count(name: &str) -> u32 {
    Port::builder(name).queue_count().unwrap_or(1)
}

/// Frames of each of `queues` queues, for a buffer of that many bytes (0: the default).
fn frames_per_queue(buffer_bytes: c_int, queues: u32) -> u32 {
    let asked = u32::try_from(buffer_bytes).unwrap_or(0).div_ceil(FRAME_BYTES);
    let share = FRAMES_ALL / queues.max(1);
    asked.max(share).clamp(FRAMES_MIN, FRAMES_MAX).next_power_of_two()
}

/// Arrival time of a packet: noted by the kernel, or the present time if the kernel had no room for the note.
#[inline]
fn arrival_time_ns(packet: &nocopy::Packet<'_>, realtime: &mut RealtimeConverter) -> u64 {
    match packet.arrival().timestamp {
        Ok(Timestamp { ns, clock: Clock::Monotonic }) => realtime.convert_to_realtime_ns(ns),
        _ => realtime_now_ns(),
    }
}

#[cold]
fn realtime_now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a capture that any thread may use.
#[derive(Debug)]
pub(crate) struct TakeControl {
    shared: Arc<SharedState>,
    /// The socket for sending. Bound to no protocol, so it receives nothing, and the kernel finds the
    /// protocol of each frame.
    sending: OwnedFd,
    meter: Meter,
    xdp_filter: FilterControl,
    drops: Option<InterfaceDrops>,
    handle: AtomicU64,
    /// Which filter is in front of the ports is not known any more, if any: see [`FilterRefusal::Uncertain`].
    is_uncertain: AtomicBool,
}

impl TakeControl {
    fn open(queues: &mut Queues, device: &CStr, settings: &Settings) -> Result<Self, Refusal> {
        let shared = SharedState {
            descriptor: ReadinessDescriptor::open(queues).map_err(capture_refusal)?,
            filter_slot: FilterSlot::default(),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            sending: packet_socket::open(device, 0).map_err(capture_refusal)?,
            meter: queues.meter(),
            xdp_filter: queues.filter_control().map_err(capture_refusal)?,
            drops: settings.promiscuous.then(|| InterfaceDrops::new(&device.to_string_lossy())),
            handle: AtomicU64::new(UNREPORTED),
            is_uncertain: AtomicBool::new(false),
        })
    }

    /// Lets `nocopy run`, which knows the handle by this number, replace the filter in front of its packets,
    /// for the time when this process may no longer do so.
    pub(super) fn share_filter_with_runner(&self, handle: u64) {
        self.handle.store(handle, Ordering::Relaxed);
        report::share_filter_control(handle, |socket| self.xdp_filter.send(&socket).is_ok());
    }

    /// Installs the filter before the ports or, if that is not possible, makes the receivers run it.
    pub(super) fn set_filter(&self, filter: Filter) -> Result<FilterLocation, String> {
        if let Some(long) = &filter.long {
            let (count, most) = (long.len(), INSTRUCTIONS_MAX);
            return Err(format!(
                "filter: too long; it has {count} instructions, and packets that are taken go through {most} at most; shorten it, or leave \
                 out --take"
            ));
        }
        self.shared.filter_slot.set(filter, |filter, before| {
            let placed = self.place_filter(&filter.program, before.as_deref());
            if let (Err(why), Some(before)) = (&placed, before)
                && self.is_uncertain.load(Ordering::Relaxed)
            {
                // It may be removed from the front later.
                *before = FilterLocation::UserSpace { why: why.clone() };
            }
            placed
        })
    }

    fn place_filter(
        &self,
        filter: &Program,
        before: Option<&FilterLocation>,
    ) -> Result<FilterLocation, String> {
        if self.is_uncertain.load(Ordering::Relaxed) {
            return Err(FilterRefusal::Uncertain.to_string());
        }
        let Err(refused) = self.set_xdp_filter(Some(filter)) else { return Ok(FilterLocation::Xdp) };
        let FilterRefusal::Unchanged(why) = refused else { return Err(refused.to_string()) };
        filter.check_answerable().map_err(|error| error.to_string())?;
        if before == Some(&FilterLocation::Xdp) {
            // It would keep back packets that match the new one.
            let removed = self.set_xdp_filter(None);
            removed.map_err(|error| format!("filter: the one before cannot be removed; {error}"))?;
        }
        Ok(FilterLocation::UserSpace { why })
    }

    /// Installs a filter before the ports, or none; `nocopy run` does it if this process may not.
    fn set_xdp_filter(&self, filter: Option<&Program>) -> Result<(), FilterRefusal> {
        match self.xdp_filter.set_filter(filter) {
            Ok(()) => Ok(()),
            Err(FilterControlError::Program(xdp::Error::Capability { .. })) => {
                let put = report::request_filter(self.handle.load(Ordering::Relaxed), filter);
                self.is_uncertain.fetch_or(put == Err(FilterRefusal::Uncertain), Ordering::Relaxed);
                put
            }
            Err(error) => Err(FilterRefusal::Unchanged(error.to_string())),
        }
    }

    /// Leaves arriving packets to the host from now on, if a filter can be installed.
    pub(super) fn stop_redirecting(&self) {
        let _ = self.set_xdp_filter(Some(&filter::reject_all_program()));
    }

    pub(super) fn set_direction(&self, direction: Direction) -> Result<(), String> {
        match direction {
            // `Both` is the default direction: the report says that only incoming packets are captured.
            Direction::Both | Direction::In => Ok(()),
            Direction::Out => {
                Err("direction: cannot be outgoing; packets are taken as they come in; leave out --take"
                    .into())
            }
        }
    }

    pub(super) fn counts(&self) -> Result<Counts, String> {
        let measured = self.meter.read_counts();
        let measured =
            measured.map_err(|error| text::errno_text("failed to get statistics from socket", &error))?;
        let lost = measured.filter_lost + self.shared.lost.load(Ordering::Relaxed);
        let dropped = measured.statistics.rx_lost() + lost;
        Ok(Counts {
            received: self.shared.received.load(Ordering::Relaxed) + dropped,
            dropped,
            interface_dropped: self.drops.as_ref().map_or(0, InterfaceDrops::dropped_since_open),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor.begin_watching()
    }

    pub(super) fn sending_socket(&self) -> BorrowedFd<'_> {
        self.sending.as_fd()
    }

    pub(super) fn needs_polling(&self) -> bool {
        self.shared.is_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_a_queue_count_has_one_queue() {
        assert_eq!(receive_queue_count("lo"), 1);
        assert_eq!(receive_queue_count("none"), 1);
    }
}
