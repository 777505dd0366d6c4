//! The JSON schema `nocopy.bench/1`. A field that does not apply is absent, never null or zero.

use nocopy::Tally;
use serde::{Deserialize, Serialize};

pub(crate) const SCHEMA: &str = "nocopy.bench/1";

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) machine: Machine,
    pub(crate) results: Vec<Row>,
}

/// What a reader needs to know before comparing figures of two machines: usually, that it is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) nocopy_version: String,
    pub(crate) kernel: String,
    pub(crate) architecture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processor: Option<String>,
    pub(crate) processors: usize,
    /// True when the processor says it is a virtual one, so that others share the real one.
    pub(crate) virtual_machine: bool,
    /// `private veth pair`, or the interfaces given.
    pub(crate) network: String,
}

impl Machine {
    pub(crate) fn line(&self) -> String {
        let Self { network, kernel, processors, .. } = self;
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let shared = if self.virtual_machine { " (a virtual machine)" } else { "" };
        format!("{network} · Linux {kernel} · {processors} × {processor}{shared}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Copies {
    ZeroCopy,
    Copied,
    Unknown,
}

const UNKNOWN_CAUSE: &str =
    "not copied by the socket; behind a virtual interface nobody says what becomes of the bytes";

/// What is known of copies, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Evidence {
    pub(crate) copies: Copies,
    pub(crate) cause: Option<String>,
}

impl Evidence {
    pub(crate) fn copied(cause: impl Into<String>) -> Self {
        Self { copies: Copies::Copied, cause: Some(cause.into()) }
    }

    pub(crate) fn unknown(cause: impl Into<String>) -> Self {
        Self { copies: Copies::Unknown, cause: Some(cause.into()) }
    }

    /// What the library says.
    pub(crate) fn told(evidence: nocopy::Evidence) -> Self {
        match evidence {
            nocopy::Evidence::Copied(cause) => Self::copied(cause.to_string()),
            nocopy::Evidence::ZeroCopy => Self { copies: Copies::ZeroCopy, cause: None },
            _ => Self::unknown(UNKNOWN_CAUSE),
        }
    }

    /// What a socket of the library says of all it moved; of several things that of the most bytes, but `zero-copy` only if it is all of
    /// them.
    pub(crate) fn of(tally: &Tally) -> Self {
        let entries: Vec<_> = tally.entries().collect();
        let weight = |entry: &(nocopy::Evidence, u64)| (entry.0 != nocopy::Evidence::ZeroCopy, entry.1);
        let Some((evidence, _)) = entries.iter().copied().max_by_key(weight) else {
            return Self::unknown("nothing was moved");
        };
        let told = Self::told(evidence);
        if entries.len() == 1 {
            return told;
        }
        let share = |(evidence, bytes): &(nocopy::Evidence, u64)| {
            format!("{evidence} {:.0} %", *bytes as f64 / tally.bytes() as f64 * 100.0)
        };
        let cause = entries.iter().map(share).collect::<Vec<_>>().join(", ");
        Self { cause: Some(cause), ..told }
    }
}

/// What a stream, or messages, go over, and how much memory they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Link {
    pub(crate) link: &'static str,
    pub(crate) mtu_bytes: u32,
    /// Of TCP.
    pub(crate) congestion_control: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_bytes: Option<usize>,
}

/// One method in one situation against one baseline. Costs and rates are medians of the rounds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: &'static str,
    pub(crate) method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sink: Option<&'static str>,
    pub(crate) payload_bytes: usize,
    /// Of streams: the interface, its MTU and how the ends control congestion.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<Link>,
    /// The receiver's, where its length is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buffer_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packets_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbit_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_percent: Option<f64>,
    /// Receiving threads, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receivers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_ns_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_ns_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receiver_cpu_us_per_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine_cpu_us_per_mb: Option<f64>,
    /// Of the bytes received, those that were mapped and not copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mapped_fraction: Option<f64>,
    /// Messages with an answer, of all rounds together, and those without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answered: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_9_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<Copies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<&'static str>,
    /// Which of several rows of the baseline, where it is not the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline_variant: Option<String>,
    /// How many times better than the baseline: its cost over this one's, or this rate over its.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_high: Option<f64>,
    pub(crate) runs: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_apply_is_absent() {
        let row =
            Row { workload: "latency", method: "xdp-spinning", payload_bytes: 64, runs: 3, ..Row::default() };
        let row = Row { p50_us: Some(2.5), evidence: Some(Copies::ZeroCopy), ..row };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(
            text,
            r#"{"workload":"latency","method":"xdp-spinning","payload_bytes":64,"p50_us":2.5,"evidence":"zero-copy","runs":3}"#
        );
    }
}
