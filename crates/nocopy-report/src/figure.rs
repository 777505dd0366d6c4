//! What the rows of a series are compared by.

use serde::{Deserialize, Serialize};

/// By the name that it has as a field of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figure {
    #[default]
    #[serde(rename = "packets_per_s")]
    PacketsPerSecond,
    #[serde(rename = "messages_per_s")]
    MessagesPerSecond,
    #[serde(rename = "bytes_per_s")]
    BytesPerSecond,
    #[serde(rename = "receiver_cpu_ns_per_packet")]
    ReceiverCpuPerPacket,
    /// Of all processors, whichever of them handles the packets, including the source.
    #[serde(rename = "machine_cpu_ns_per_packet")]
    MachineCpuPerPacket,
    /// Of a processor's time, whatever the packets it gets.
    #[serde(rename = "receiver_cpu_percent")]
    ReceiverCpu,
    /// Of the process that sends a stream, or serves files.
    #[serde(rename = "sender_cpu_us_per_mb")]
    SenderCpuPerMegabyte,
    /// Of the process that receives a stream, or reads files from a server.
    #[serde(rename = "receiver_cpu_us_per_mb")]
    ReceiverCpuPerMegabyte,
    #[serde(rename = "p50_us")]
    MedianLatency,
    #[serde(rename = "p99_us")]
    TailLatency,
}

impl Figure {
    pub fn name(self) -> &'static str {
        match self {
            Figure::PacketsPerSecond => "packets/s",
            Figure::MessagesPerSecond => "messages/s",
            Figure::BytesPerSecond => "bytes/s",
            Figure::ReceiverCpuPerPacket => "receiver CPU per packet",
            Figure::MachineCpuPerPacket => "machine CPU per packet",
            Figure::ReceiverCpu => "receiver CPU",
            Figure::SenderCpuPerMegabyte => "sender CPU per megabyte",
            Figure::ReceiverCpuPerMegabyte => "receiver CPU per megabyte",
            Figure::MedianLatency => "p50",
            Figure::TailLatency => "p99",
        }
    }

    /// What [`Figure::shown`] is in.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::PacketsPerSecond => "packets/s",
            Figure::MessagesPerSecond => "messages/s",
            Figure::BytesPerSecond => "Gbit/s",
            Figure::ReceiverCpuPerPacket => "receiver CPU, ns per packet",
            Figure::MachineCpuPerPacket => "CPU of the machine, ns per packet",
            Figure::ReceiverCpu => "receiver CPU, % of a processor",
            Figure::SenderCpuPerMegabyte => "sender CPU, us per megabyte",
            Figure::ReceiverCpuPerMegabyte => "receiver CPU, us per megabyte",
            Figure::MedianLatency => "p50 of the round trip, us",
            Figure::TailLatency => "p99 of the round trip, us",
        }
    }

    /// As shown to people: streams in bits.
    pub fn shown(self, value: f64) -> f64 {
        if self == Figure::BytesPerSecond { value * 8.0 / 1e9 } else { value }
    }

    /// Rates: more is better; costs and latencies: less.
    pub fn more_is_better(self) -> bool {
        matches!(self, Figure::PacketsPerSecond | Figure::MessagesPerSecond | Figure::BytesPerSecond)
    }
}
