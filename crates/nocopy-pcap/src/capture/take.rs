//! Captures that take packets from the host: AF_XDP ports on all queues of an interface, read in place.
//!
//! Packets that do not match the filter go to the host: a filter before the ports hides them, and a filter
//! that runs here returns them, with one system call each. Packets that the host sends are not captured.

mod descriptor;
mod filtering;
mod gathering;
mod reading;
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

use super::interface::{Drops, InterfaceKind};
use super::posted::Posted;
use super::{Counts, Direction, Filter, Packet, Refusal, Waited, Waiting, filter};
use super::{Settings, Sleep, Slept, Stop};
use crate::report::{self, CaptureMode, FilterPlace, Refused};
use crate::{packet_socket, text};
use descriptor::Descriptor;
use filtering::Filtering;
use gathering::Gathering;
use reading::{CLAIMED_MAX, Reading};
use realtime::Realtime;
use watch::Watch;

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
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long packets may accumulate if the program set no timeout.
const DELAY: Duration = Duration::from_millis(100);

/// Instead of a handle's number, until it was reported.
const UNREPORTED: u64 = u64::MAX;

/// The reading side of a capture, used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Take {
    reading: Reading,
    realtime: Realtime,
    filtering: Filtering,
    /// `None` in immediate mode, where each packet wakes the program.
    gathering: Option<Gathering>,
    timeout: Option<Duration>,
    /// When the present wait is to end.
    deadline: Option<Instant>,
    stage: Stage,
    to_host: ToHost,
    /// An error that occurred while looking for packets.
    failure: Option<String>,
    watch: Watch,
    shared: Arc<Shared>,
}

/// What a waiting call sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first packet.
    Arrival,
    /// More packets behind the first.
    Gathering,
    /// As many as a flow has brought so far.
    Flow,
}

/// State that both sides use.
#[derive(Debug)]
struct Shared {
    descriptor: Descriptor,
    posted: Posted,
    /// Packets claimed, except those returned to the host. Only the reader writes it.
    received: AtomicU64,
    /// Claimed packets that should have returned to the host and did not reach it. Only the reader writes it.
    lost: AtomicU64,
    is_down: AtomicBool,
}

impl Take {
    pub(super) fn open(device: &CStr, settings: &Settings) -> Result<(Self, Control, CaptureMode), Refusal> {
        let name = device.to_str().map_err(|_| Refusal("the device's name is not text".into()))?;
        if InterfaceKind::of(device)?.is_loopback {
            return Err(Refusal("what the loopback interface receives was never on a wire".into()));
        }
        let frames = frames(settings.buffer_bytes, queue_count(name));
        let mut queues = open_queues(name, settings, frames)?;
        // All while there are privileges: the program may give them up.
        let to_host = queues.ports()[0].receiver().to_host().map_err(refused)?;
        let control = Control::open(&mut queues, device, settings)?;
        let shared = Arc::clone(&control.shared);
        let watch = Watch::open(device, shared.descriptor.as_fd()).map_err(refused)?;
        let mode =
            CaptureMode::Take { queues: queues.ports().iter().map(|port| port.mode().to_string()).collect() };
        let timeout = u64::try_from(settings.timeout_ms).ok().filter(|&ms| ms > 0).map(Duration::from_millis);
        let gathering = || Gathering::new(frames, timeout.unwrap_or(DELAY), Instant::now());
        let take = Self {
            reading: Reading::new(queues),
            realtime: Realtime::new(),
            filtering: Filtering::default(),
            gathering: (!settings.immediate).then(gathering),
            timeout,
            deadline: None,
            stage: Stage::Arrival,
            to_host,
            failure: None,
            watch,
            shared,
        };
        Ok((take, control, mode))
    }

    /// Whether packets are claimed; if none are, claims those that have arrived.
    #[inline]
    pub(super) fn is_ready(&mut self) -> bool {
        self.reading.left() > 0 || self.claim()
    }

    #[cold]
    fn claim(&mut self) -> bool {
        // `is_ready` calls this only when no claimed packet is left.
        self.filtering.forget_claimed();
        self.filtering.update(&self.shared.posted);
        if let Err(error) = self.filtering.apply(self.reading.queues()) {
            self.failure = Some(error.to_string());
            return false;
        }
        // The only error is an interface that is down or removed, which `wait` reports in libpcap's words.
        let count = self.reading.claim().unwrap_or(0);
        let received = self.shared.received.load(Ordering::Relaxed) + count as u64;
        self.shared.received.store(received, Ordering::Relaxed); // nobody else stores
        if count == 0 {
            self.pause();
        }
        count > 0
    }

    /// As [`Self::next`]; `None`, too, if packets of an earlier filter may have to go to the host.
    #[inline]
    pub(super) fn next_at_once(&mut self, stop: &Stop) -> Option<Packet<'_>> {
        self.filtering.update(&self.shared.posted);
        if self.filtering.checks_claimed() { None } else { self.next(stop) }
    }

    /// The next packet in hand that the program wants; `None` if there is none, or a stop is requested.
    #[inline]
    pub(super) fn next(&mut self, stop: &Stop) -> Option<Packet<'_>> {
        while !stop.is_asked() {
            self.filtering.update(&self.shared.posted);
            let packet = self.reading.next()?;
            if self.filtering.matches(packet) {
                return Some(Packet {
                    // SAFETY: it stays claimed while this borrows the reader.
                    bytes: unsafe { std::slice::from_raw_parts(packet.as_ptr(), packet.len()) },
                    original_bytes: packet.len() as u32,
                    time_ns: time_of(packet, &mut self.realtime),
                    stays: true,
                });
            }
            // If that is refused, the host loses it, as on a removed interface.
            let is_lost = self.to_host.hand_over(packet).is_err();
            self.tell_handed_back(is_lost);
        }
        None
    }

    /// Keeps the descriptor readable while packets are held, and no longer.
    #[inline]
    pub(super) fn pause(&self) {
        self.shared.descriptor.set_left(self.reading.left() > 0);
    }

    /// Counts a claimed packet that was returned to the host.
    #[cold]
    fn tell_handed_back(&self, is_lost: bool) {
        let Shared { received, lost, .. } = &*self.shared;
        // Nothing else stores.
        received.store(received.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        lost.store(lost.load(Ordering::Relaxed) + u64::from(is_lost), Ordering::Relaxed);
    }

    /// Waits for packets, and then until some more have gathered.
    pub(super) fn wait(&mut self, waiting: Waiting<'_>, slept: Option<Slept>) -> Waited {
        let Some(slept) = slept else { return self.begin_wait(waiting) };
        if slept.is_stop() {
            // Before the request is looked at below: one that comes later makes the descriptor readable
            // again.
            waiting.stop.forget_wakeups();
        }
        match slept.is_readable() {
            Err(error) => Waited::Failed(text::of_errno("can't poll on packet socket", &error)),
            Ok(is_readable) => match self.stage {
                Stage::Arrival if waiting.stop.take() => Waited::Stopped,
                Stage::Arrival => self.look(waiting, is_readable),
                Stage::Gathering | Stage::Flow => self.gather(waiting),
            },
        }
    }

    fn begin_wait(&mut self, waiting: Waiting<'_>) -> Waited {
        if let Some(words) = self.failure.take() {
            return Waited::Failed(words);
        }
        self.deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let is_flowing =
            self.gathering.as_ref().is_some_and(|gathering| gathering.is_flowing(Instant::now()));
        // Packets that arrive so fast that poll(2) would wake at once for the first may accumulate. Those
        // that a filter here turns away are no flow: the program does not get them.
        if waiting.nonblocking || self.filtering.is_running() || !is_flowing {
            return self.look(waiting, waiting.nonblocking);
        }
        self.begin_gathering(Stage::Flow, waiting)
    }

    /// Checks for packets, and for the interface; `is_readable`: the descriptor was, as far as is known.
    fn look(&mut self, waiting: Waiting<'_>, is_readable: bool) -> Waited {
        if is_readable {
            self.watch.hear();
        }
        let is_down = match self.reading.queues().arm() {
            Ok(true) if waiting.nonblocking => return Waited::Look,
            Ok(true) => return self.begin_gathering(Stage::Gathering, waiting),
            Ok(false) => false,
            Err(error) => match self.watch.explain(&error) {
                Ok(is_down) => is_down,
                Err(words) => return Waited::Failed(words),
            },
        };
        self.shared.is_down.store(is_down, Ordering::Relaxed);
        let now = Instant::now();
        let left = self.deadline.map_or(LOOK_INTERVAL, |deadline| deadline.saturating_duration_since(now));
        if waiting.nonblocking || left.is_zero() {
            return Waited::Look;
        }
        self.stage = Stage::Arrival;
        let packets = (!is_down).then(|| self.shared.descriptor.as_fd());
        Waited::Sleep(Sleep::new(packets, waiting.stop, left.min(LOOK_INTERVAL)))
    }

    fn begin_gathering(&mut self, stage: Stage, waiting: Waiting<'_>) -> Waited {
        self.shared.is_down.store(false, Ordering::Relaxed);
        self.stage = stage;
        if let Some(gathering) = &mut self.gathering {
            gathering.begin(Instant::now());
        }
        self.gather(waiting)
    }

    /// Waits while packets gather.
    fn gather(&mut self, waiting: Waiting<'_>) -> Waited {
        if let Some(gathering) = self.gathering.as_mut().filter(|_| !waiting.stop.is_asked())
            && let Some(slice) = gathering.slice(Instant::now(), self.reading.queues().came())
        {
            return Waited::Sleep(Sleep::new(None, waiting.stop, slice));
        }
        if waiting.stop.take() {
            return Waited::Stopped;
        }
        // The flow may be over: then they are waited for as usual.
        if self.stage == Stage::Flow && self.reading.queues().came().1 == 0 {
            return self.look(waiting, false);
        }
        Waited::Look
    }

    /// Closes it in the child of a fork.
    pub(super) fn leave(self) {
        self.reading.leave();
    }
}

fn refused(why: impl std::fmt::Display) -> Refusal {
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
            way_to_host: true,
            inherited: true,
            ..PortTuning::default()
        });
    let mut queues = builder.open_queues(..).map_err(refused)?;
    match queues.ports().iter().find(|port| port.mode() == Mode::PacketRing) {
        None => Ok(queues),
        Some(port) => {
            let reasons: Vec<_> = port.explain().refusals.iter().map(ToString::to_string).collect();
            Err(Refusal(reasons.join("; ")))
        }
    }
}

/// Receive queues of an interface; 1 if that is not known.
fn queue_count(name: &str) -> u32 {
    Port::builder(name).queue_count().unwrap_or(1)
}

/// Frames of each of `queues` queues, for a buffer of that many bytes (0: the default).
fn frames(buffer_bytes: c_int, queues: u32) -> u32 {
    let asked = u32::try_from(buffer_bytes).unwrap_or(0).div_ceil(FRAME_BYTES);
    let share = FRAMES_ALL / queues.max(1);
    asked.max(share).clamp(FRAMES_MIN, FRAMES_MAX).next_power_of_two()
}

/// Arrival time of a packet: noted by the kernel, or the present time if the kernel had no room for the note.
#[inline]
fn time_of(packet: &nocopy::Packet<'_>, realtime: &mut Realtime) -> u64 {
    match packet.arrival().timestamp {
        Ok(Timestamp { ns, clock: Clock::Monotonic }) => realtime.of(ns),
        _ => now_ns(),
    }
}

#[cold]
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a capture that any thread may use.
#[derive(Debug)]
pub(crate) struct Control {
    shared: Arc<Shared>,
    /// The socket for sending. Bound to no protocol, so it receives nothing, and the kernel finds the
    /// protocol of each frame.
    sending: OwnedFd,
    meter: Meter,
    in_front: FilterControl,
    drops: Option<Drops>,
    handle: AtomicU64,
    /// Which filter is in front of the ports is not known any more, if any: see [`Refused::InDoubt`].
    is_in_doubt: AtomicBool,
}

impl Control {
    fn open(queues: &mut Queues, device: &CStr, settings: &Settings) -> Result<Self, Refusal> {
        let shared = Shared {
            descriptor: Descriptor::open(queues).map_err(refused)?,
            posted: Posted::default(),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            sending: packet_socket::open(device, 0).map_err(refused)?,
            meter: queues.meter(),
            in_front: queues.filter_control().map_err(refused)?,
            drops: settings.promiscuous.then(|| Drops::of(&device.to_string_lossy())),
            handle: AtomicU64::new(UNREPORTED),
            is_in_doubt: AtomicBool::new(false),
        })
    }

    /// Lets `nocopy run`, which knows the handle by this number, replace the filter in front of its packets,
    /// for the time when this process may no longer do so.
    pub(super) fn introduce(&self, handle: u64) {
        self.handle.store(handle, Ordering::Relaxed);
        report::control(handle, |socket| self.in_front.send(&socket).is_ok());
    }

    /// Installs the filter before the ports or, if that is not possible, makes the receivers run it.
    pub(super) fn set_filter(&self, filter: Filter) -> Result<FilterPlace, String> {
        if let Some(long) = &filter.long {
            let (count, most) = (long.len(), INSTRUCTIONS_MAX);
            return Err(format!(
                "filter: too long; it has {count} instructions, and packets that are taken go through {most} at most; shorten it, or leave \
                 out --take"
            ));
        }
        self.shared.posted.set(filter, |filter, before| {
            let placed = self.place(&filter.program, before.as_deref());
            if let (Err(why), Some(before)) = (&placed, before)
                && self.is_in_doubt.load(Ordering::Relaxed)
            {
                // It may be removed from the front later.
                *before = FilterPlace::UserSpace { why: why.clone() };
            }
            placed
        })
    }

    fn place(&self, filter: &Program, before: Option<&FilterPlace>) -> Result<FilterPlace, String> {
        if self.is_in_doubt.load(Ordering::Relaxed) {
            return Err(Refused::InDoubt.to_string());
        }
        let Err(refused) = self.put_in_front(Some(filter)) else { return Ok(FilterPlace::Xdp) };
        let Refused::Unchanged(why) = refused else { return Err(refused.to_string()) };
        filter.check_answerable().map_err(|error| error.to_string())?;
        if before == Some(&FilterPlace::Xdp) {
            // It would keep back packets that match the new one.
            let removed = self.put_in_front(None);
            removed.map_err(|error| format!("filter: the one before cannot be removed; {error}"))?;
        }
        Ok(FilterPlace::UserSpace { why })
    }

    /// Installs a filter before the ports, or none; `nocopy run` does it if this process may not.
    fn put_in_front(&self, filter: Option<&Program>) -> Result<(), Refused> {
        match self.in_front.set(filter) {
            Ok(()) => Ok(()),
            Err(FilterControlError::Program(xdp::Error::Capability { .. })) => {
                let put = report::request_filter(self.handle.load(Ordering::Relaxed), filter);
                self.is_in_doubt.fetch_or(put == Err(Refused::InDoubt), Ordering::Relaxed);
                put
            }
            Err(error) => Err(Refused::Unchanged(error.to_string())),
        }
    }

    /// Leaves arriving packets to the host from now on, if a filter can be installed.
    pub(super) fn leave_to_host(&self) {
        let _ = self.put_in_front(Some(&filter::nothing()));
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
        let measured = self.meter.read();
        let measured =
            measured.map_err(|error| text::of_errno("failed to get statistics from socket", &error))?;
        let lost = measured.filter_lost + self.shared.lost.load(Ordering::Relaxed);
        let dropped = measured.statistics.rx_lost() + lost;
        Ok(Counts {
            received: self.shared.received.load(Ordering::Relaxed) + dropped,
            dropped,
            interface_dropped: self.drops.as_ref().map_or(0, Drops::count),
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor.watch()
    }

    pub(super) fn sending_socket(&self) -> BorrowedFd<'_> {
        self.sending.as_fd()
    }

    pub(super) fn needs_looks(&self) -> bool {
        self.shared.is_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_does_not_say_has_one_queue() {
        assert_eq!(queue_count("lo"), 1);
        assert_eq!(queue_count("none"), 1);
    }
}
