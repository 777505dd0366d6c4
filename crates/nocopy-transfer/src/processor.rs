//! Processor time of this process.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessorTimeSnapshot {
    at: Instant,
    user: Duration,
    system: Duration,
}

/// Processor time of all threads, including softirqs that ran in their context.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ProcessorUse {
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_datagram: Option<f64>,
}

impl ProcessorTimeSnapshot {
    pub(crate) fn now() -> Self {
        let (user, system) = processor_times();
        Self { at: Instant::now(), user, system }
    }

    /// The time used since the start, also per datagram.
    pub(crate) fn usage_since(self, datagrams: u64) -> ProcessorUse {
        let (user, system) = processor_times();
        let [user, system] = [user.saturating_sub(self.user), system.saturating_sub(self.system)];
        let both = (user + system).as_secs_f64();
        ProcessorUse {
            user_seconds: user.as_secs_f64(),
            system_seconds: system.as_secs_f64(),
            percent: 100.0 * both / self.at.elapsed().as_secs_f64().max(f64::MIN_POSITIVE),
            ns_per_datagram: (datagrams > 0).then(|| 1e9 * both / datagrams as f64),
        }
    }
}

impl ProcessorUse {
    pub(crate) fn description(&self) -> String {
        let Self { user_seconds, system_seconds, percent, ns_per_datagram } = self;
        let each = ns_per_datagram.map(|ns| format!(", {ns:.0} ns a datagram")).unwrap_or_default();
        format!("{user_seconds:.3} s user, {system_seconds:.3} s system, {percent:.0} % of a processor{each}")
    }
}

/// Times in user space and in the kernel. They are 0 only if the kernel refuses to report them.
fn processor_times() -> (Duration, Duration) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Default::default() };
    let duration = |microseconds: i64| Duration::from_micros(microseconds.unsigned_abs());
    (duration(usage.user_time().num_microseconds()), duration(usage.system_time().num_microseconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_processor_time_is_measured() {
        let start = ProcessorTimeSnapshot::now();
        let give_up = Instant::now() + Duration::from_secs(60);
        let before = processor_times();
        while processor_times() == before {
            assert!(Instant::now() < give_up, "it is not seen");
        }
        let used = start.usage_since(10);
        let seconds = used.user_seconds + used.system_seconds;
        assert!(seconds > 0.0 && used.percent > 0.0, "{used:?}");
        assert!((used.ns_per_datagram.unwrap() - seconds * 1e8).abs() < 1.0, "{used:?}");
        assert!(start.usage_since(0).ns_per_datagram.is_none());
    }
}
