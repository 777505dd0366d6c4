//! The measured part of a trial, agreed between its threads without stopping any of them.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cpu;

/// The parts of a trial, in order. Only [`Phase::Measure`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    WarmUp,
    Measure,
    /// Senders stop; receivers receive what is in flight, so that only really lost packets are missing.
    Drain,
    Stop,
}

impl Phase {
    pub(crate) fn of(number: u8) -> Self {
        match number {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            2 => Phase::Drain,
            _ => Phase::Stop,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Window {
    phase: AtomicU8,
    under_way: AtomicUsize,
    /// The processor time of the thread that counts.
    cpu: fn() -> Duration,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self::with_clock(cpu::thread_time)
    }

    /// A gauge for a process of its own, with all its threads.
    pub(crate) fn of_process() -> Self {
        Self::with_clock(cpu::process_time)
    }

    fn with_clock(cpu: fn() -> Duration) -> Self {
        Self { phase: AtomicU8::new(Phase::WarmUp as u8), under_way: AtomicUsize::new(0), cpu }
    }

    // Relaxed, as are the loads below: only the phase itself is communicated; joining the threads orders
    // everything else.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Relaxed))
    }

    /// True until senders shall stop.
    pub(crate) fn is_open(&self) -> bool {
        self.phase() < Phase::Drain
    }

    /// The number of threads that have finished at least one batch, possibly an empty one.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    pub(crate) fn gauge(&self) -> Gauge<'_> {
        Gauge { window: self, is_under_way: false, packets: 0, first: None, last: None }
    }
}

/// One thread's count, marked by that thread itself when it sees the phase change: a thread that wakes
/// every 10 ms then measures a window that starts and ends where it was awake.
#[derive(Debug)]
pub(crate) struct Gauge<'w> {
    window: &'w Window,
    is_under_way: bool,
    packets: u64,
    first: Option<Mark>,
    last: Option<Mark>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    cpu: Duration,
    packets: u64,
}

/// The work of one thread or process within the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// Of a stream: bytes.
    pub packets: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
    /// In all phases together.
    pub packets_total: u64,
}

impl Gauge<'_> {
    /// Adds packets, or bytes of a stream. Called once per batch, also for an empty one.
    pub(crate) fn count(&mut self, packets: u64) {
        self.packets += packets;
        if !self.is_under_way {
            self.is_under_way = true;
            self.window.under_way.fetch_add(1, Ordering::Relaxed);
        }
        match (self.window.phase(), self.first, self.last) {
            (Phase::Measure, None, _) => self.first = Some(self.mark()),
            (Phase::Drain | Phase::Stop, _, None) => self.last = Some(self.mark()),
            _ => {}
        }
    }

    pub(crate) fn is_measuring(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn sending(&self) -> bool {
        self.window.is_open()
    }

    pub(crate) fn receiving(&self) -> bool {
        self.window.phase() < Phase::Stop
    }

    pub(crate) fn phase(&self) -> Phase {
        self.window.phase()
    }

    fn mark(&self) -> Mark {
        Mark { at: Instant::now(), cpu: (self.window.cpu)(), packets: self.packets }
    }

    pub(crate) fn finish(self) -> Reading {
        let last = self.last.unwrap_or_else(|| self.mark());
        let first = self.first.unwrap_or(last);
        Reading {
            packets: last.packets - first.packets,
            elapsed: last.at - first.at,
            cpu: last.cpu.saturating_sub(first.cpu),
            packets_total: self.packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_window_counts() {
        let window = Window::new();
        let mut gauge = window.gauge();
        assert_eq!(window.under_way(), 0);
        gauge.count(10);
        assert_eq!(window.under_way(), 1);
        window.advance(Phase::Measure);
        gauge.count(1); // The batch during which the phase changed belongs to the warm-up.
        gauge.count(20);
        window.advance(Phase::Drain);
        assert!(!gauge.sending() && gauge.receiving());
        gauge.count(5);
        gauge.count(7);
        window.advance(Phase::Stop);
        assert!(!gauge.receiving());
        let reading = gauge.finish();
        assert_eq!((reading.packets, reading.packets_total), (25, 43));
    }
}
