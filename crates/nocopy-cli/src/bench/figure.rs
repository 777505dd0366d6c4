//! What the rows of a series are compared by.

use serde::{Deserialize, Serialize};

/// By the name that it has as a field of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Figure {
    #[default]
    #[serde(rename = "packets_per_s")]
    PacketsPerSecond,
    #[serde(rename = "messages_per_s")]
    MessagesPerSecond,
    #[serde(rename = "bytes_per_s")]
    BytesPerSecond,
    #[serde(rename = "receiver_cpu_ns_per_packet")]
    ReceiverCpuPerPacket,
    /// Of a processor's time, whatever the packets it gets.
    #[serde(rename = "receiver_cpu_percent")]
    ReceiverCpu,
    #[serde(rename = "p50_us")]
    MedianLatency,
}

impl Figure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Figure::PacketsPerSecond => "packets/s",
            Figure::MessagesPerSecond => "messages/s",
            Figure::BytesPerSecond => "bytes/s",
            Figure::ReceiverCpuPerPacket => "receiver CPU per packet",
            Figure::ReceiverCpu => "receiver CPU",
            Figure::MedianLatency => "p50",
        }
    }

    /// Rates: more is better; costs and latencies: less.
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Figure::PacketsPerSecond | Figure::MessagesPerSecond | Figure::BytesPerSecond)
    }
}
