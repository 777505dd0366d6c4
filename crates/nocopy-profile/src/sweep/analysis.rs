//! A sweep in the terms of the study of 2011 that it comes from: processor time by the study's rows, and what its other tables had.

use nocopy_report::quantity::{length, short};
use nocopy_report::result::Machine;
use nocopy_report::table::Table;
use serde::{Deserialize, Serialize};

use super::result::{CellFigures, Range, Sweep};
use crate::check::Check;
use crate::figures::{Figures, PlaceTime, Queue, Tcp};
use crate::place::Place;

/// Where the processor time of a TCP receiver goes, and what its socket does, by the length of the program's buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiveAnalysis {
    /// UTC, to the second.
    pub measured_at: String,
    pub machine: Machine,
    /// The amount that each transfer moved.
    pub bytes: u64,
    /// Of each buffer, each with profiling and without.
    pub rounds: u32,
    pub congestion_control: String,
    pub buffers: Vec<BufferAnalysis>,
}

/// Of one length of the program's buffer, all rounds together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BufferAnalysis {
    pub buffer_bytes: usize,
    /// `SO_RCVBUF` as it was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<usize>,
    /// Without profiling.
    pub gbit_per_s: Range,
    /// What profiling took of the throughput.
    pub overhead_percent: Range,
    /// Every row of the study once, in the order of [`StudyRow::ALL`].
    pub rows: Vec<RowTime>,
    /// Of `rows`, the part of [`StudyRow::ReceiveInProcess`] that is the copy to the program, as a share of all rows.
    pub copy_share: f64,
    /// All rows together, for 10^6 bytes received; absent if nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
    /// The same as a share of one processor's time while it was profiled; may be more than 1, since softirqs run on another one.
    pub processor_share: f64,
    /// On which the rows rest.
    pub samples: u64,
    /// Of the bytes received: those that did not lie in the receive queue when the call began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_share: Option<f64>,
    /// The receive queue when a call begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// The backlog's share, ACKs for each segment, and the mean window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
    pub checks: Vec<Check>,
}

/// A row of the study's table of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StudyRow {
    DriverInInterrupt,
    DriverOutsideInterrupt,
    ReceiveInSoftirq,
    ReceiveInProcess,
    AckInSoftirq,
    AckOutsideSoftirq,
    RetransmitTimer,
    DelayedAckTimer,
    KeepaliveTimer,
    EverythingElse,
}

/// The processor time of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowTime {
    pub row: StudyRow,
    /// Of all rows together, and half of its 95 % interval.
    pub share: f64,
    pub error_share: f64,
    /// For 10^6 bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
}

impl StudyRow {
    pub const ALL: [Self; 10] = [
        Self::DriverInInterrupt,
        Self::DriverOutsideInterrupt,
        Self::ReceiveInSoftirq,
        Self::ReceiveInProcess,
        Self::AckInSoftirq,
        Self::AckOutsideSoftirq,
        Self::RetransmitTimer,
        Self::DelayedAckTimer,
        Self::KeepaliveTimer,
        Self::EverythingElse,
    ];

    pub fn words(self) -> &'static str {
        match self {
            Self::DriverInInterrupt => "driver in interrupt",
            Self::DriverOutsideInterrupt => "driver outside interrupt",
            Self::ReceiveInSoftirq => "protocol receive in softirq",
            Self::ReceiveInProcess => "protocol receive in the process",
            Self::AckInSoftirq => "ACK sending in softirq",
            Self::AckOutsideSoftirq => "ACK sending outside softirq",
            Self::RetransmitTimer => "retransmit timer",
            Self::DelayedAckTimer => "delayed-ACK timer",
            Self::KeepaliveTimer => "keepalive timer",
            Self::EverythingElse => "everything else",
        }
    }

    /// The row that has a place of the profile, of a receiver. The copy to the program is part of TCP's receive call, as it was in the study.
    /// Interrupts themselves are not the driver's: samples meet those of the clock, and hardly a card's.
    fn of(place: Place) -> Self {
        match place {
            Place::SoftirqDriver => Self::DriverInInterrupt,
            Place::CallDriver => Self::DriverOutsideInterrupt,
            Place::SoftirqReceive => Self::ReceiveInSoftirq,
            Place::CallReceive | Place::CopyToUser => Self::ReceiveInProcess,
            Place::SoftirqSend => Self::AckInSoftirq,
            Place::CallSend => Self::AckOutsideSoftirq,
            Place::RetransmitTimer => Self::RetransmitTimer,
            Place::DelayedAckTimer => Self::DelayedAckTimer,
            Place::KeepaliveTimer => Self::KeepaliveTimer,
            Place::Interrupt
            | Place::CopyFromUser
            | Place::SystemCall
            | Place::Scheduler
            | Place::PageFault
            | Place::Program
            | Place::Measuring
            | Place::Other => Self::EverythingElse,
        }
    }

    fn time(self, figures: &Figures) -> RowTime {
        let places = || figures.time.places.iter().filter(|time| Self::of(time.place) == self);
        let sum = |part: fn(&PlaceTime) -> f64| places().map(part).fold(0.0, |sum, more| sum + more);
        let whole = total_seconds(figures).max(f64::MIN_POSITIVE);
        RowTime {
            row: self,
            share: sum(|time| time.share),
            error_share: sum(|time| time.error_seconds.powi(2)).sqrt() / whole,
            us_per_mb: (figures.received_bytes > 0).then(|| sum(|time| time.us_per_mb.unwrap_or(0.0))),
        }
    }
}

fn total_seconds(figures: &Figures) -> f64 {
    figures.time.places.iter().map(|time| time.seconds).sum()
}

impl ReceiveAnalysis {
    pub(super) fn of(sweep: &Sweep) -> Self {
        Self {
            measured_at: sweep.measured_at.clone(),
            machine: sweep.machine.clone(),
            bytes: sweep.bytes,
            rounds: sweep.rounds,
            congestion_control: sweep.congestion_control.clone(),
            buffers: sweep.cells.iter().map(BufferAnalysis::of).collect(),
        }
    }

    /// A column for each buffer, and a line for each row and figure.
    pub fn table(&self) -> Table {
        let header = std::iter::once("buffer".to_owned());
        let header = header.chain(self.buffers.iter().map(|buffer| length(buffer.buffer_bytes)));
        let header: Vec<_> = header.collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let columns: Vec<_> = self.buffers.iter().map(BufferAnalysis::column).collect();
        let names = columns.first().into_iter().flatten().map(|(name, _)| name);
        let rows = names.enumerate().map(|(line, name)| {
            let values = columns.iter().map(|column| column[line].1.clone());
            std::iter::once(name.clone()).chain(values).collect()
        });
        Table::new(&header, 1..header.len(), rows.collect())
    }

    pub fn failed_checks(&self) -> impl Iterator<Item = (&BufferAnalysis, &Check)> {
        let all =
            self.buffers.iter().flat_map(|buffer| buffer.checks.iter().map(move |check| (buffer, check)));
        all.filter(|(_, check)| !check.passed)
    }
}

impl BufferAnalysis {
    fn of(cell: &CellFigures) -> Self {
        let figures = &cell.figures;
        let rows: Vec<_> = StudyRow::ALL.into_iter().map(|row| row.time(figures)).collect();
        Self {
            buffer_bytes: cell.buffer_bytes,
            receive_buffer_bytes: cell.receive_buffer_bytes,
            gbit_per_s: cell.without_gbit_per_s,
            overhead_percent: cell.overhead_percent,
            us_per_mb: rows.iter().filter_map(|row| row.us_per_mb).reduce(|sum, more| sum + more),
            rows,
            copy_share: figures.share(Place::CopyToUser),
            processor_share: total_seconds(figures) / figures.seconds.max(f64::MIN_POSITIVE),
            samples: figures.time.places.iter().map(|time| time.samples).sum(),
            direct_share: figures.queue.as_ref().map(|queue| 1.0 - queue.queued_share),
            queue: figures.queue.clone(),
            tcp: figures.tcp.clone(),
            checks: cell.checks.clone(),
        }
    }

    /// Names and values of [`ReceiveAnalysis::table`], the same names for every buffer.
    fn column(&self) -> Vec<(String, String)> {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let told = |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or_else(|| "–".into(), text);
        let bytes = |bytes: f64| short(bytes.round());
        let mut column = vec![("Gbit/s".into(), format!("{:.2}", self.gbit_per_s.median))];
        for RowTime { row, share, .. } in &self.rows {
            column.push((format!("{}, %", row.words()), percent(*share)));
            if *row == StudyRow::ReceiveInProcess {
                column.push(("  of it copying, %".into(), percent(self.copy_share)));
            }
        }
        let (queue, tcp) = (self.queue.as_ref(), self.tcp.as_ref());
        let of_queue = |value: fn(&Queue) -> f64| queue.map(value);
        let of_tcp = |value: fn(&Tcp) -> Option<f64>| tcp.and_then(value);
        let figures = [
            ("total, us/MB", told(self.us_per_mb, &|time| format!("{time:.0}"))),
            ("total, % of one processor", percent(self.processor_share)),
            ("samples", self.samples.to_string()),
            ("cost of profiling, %", format!("{:.1}", self.overhead_percent.median)),
            ("direct share, %", told(self.direct_share, &percent)),
            ("backlog share, %", told(of_tcp(|tcp| tcp.backlog_share), &percent)),
            ("ACKs a segment", told(of_tcp(|tcp| tcp.acks_per_segment), &|acks| format!("{acks:.3}"))),
            ("mean window, B", told(of_tcp(|tcp| tcp.window_mean_bytes), &bytes)),
            ("queue, mean B", told(of_queue(|queue| queue.depth_mean_bytes), &bytes)),
            ("queue, largest B", told(of_queue(|queue| queue.depth_max_bytes as f64), &bytes)),
            (
                "queue, mean packets",
                told(of_queue(|queue| queue.depth_mean_packets), &|mean| format!("{mean:.1}")),
            ),
            ("queue, largest packets", told(of_queue(|queue| queue.depth_max_packets as f64), &bytes)),
        ];
        column.extend(figures.map(|(name, value)| (name.to_owned(), value)));
        column
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::made_up;
    use super::*;
    use crate::measured::Owner;
    use crate::specimen::{bulk_receive, stack};

    fn share(analysis: &BufferAnalysis, row: StudyRow) -> f64 {
        analysis.rows.iter().find(|time| time.row == row).unwrap().share
    }

    /// Every place has a row of its own, but for those that are everything else, and none is lost.
    #[test]
    fn time_is_split_by_the_rows_of_the_study() {
        let mut measured = bulk_receive();
        for (functions, samples) in [
            ("veth_xmit __dev_queue_xmit tcp_recvmsg_locked", 100),
            ("veth_poll __napi_poll net_rx_action handle_softirqs", 200),
            ("tcp_send_ack tcp_rcv_established handle_softirqs", 300),
            ("tcp_send_ack tcp_recvmsg_locked", 400),
            ("tcp_retransmit_timer handle_softirqs", 20),
            ("tcp_delack_timer handle_softirqs", 40),
            ("tcp_keepalive_timer handle_softirqs", 60),
        ] {
            measured.stacks.push(stack(Owner::Receiving, functions, samples));
        }
        measured.machine_packets = 0; // all of the softirqs are the receiver's
        let mut cell = made_up().cells[0].clone();
        cell.figures = Figures::of(&measured);
        let analysis = BufferAnalysis::of(&cell);
        let samples = [
            (StudyRow::DriverInInterrupt, 200),
            (StudyRow::DriverOutsideInterrupt, 100),
            (StudyRow::ReceiveInSoftirq, 1_000),
            (StudyRow::ReceiveInProcess, 1_000 + 400),
            (StudyRow::AckInSoftirq, 300),
            (StudyRow::AckOutsideSoftirq, 400),
            (StudyRow::RetransmitTimer, 20),
            (StudyRow::DelayedAckTimer, 40),
            (StudyRow::KeepaliveTimer, 60),
            (StudyRow::EverythingElse, 200 + 200),
        ];
        assert_eq!(analysis.samples, samples.iter().map(|(_, samples)| samples).sum::<u64>());
        for (row, samples) in samples {
            let expected = samples as f64 / analysis.samples as f64;
            assert!((share(&analysis, row) - expected).abs() < 1e-12, "{row:?}: {analysis:?}");
        }
        assert!((analysis.copy_share - 1_000.0 / analysis.samples as f64).abs() < 1e-12);
        // Half a millisecond each, of a window of a second.
        assert!((analysis.processor_share - analysis.samples as f64 * 0.5e-3).abs() < 1e-12);
        assert_eq!(StudyRow::ALL.to_vec(), samples.map(|(row, _)| row));
    }

    #[test]
    fn what_is_reported_of_the_socket_is_the_profile_of_it() {
        let analysis = ReceiveAnalysis::of(&made_up());
        let buffer = &analysis.buffers[0];
        assert_eq!(buffer.direct_share, Some(0.5));
        assert_eq!(buffer.queue.as_ref().map(|queue| queue.depth_mean_packets), Some(2.5));
        assert_eq!(buffer.tcp.as_ref().map(|tcp| tcp.window_mean_bytes), Some(Some(3_000_000.0)));
        let text = analysis.table().text();
        for said in
            ["1 KiB", "4 MiB", "keepalive timer, %", "of it copying, %", "queue, mean packets", "40.0 k"]
        {
            assert!(text.contains(said), "{said}: {text}");
        }
        let json = serde_json::to_string(&analysis).unwrap();
        assert!(!json.contains("null"));
        assert_eq!(serde_json::from_str::<ReceiveAnalysis>(&json).unwrap().table().text(), text);
        assert!(ReceiveAnalysis { buffers: Vec::new(), ..analysis }.table().rows.is_empty());
    }
}
