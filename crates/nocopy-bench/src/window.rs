//! The measured part of a trial, agreed between its threads without stopping any of them.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cpu;

/// The parts of a trial, in order. Only [`TrialPhase::Measure`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum TrialPhase {
    WarmUp,
    Measure,
    /// Senders stop; receivers receive what is in flight, so that only really lost packets are missing.
    Drain,
    Stop,
}

impl TrialPhase {
    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            0 => TrialPhase::WarmUp,
            1 => TrialPhase::Measure,
            2 => TrialPhase::Drain,
            _ => TrialPhase::Stop,
        }
    }
}

#[derive(Debug)]
pub(crate) struct TrialWindow {
    phase: AtomicU8,
    under_way: AtomicUsize,
    /// The processor time of the thread that counts.
    cpu: fn() -> Duration,
}

impl TrialWindow {
    pub(crate) fn new() -> Self {
        Self::with_clock(cpu::thread_cpu_time)
    }

    /// A gauge for a process of its own, with all its threads.
    pub(crate) fn for_process() -> Self {
        Self::with_clock(cpu::process_cpu_time)
    }

    fn with_clock(cpu: fn() -> Duration) -> Self {
        Self { phase: AtomicU8::new(TrialPhase::WarmUp as u8), under_way: AtomicUsize::new(0), cpu }
    }

    // Relaxed, as are the loads below: only the phase itself is communicated; joining the threads orders
    // everything else.
    pub(crate) fn advance(&self, phase: TrialPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> TrialPhase {
        TrialPhase::from_number(self.phase.load(Ordering::Relaxed))
    }

    /// True until senders shall stop.
    pub(crate) fn is_open(&self) -> bool {
        self.phase() < TrialPhase::Drain
    }

    /// The number of threads that have finished at least one batch, possibly an empty one.
    pub(crate) fn threads_under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    pub(crate) fn gauge(&self) -> WindowGauge<'_> {
        WindowGauge { window: self, is_under_way: false, packets: 0, first: None, last: None }
    }
}

/// One thread's count, marked by that thread itself when it sees the phase change: a thread that wakes
/// every 10 ms then measures a window that starts and ends where it was awake.
#[derive(Debug)]
pub(crate) struct WindowGauge<'w> {
    window: &'w TrialWindow,
    is_under_way: bool,
    packets: u64,
    first: Option<WindowMark>,
    last: Option<WindowMark>,
}

#[derive(Debug, Clone, Copy)]
struct WindowMark {
    at: Instant,
    cpu: Duration,
    packets: u64,
}

/// The work of one thread or process within the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowReading {
    /// Of a stream: bytes.
    pub packets: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
    /// In all phases together.
    pub packets_total: u64,
}

impl WindowGauge<'_> {
    /// Adds packets, or bytes of a stream. Called once per batch, also for an empty one.
    pub(crate) fn count_packets(&mut self, packets: u64) {
        self.packets += packets;
        if !self.is_under_way {
            self.is_under_way = true;
            self.window.under_way.fetch_add(1, Ordering::Relaxed);
        }
        match (self.window.phase(), self.first, self.last) {
            (TrialPhase::Measure, None, _) => self.first = Some(self.mark_now()),
            (TrialPhase::Drain | TrialPhase::Stop, _, None) => self.last = Some(self.mark_now()),
            _ => {}
        }
    }

    pub(crate) fn is_measuring(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn may_send(&self) -> bool {
        self.window.is_open()
    }

    pub(crate) fn may_receive(&self) -> bool {
        self.window.phase() < TrialPhase::Stop
    }

    pub(crate) fn phase(&self) -> TrialPhase {
        self.window.phase()
    }

    fn mark_now(&self) -> WindowMark {
        WindowMark { at: Instant::now(), cpu: (self.window.cpu)(), packets: self.packets }
    }

    pub(crate) fn finish(self) -> WindowReading {
        let last = self.last.unwrap_or_else(|| self.mark_now());
        let first = self.first.unwrap_or(last);
        WindowReading {
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
    fn only_packets_within_the_window_are_counted() {
        let window = TrialWindow::new();
        let mut gauge = window.gauge();
        assert_eq!(window.threads_under_way(), 0);
        gauge.count_packets(10);
        assert_eq!(window.threads_under_way(), 1);
        window.advance(TrialPhase::Measure);
        gauge.count_packets(1); // The batch during which the phase changed belongs to the warm-up.
        gauge.count_packets(20);
        window.advance(TrialPhase::Drain);
        assert!(!gauge.may_send() && gauge.may_receive());
        gauge.count_packets(5);
        gauge.count_packets(7);
        window.advance(TrialPhase::Stop);
        assert!(!gauge.may_receive());
        let reading = gauge.finish();
        assert_eq!((reading.packets, reading.packets_total), (25, 43));
    }
}
