//! Calls that read packets, in steps: between two steps a call waits, or calls the program, and has nothing
//! of the handle then.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use super::claim::Place;
use super::live::{Live, Reader};
use crate::abi::{ERROR_BREAK, PacketHeader};
use crate::capture::{Packet, Sleep, Slept, Waited, Waiting};

/// What a call is to do after a step. Plain data, without anything to drop: a thread may leave the call there
/// in every way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Call the program with the packet of the [`Call`].
    Deliver,
    Sleep(Sleep),
    /// The next step at once: others may have theirs before.
    Again,
    /// Return that.
    End(c_int),
}

/// What a program reads by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// `pcap_next_ex`: the next packet, in place until the next call.
    Next,
    /// `pcap_dispatch`: a count of 0 or less means all packets that are waiting now.
    Dispatch,
    /// `pcap_loop`: reads the requested number of packets, and waits as often as needed; with a count of 0 or
    /// less it never ends.
    Loop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begin,
    Wait,
    Read,
}

/// A reading call: where it is. Plain data, as [`Step`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) place: Place,
    reads: Reads,
    /// Packets that are still to be read; 0 or less: any number.
    left: c_int,
    phase: Phase,
    nonblocking: bool,
    /// Packets since the call last began to wait.
    count: usize,
    /// The packet to deliver.
    pub(crate) header: PacketHeader,
    pub(crate) bytes: *const u8,
    /// Where the header of [`Reads::Next`] is kept.
    pub(crate) kept_header: *mut PacketHeader,
}

impl Call {
    pub(crate) const fn new(reads: Reads, count: c_int, place: Place) -> Self {
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let header = PacketHeader { time, captured_bytes: 0, original_bytes: 0 };
        let (bytes, kept_header) = (null(), null_mut());
        Self {
            place,
            reads,
            left: count,
            phase: Phase::Begin,
            nonblocking: false,
            count: 0,
            header,
            bytes,
            kept_header,
        }
    }

    /// Whether the next step is to deliver a packet, if one is in hand.
    #[inline]
    pub(crate) fn may_deliver_at_once(&self) -> bool {
        self.phase == Phase::Read && self.reads != Reads::Next && !self.is_done()
    }

    #[inline]
    fn is_done(&self) -> bool {
        usize::try_from(self.left).is_ok_and(|left| left > 0 && self.count >= left)
    }

    /// Notes a packet to deliver.
    #[inline]
    fn take(&mut self, header: PacketHeader, bytes: *const u8) {
        (self.header, self.bytes) = (header, bytes);
        self.count += 1;
    }
}

impl Live {
    /// The next step, if a packet is in hand; makes no system call.
    #[inline]
    pub(crate) fn deliver_at_once(&self, reader: &mut Reader, call: &mut Call) -> bool {
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        let Some(packet) = reader.capture.next_at_once(&self.stop) else { return false };
        call.take(header_of(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
        reader.lent = Some(call.place);
        true
    }

    /// The next step, after a sleep with its result: reads as libpcap's `pcap_read_linux_mmap_v3` does.
    pub(crate) fn step(&self, reader: &mut Reader, call: &mut Call, mut slept: Option<Slept>) -> Step {
        if call.phase == Phase::Begin && reader.lent.is_some_and(|outer| call.place.is_within(outer)) {
            return Step::End(self.fail(
                "handle: cannot be read; another call is reading its packets; wait until that has returned",
            ));
        }
        if call.phase == Phase::Begin {
            (call.kept_header, call.nonblocking, call.count) =
                (&raw mut reader.header, self.is_nonblocking(), 0);
            call.phase = if reader.capture.is_ready() { Phase::Read } else { Phase::Wait };
            slept = None;
        }
        let step = match call.phase {
            Phase::Wait => self.wait(reader, call, slept),
            Phase::Begin | Phase::Read => self.read(reader, call),
        };
        reader.lent = matches!(step, Step::Deliver).then_some(call.place);
        step
    }

    fn wait(&self, reader: &mut Reader, call: &mut Call, slept: Option<Slept>) -> Step {
        let waiting = Waiting { stop: &self.stop, nonblocking: call.nonblocking };
        match reader.capture.wait(waiting, slept) {
            Waited::Sleep(sleep) => Step::Sleep(sleep),
            Waited::Look => {
                call.phase = Phase::Read;
                self.read(reader, call)
            }
            Waited::Stopped => Step::End(ERROR_BREAK),
            Waited::Failed(words) => Step::End(self.fail(&words)),
        }
    }

    fn read(&self, reader: &mut Reader, call: &mut Call) -> Step {
        let is_stopped = call.count > 0 && self.stop.take();
        if is_stopped || call.is_done() || !reader.capture.is_ready() {
            reader.capture.pause();
            return if is_stopped { Step::End(ERROR_BREAK) } else { self.end(call) };
        }
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        if let Some(packet) = reader.capture.next(&self.stop) {
            call.take(header_of(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
            if call.reads != Reads::Next {
                return Step::Deliver;
            }
            if !packet.stays {
                reader.kept.clear();
                reader.kept.extend_from_slice(packet.bytes);
                call.bytes = reader.kept.as_ptr();
            }
            reader.header = call.header;
        }
        reader.capture.pause();
        if self.stop.take() { Step::End(ERROR_BREAK) } else { Step::Again }
    }

    /// No packet is left that the call may read now.
    fn end(&self, call: &mut Call) -> Step {
        let read = c_int::try_from(call.count).unwrap_or(c_int::MAX);
        let is_loop = call.reads == Reads::Loop;
        let goes_on = read == 0 && self.waits_for_packets && !call.nonblocking;
        if is_loop && call.left > 0 {
            // `count` never exceeds `left` (`is_done`), so this ends at 0, and does not become "any number"
            // below it.
            call.left -= read;
            if call.left == 0 {
                return Step::End(0);
            }
        }
        if !is_loop && !goes_on {
            return Step::End(read);
        }
        call.phase = Phase::Begin;
        Step::Again
    }
}

/// The header of a packet, with the captured length.
#[inline]
fn header_of(packet: &Packet<'_>, nanoseconds: bool, snap_bytes: u32) -> PacketHeader {
    let (seconds, ns) = (packet.time_ns / 1_000_000_000, packet.time_ns % 1_000_000_000);
    let fraction = if nanoseconds { ns } else { ns / 1000 };
    PacketHeader {
        time: libc::timeval { tv_sec: seconds.cast_signed(), tv_usec: fraction.cast_signed() },
        captured_bytes: (packet.bytes.len() as u32).min(snap_bytes),
        original_bytes: packet.original_bytes,
    }
}
