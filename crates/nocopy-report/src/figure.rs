//! Figures by which the rows of a series are compared.

use serde::{Deserialize, Serialize};

/// A figure, serialised as the name of a row's field.
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
    /// Processor time of all processors that handle the packets, including the source.
    #[serde(rename = "machine_cpu_ns_per_packet")]
    MachineCpuPerPacket,
    /// Share of a processor's time, however many packets arrive.
    #[serde(rename = "receiver_cpu_percent")]
    ReceiverCpu,
    /// Processor time of the process that sends a stream, or serves files.
    #[serde(rename = "sender_cpu_us_per_mb")]
    SenderCpuPerMegabyte,
    /// Processor time of the process that receives a stream, or reads files from a server.
    #[serde(rename = "receiver_cpu_us_per_mb")]
    ReceiverCpuPerMegabyte,
    #[serde(rename = "p50_us")]
    MedianLatency,
    #[serde(rename = "p99_us")]
    TailLatency,
}

impl Figure {
    pub fn name(self) -> &'static str {
        self.name_and_unit()[0]
    }

    pub fn unit(self) -> &'static str {
        self.name_and_unit()[1]
    }

    fn name_and_unit(self) -> [&'static str; 2] {
        match self {
            Figure::PacketsPerSecond => ["packets/s", "packets/s"],
            Figure::MessagesPerSecond => ["messages/s", "messages/s"],
            Figure::BytesPerSecond => ["bytes/s", "Gbit/s"],
            Figure::ReceiverCpuPerPacket => ["receiver CPU per packet", "receiver CPU, ns per packet"],
            Figure::MachineCpuPerPacket => ["machine CPU per packet", "CPU of the machine, ns per packet"],
            Figure::ReceiverCpu => ["receiver CPU", "receiver CPU, % of a processor"],
            Figure::SenderCpuPerMegabyte => ["sender CPU per megabyte", "sender CPU, us per megabyte"],
            Figure::ReceiverCpuPerMegabyte => ["receiver CPU per megabyte", "receiver CPU, us per megabyte"],
            Figure::MedianLatency => ["p50", "p50 of the round trip, us"],
            Figure::TailLatency => ["p99", "p99 of the round trip, us"],
        }
    }

    /// The displayed value: streams in bits.
    pub fn displayed_value(self, value: f64) -> f64 {
        if self == Figure::BytesPerSecond { value * 8.0 / 1e9 } else { value }
    }

    /// True for rates; false for costs and latencies.
    pub fn more_is_better(self) -> bool {
        matches!(self, Figure::PacketsPerSecond | Figure::MessagesPerSecond | Figure::BytesPerSecond)
    }
}
