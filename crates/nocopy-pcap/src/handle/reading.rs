//! Calls that read packets, in steps: between two steps a call waits, or calls the program, and has nothing
//! of the handle then.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use super::claim::CallSite;
use super::live::{Live, Reader};
use crate::abi::{ERROR_BREAK, PacketHeader};
use crate::capture::{Packet, Sleep, SleepResult, WaitOptions, WaitResult};

/// What a call is to do after a step. Plain data, without anything to drop: a thread may leave the call there
/// in every way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadStep {
    /// Call the program with the packet of the [`ReadCall`].
    Deliver,
    Sleep(Sleep),
    /// The next step at once: others may have theirs before.
    Again,
    /// Return that.
    End(c_int),
}

/// What a program reads by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadFunction {
    /// `pcap_next_ex`: the next packet, in place until the next call.
    Next,
    /// `pcap_dispatch`: a count of 0 or less means all packets that are waiting now.
    Dispatch,
    /// `pcap_loop`: reads the requested number of packets, and waits as often as needed; with a count of 0 or
    /// less it never ends.
    Loop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadPhase {
    Begin,
    Wait,
    Read,
}

/// A reading call: where it is. Plain data, as [`ReadStep`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadCall {
    pub(crate) site: CallSite,
    reads: ReadFunction,
    /// Packets that are still to be read; 0 or less: any number.
    left: c_int,
    phase: ReadPhase,
    nonblocking: bool,
    /// Packets since the call last began to wait.
    count: usize,
    /// The packet to deliver.
    pub(crate) header: PacketHeader,
    pub(crate) bytes: *const u8,
    /// Where the header of [`ReadFunction::Next`] is kept.
    pub(crate) header_slot: *mut PacketHeader,
}

impl ReadCall {
    pub(crate) const fn new(reads: ReadFunction, count: c_int, site: CallSite) -> Self {
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let header = PacketHeader { time, captured_bytes: 0, original_bytes: 0 };
        let (bytes, header_slot) = (null(), null_mut());
        Self {
            site,
            reads,
            left: count,
            phase: ReadPhase::Begin,
            nonblocking: false,
            count: 0,
            header,
            bytes,
            header_slot,
        }
    }

    /// Whether the next step is to deliver a packet, if one is in hand.
    #[inline]
    pub(crate) fn may_deliver_now(&self) -> bool {
        self.phase == ReadPhase::Read && self.reads != ReadFunction::Next && !self.is_done()
    }

    #[inline]
    fn is_done(&self) -> bool {
        usize::try_from(self.left).is_ok_and(|left| left > 0 && self.count >= left)
    }

    /// Notes a packet to deliver.
    #[inline]
    fn set_packet(&mut self, header: PacketHeader, bytes: *const u8) {
        (self.header, self.bytes) = (header, bytes);
        self.count += 1;
    }
}

impl Live {
    /// The next step, if a packet is in hand; makes no system call.
    #[inline]
    pub(crate) fn deliver_now(&self, reader: &mut Reader, call: &mut ReadCall) -> bool {
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        let Some(packet) = reader.capture.next_now(&self.stop) else { return false };
        call.set_packet(header_of(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
        reader.delivering = Some(call.site);
        true
    }

    /// The next step, after a sleep with its result: reads as libpcap's `pcap_read_linux_mmap_v3` does.
    pub(crate) fn step(
        &self,
        reader: &mut Reader,
        call: &mut ReadCall,
        mut slept: Option<SleepResult>,
    ) -> ReadStep {
        if call.phase == ReadPhase::Begin && reader.delivering.is_some_and(|outer| call.site.is_within(outer))
        {
            return ReadStep::End(self.fail(
                "handle: cannot be read; another call is reading its packets; wait until that has returned",
            ));
        }
        if call.phase == ReadPhase::Begin {
            (call.header_slot, call.nonblocking, call.count) =
                (&raw mut reader.header, self.is_nonblocking(), 0);
            call.phase = if reader.capture.is_ready() { ReadPhase::Read } else { ReadPhase::Wait };
            slept = None;
        }
        let step = match call.phase {
            ReadPhase::Wait => self.wait(reader, call, slept),
            ReadPhase::Begin | ReadPhase::Read => self.read(reader, call),
        };
        reader.delivering = matches!(step, ReadStep::Deliver).then_some(call.site);
        step
    }

    fn wait(&self, reader: &mut Reader, call: &mut ReadCall, slept: Option<SleepResult>) -> ReadStep {
        let waiting = WaitOptions { stop: &self.stop, nonblocking: call.nonblocking };
        match reader.capture.wait(waiting, slept) {
            WaitResult::Sleep(sleep) => ReadStep::Sleep(sleep),
            WaitResult::Check => {
                call.phase = ReadPhase::Read;
                self.read(reader, call)
            }
            WaitResult::Stopped => ReadStep::End(ERROR_BREAK),
            WaitResult::Failed(words) => ReadStep::End(self.fail(&words)),
        }
    }

    fn read(&self, reader: &mut Reader, call: &mut ReadCall) -> ReadStep {
        let is_stopped = call.count > 0 && self.stop.take();
        if is_stopped || call.is_done() || !reader.capture.is_ready() {
            reader.capture.pause();
            return if is_stopped { ReadStep::End(ERROR_BREAK) } else { self.end(call) };
        }
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        if let Some(packet) = reader.capture.next(&self.stop) {
            call.set_packet(header_of(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
            if call.reads != ReadFunction::Next {
                return ReadStep::Deliver;
            }
            if !packet.outlives_pause {
                reader.packet_copy.clear();
                reader.packet_copy.extend_from_slice(packet.bytes);
                call.bytes = reader.packet_copy.as_ptr();
            }
            reader.header = call.header;
        }
        reader.capture.pause();
        if self.stop.take() { ReadStep::End(ERROR_BREAK) } else { ReadStep::Again }
    }

    /// No packet is left that the call may read now.
    fn end(&self, call: &mut ReadCall) -> ReadStep {
        let read = c_int::try_from(call.count).unwrap_or(c_int::MAX);
        let is_loop = call.reads == ReadFunction::Loop;
        let must_wait = read == 0 && self.waits_for_packets && !call.nonblocking;
        if is_loop && call.left > 0 {
            // `count` never exceeds `left` (`is_done`), so this ends at 0, and does not become "any number"
            // below it.
            call.left -= read;
            if call.left == 0 {
                return ReadStep::End(0);
            }
        }
        if !is_loop && !must_wait {
            return ReadStep::End(read);
        }
        call.phase = ReadPhase::Begin;
        ReadStep::Again
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
