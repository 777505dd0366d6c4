//! A short measurement, instead of known facts about drivers.

use std::fmt;
use std::time::{Duration, Instant};

use super::ladder::LADDER;
use super::{Mode, OpenError, Port, PortBuilder, open};
use crate::sys::clock::processor_time;

/// Modes that receive at least this share of the best mode's packets are compared by processor time.
const AS_MANY: f64 = 0.97;

#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    pub(super) mode: Mode,
    packets: u64,
    elapsed: Duration,
    /// Processor time of the receiving thread.
    cpu: Duration,
}

impl Measurement {
    fn packets_per_s(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / (self.packets as f64).max(1.0)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} packets/s, {:.0} ns of CPU each", self.mode, self.packets_per_s(), self.cpu_ns())
    }
}

pub(super) fn open_best(settings: &PortBuilder, duration: Duration) -> Result<Port, OpenError> {
    let plain = PortBuilder { measure: None, ..settings.clone() };
    let modes = settings.mode.map_or(LADDER.to_vec(), |mode| vec![mode]);
    let measured: Vec<Measurement> = modes
        .into_iter()
        .filter_map(|mode| measure(open::open(plain.clone().mode(mode)).ok()?, duration))
        .collect();
    let chosen = best(&measured).map_or(settings.mode, Some);
    open::open(PortBuilder { mode: chosen, measured, ..plain })
}

/// `None` if the port failed.
fn measure(mut port: Port, duration: Duration) -> Option<Measurement> {
    let (started, cpu) = (Instant::now(), processor_time());
    let mut packets = 0;
    while let Some(left) = duration.checked_sub(started.elapsed()) {
        let mut batch = port.receiver().receive_timeout(left).ok()?;
        while batch.next_chain().is_some() {
            packets += 1;
        }
    }
    let (elapsed, cpu) = (started.elapsed(), processor_time().saturating_sub(cpu));
    Some(Measurement { mode: port.mode(), packets, elapsed, cpu })
}

/// The mode that received most or, among about equal ones, used the least processor time; `None` if no packet arrived.
fn best(measured: &[Measurement]) -> Option<Mode> {
    let most = measured.iter().map(Measurement::packets_per_s).fold(0.0, f64::max);
    let as_many = measured.iter().filter(|one| one.packets > 0 && one.packets_per_s() >= most * AS_MANY);
    as_many.min_by(|one, other| one.cpu_ns().total_cmp(&other.cpu_ns())).map(|one| one.mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mode: Mode, packets: u64, cpu_us: u64) -> Measurement {
        let (elapsed, cpu) = (Duration::from_millis(100), Duration::from_micros(cpu_us));
        Measurement { mode, packets, elapsed, cpu }
    }

    #[test]
    fn more_packets_win_and_then_less_time() {
        let (native, ring) = (Mode::XdpCopyNative, Mode::PacketRing);
        assert_eq!(best(&[measured(native, 1000, 900), measured(ring, 1400, 5000)]), Some(ring));
        assert_eq!(best(&[measured(native, 1000, 900), measured(ring, 1010, 100)]), Some(ring));
        assert_eq!(best(&[measured(native, 1000, 100), measured(ring, 1010, 900)]), Some(native));
        assert_eq!(best(&[measured(native, 0, 10), measured(ring, 0, 20)]), None);
    }
}
