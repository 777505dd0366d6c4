//! Calls that read packets, in steps: between two steps a call waits, or calls the program, and has nothing
//! of the handle then.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use super::claim::StackPosition;
use super::live::{LiveCapture, ReaderState};
use crate::abi::{ERROR_BREAK, PacketHeader};
use crate::capture::{Packet, PlannedSleep, SleepResult, WaitOptions, WaitResult};

/// What a call is to do after a step. Plain data, without anything to drop: a thread may leave the call there
/// in every way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadAction {
    /// Call the program with the packet of the [`ReadCall`].
    Deliver,
    Sleep(PlannedSleep),
    /// The next step at once: others may have theirs before.
    Again,
    /// Return that.
    End(c_int),
}

/// What a program reads by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadCallKind {
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

/// A reading call: where it is. Plain data, as [`ReadAction`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadCall {
    pub(crate) position: StackPosition,
    reads: ReadCallKind,
    /// Packets that are still to be read; 0 or less: any number.
    left: c_int,
    phase: ReadPhase,
    nonblocking: bool,
    /// Packets since the call last began to wait.
    count: usize,
    /// The packet to deliver.
    pub(crate) header: PacketHeader,
    pub(crate) bytes: *const u8,
    /// Where the header of [`ReadCallKind::Next`] is kept.
    pub(crate) header_slot: *mut PacketHeader,
}

impl ReadCall {
    pub(crate) const fn new(reads: ReadCallKind, count: c_int, position: StackPosition) -> Self {
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let header = PacketHeader { time, captured_bytes: 0, original_bytes: 0 };
        let (bytes, header_slot) = (null(), null_mut());
        Self {
            position,
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
        self.phase == ReadPhase::Read && self.reads != ReadCallKind::Next && !self.has_read_enough()
    }

    #[inline]
    fn has_read_enough(&self) -> bool {
        usize::try_from(self.left).is_ok_and(|left| left > 0 && self.count >= left)
    }

    /// Notes a packet to deliver.
    #[inline]
    fn set_packet(&mut self, header: PacketHeader, bytes: *const u8) {
        (self.header, self.bytes) = (header, bytes);
        self.count += 1;
    }
}

impl LiveCapture {
    /// The next step, if a packet is in hand; makes no system call.
    #[inline]
    pub(crate) fn try_fetch_packet(&self, reader: &mut ReaderState, call: &mut ReadCall) -> bool {
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        let Some(packet) = reader.capture.next_without_syscall(&self.stop) else { return false };
        call.set_packet(pcap_header(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
        reader.delivering = Some(call.position);
        true
    }

    /// The next step, after a sleep with its result: reads as libpcap's `pcap_read_linux_mmap_v3` does.
    pub(crate) fn run_step(
        &self,
        reader: &mut ReaderState,
        call: &mut ReadCall,
        mut slept: Option<SleepResult>,
    ) -> ReadAction {
        if call.phase == ReadPhase::Begin
            && reader.delivering.is_some_and(|outer| call.position.may_be_nested_in(outer))
        {
            return ReadAction::End(self.fail_with_text(
                "handle: cannot be read; another call is reading its packets; wait until that has returned",
            ));
        }
        if call.phase == ReadPhase::Begin {
            (call.header_slot, call.nonblocking, call.count) =
                (&raw mut reader.header, self.is_nonblocking(), 0);
            call.phase =
                if reader.capture.ensure_packets_claimed() { ReadPhase::Read } else { ReadPhase::Wait };
            slept = None;
        }
        let step = match call.phase {
            ReadPhase::Wait => self.wait_step(reader, call, slept),
            ReadPhase::Begin | ReadPhase::Read => self.read_step(reader, call),
        };
        reader.delivering = matches!(step, ReadAction::Deliver).then_some(call.position);
        step
    }

    fn wait_step(
        &self,
        reader: &mut ReaderState,
        call: &mut ReadCall,
        slept: Option<SleepResult>,
    ) -> ReadAction {
        let waiting = WaitOptions { stop: &self.stop, nonblocking: call.nonblocking };
        match reader.capture.advance_wait(waiting, slept) {
            WaitResult::Sleep(sleep) => ReadAction::Sleep(sleep),
            WaitResult::Check => {
                call.phase = ReadPhase::Read;
                self.read_step(reader, call)
            }
            WaitResult::Stopped => ReadAction::End(ERROR_BREAK),
            WaitResult::Failed(words) => ReadAction::End(self.fail_with_text(&words)),
        }
    }

    fn read_step(&self, reader: &mut ReaderState, call: &mut ReadCall) -> ReadAction {
        let is_stopped = call.count > 0 && self.stop.take_request();
        if is_stopped || call.has_read_enough() || !reader.capture.ensure_packets_claimed() {
            reader.capture.pause_delivery();
            return if is_stopped { ReadAction::End(ERROR_BREAK) } else { self.step_without_packets(call) };
        }
        let (nanoseconds, snap_bytes) = (reader.nanoseconds, reader.snap_bytes);
        if let Some(packet) = reader.capture.next_packet(&self.stop) {
            call.set_packet(pcap_header(&packet, nanoseconds, snap_bytes), packet.bytes.as_ptr());
            if call.reads != ReadCallKind::Next {
                return ReadAction::Deliver;
            }
            if !packet.outlives_pause {
                reader.packet_copy.clear();
                reader.packet_copy.extend_from_slice(packet.bytes);
                call.bytes = reader.packet_copy.as_ptr();
            }
            reader.header = call.header;
        }
        reader.capture.pause_delivery();
        if self.stop.take_request() { ReadAction::End(ERROR_BREAK) } else { ReadAction::Again }
    }

    /// No packet is left that the call may read now.
    fn step_without_packets(&self, call: &mut ReadCall) -> ReadAction {
        let read = c_int::try_from(call.count).unwrap_or(c_int::MAX);
        let is_loop = call.reads == ReadCallKind::Loop;
        let must_wait = read == 0 && self.waits_for_packets && !call.nonblocking;
        if is_loop && call.left > 0 {
            // `count` never exceeds `left` (`has_read_enough`), so this ends at 0, and does not become "any
            // number" below it.
            call.left -= read;
            if call.left == 0 {
                return ReadAction::End(0);
            }
        }
        if !is_loop && !must_wait {
            return ReadAction::End(read);
        }
        call.phase = ReadPhase::Begin;
        ReadAction::Again
    }
}

/// The header of a packet, with the captured length.
#[inline]
fn pcap_header(packet: &Packet<'_>, nanoseconds: bool, snap_bytes: u32) -> PacketHeader {
    let (seconds, ns) = (packet.time_ns / 1_000_000_000, packet.time_ns % 1_000_000_000);
    let fraction = if nanoseconds { ns } else { ns / 1000 };
    PacketHeader {
        time: libc::timeval { tv_sec: seconds.cast_signed(), tv_usec: fraction.cast_signed() },
        captured_bytes: (packet.bytes.len() as u32).min(snap_bytes),
        original_bytes: packet.original_bytes,
    }
}
