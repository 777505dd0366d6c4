//! A sweep in the terms of the study of 2011.

use nocopy_report::receive_analysis::{
    BufferAnalysis, ProcessorTimeRow, ProcessorTimeShare, ReceiveAnalysis,
};

use super::result::{CellFigures, SweepResult};
use crate::category::TimeCategory;
use crate::figures::{CategoryTime, Figures};

/// In the rows of that study.
pub fn receive_analysis_of(sweep: &SweepResult) -> ReceiveAnalysis {
    ReceiveAnalysis {
        bytes: sweep.bytes,
        rounds: sweep.rounds,
        congestion_control: sweep.congestion_control.clone(),
        buffers: sweep.cells.iter().map(analyse_buffer).collect(),
    }
}

fn analyse_buffer(cell: &CellFigures) -> BufferAnalysis {
    let figures = &cell.figures;
    let (queue, tcp) = (figures.queue.as_ref(), figures.tcp.as_ref());
    let (total_seconds, accounted_seconds) = (total_seconds(figures), figures.time.accounted_seconds);
    let copies = receiver_categories(figures).filter(|time| time.category == TimeCategory::CopyToUser);
    let copy_seconds: f64 = copies.map(|time| time.seconds).sum();
    let rows: Vec<_> = ProcessorTimeRow::ALL.into_iter().map(|row| study_row_time(row, figures)).collect();
    BufferAnalysis {
        buffer_bytes: cell.buffer_bytes,
        receive_buffer_bytes: cell.receive_buffer_bytes,
        gbit_per_s: cell.unprofiled_gbit_per_s,
        overhead_percent: cell.overhead_percent,
        us_per_mb: rows.iter().filter_map(|row| row.us_per_mb).reduce(|sum, more| sum + more),
        rows,
        copy_share: copy_seconds / total_seconds.max(f64::MIN_POSITIVE),
        processor_share: total_seconds / figures.seconds.max(f64::MIN_POSITIVE),
        samples: receiver_categories(figures).map(|time| time.samples).sum(),
        sampled_share: (accounted_seconds > 0.0).then(|| figures.time.sampled_seconds / accounted_seconds),
        direct_share: queue.map(|queue| 1.0 - queue.queued_share),
        backlog_share: tcp.and_then(|tcp| tcp.backlog_share),
        acks_per_segment: tcp.and_then(|tcp| tcp.acks_per_segment),
        window_mean_bytes: tcp.and_then(|tcp| tcp.window_mean_bytes),
        queue_mean_bytes: queue.map(|queue| queue.depth_mean_bytes),
        queue_max_bytes: queue.map(|queue| queue.depth_max_bytes),
        queue_mean_packets: queue.map(|queue| queue.depth_mean_packets),
        queue_max_packets: queue.map(|queue| queue.depth_max_packets),
        checks: cell.checks.clone(),
    }
}

/// The study's row for a category in a receiver's profile. The copy to the program is part of TCP's receive
/// call, as in the study. Interrupts do not count for the driver, because samples hit the clock's interrupts,
/// and rarely a card's. The measurement itself is not the receiver's work, so it has no row.
fn study_row(category: TimeCategory) -> Option<ProcessorTimeRow> {
    Some(match category {
        TimeCategory::SoftirqDriver => ProcessorTimeRow::DriverInInterrupt,
        TimeCategory::CallDriver => ProcessorTimeRow::DriverOutsideInterrupt,
        TimeCategory::SoftirqReceive => ProcessorTimeRow::ReceiveInSoftirq,
        TimeCategory::CallReceive | TimeCategory::CopyToUser => ProcessorTimeRow::ReceiveInProcess,
        TimeCategory::SoftirqSend => ProcessorTimeRow::AckInSoftirq,
        TimeCategory::CallSend => ProcessorTimeRow::AckOutsideSoftirq,
        TimeCategory::RetransmitTimer => ProcessorTimeRow::RetransmitTimer,
        TimeCategory::DelayedAckTimer => ProcessorTimeRow::DelayedAckTimer,
        TimeCategory::KeepaliveTimer => ProcessorTimeRow::KeepaliveTimer,
        TimeCategory::Interrupt
        | TimeCategory::CopyFromUser
        | TimeCategory::SystemCall
        | TimeCategory::Scheduler
        | TimeCategory::PageFault
        | TimeCategory::Program
        | TimeCategory::Other => ProcessorTimeRow::EverythingElse,
        TimeCategory::Measuring => return None,
    })
}

fn study_row_time(row: ProcessorTimeRow, figures: &Figures) -> ProcessorTimeShare {
    let categories = || figures.time.categories.iter().filter(|time| study_row(time.category) == Some(row));
    let sum = |part: fn(&CategoryTime) -> f64| categories().map(part).fold(0.0, |sum, more| sum + more);
    let whole = total_seconds(figures).max(f64::MIN_POSITIVE);
    ProcessorTimeShare {
        row,
        share: sum(|time| time.seconds) / whole,
        error_share: sum(|time| time.error_seconds.powi(2)).sqrt() / whole,
        us_per_mb: (figures.received_bytes > 0).then(|| sum(|time| time.us_per_mb.unwrap_or(0.0))),
    }
}

fn total_seconds(figures: &Figures) -> f64 {
    receiver_categories(figures).map(|time| time.seconds).sum()
}

fn receiver_categories(figures: &Figures) -> impl Iterator<Item = &CategoryTime> {
    figures.time.categories.iter().filter(|time| study_row(time.category).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::example_sweep;
    use super::*;
    use crate::fixture::{bulk_receive_measurement, sampled_stack};
    use crate::measured::SampleOwner;

    fn row_share(analysis: &BufferAnalysis, row: ProcessorTimeRow) -> f64 {
        analysis.rows.iter().find(|time| time.row == row).unwrap().share
    }

    #[test]
    fn time_is_split_by_the_rows_of_the_study() {
        let mut measured = bulk_receive_measurement();
        for (functions, samples) in [
            ("veth_xmit __dev_queue_xmit tcp_recvmsg_locked", 100),
            ("veth_poll __napi_poll net_rx_action handle_softirqs", 200),
            ("tcp_send_ack tcp_rcv_established handle_softirqs", 300),
            ("tcp_send_ack tcp_recvmsg_locked", 400),
            ("tcp_retransmit_timer handle_softirqs", 20),
            ("tcp_delack_timer handle_softirqs", 40),
            ("tcp_keepalive_timer handle_softirqs", 60),
        ] {
            measured.stacks.push(sampled_stack(SampleOwner::Receiving, functions, samples));
        }
        measured.machine_packets = 0; // all of the softirqs are the receiver's
        let mut cell = example_sweep().cells[0].clone();
        cell.figures = Figures::from_measurement(&measured);
        let analysis = analyse_buffer(&cell);
        let samples = [
            (ProcessorTimeRow::DriverInInterrupt, 200),
            (ProcessorTimeRow::DriverOutsideInterrupt, 100),
            (ProcessorTimeRow::ReceiveInSoftirq, 1_000),
            (ProcessorTimeRow::ReceiveInProcess, 1_000 + 400),
            (ProcessorTimeRow::AckInSoftirq, 300),
            (ProcessorTimeRow::AckOutsideSoftirq, 400),
            (ProcessorTimeRow::RetransmitTimer, 20),
            (ProcessorTimeRow::DelayedAckTimer, 40),
            (ProcessorTimeRow::KeepaliveTimer, 60),
            (ProcessorTimeRow::EverythingElse, 200 + 200),
        ];
        assert_eq!(analysis.samples, samples.iter().map(|(_, samples)| samples).sum::<u64>());
        for (row, samples) in samples {
            let expected = samples as f64 / analysis.samples as f64;
            assert!((row_share(&analysis, row) - expected).abs() < 1e-12, "{row:?}: {analysis:?}");
        }
        assert!((analysis.copy_share - 1_000.0 / analysis.samples as f64).abs() < 1e-12);
        // Half a millisecond each, of a window of a second.
        assert!((analysis.processor_share - analysis.samples as f64 * 0.5e-3).abs() < 1e-12);
        assert_eq!(ProcessorTimeRow::ALL.to_vec(), samples.map(|(row, _)| row));
    }

    #[test]
    fn socket_figures_of_the_profile_are_in_the_analysis() {
        let analysis = receive_analysis_of(&example_sweep());
        let buffer = &analysis.buffers[0];
        assert_eq!((buffer.direct_share, buffer.queue_mean_packets), (Some(0.5), Some(2.5)));
        assert_eq!((buffer.queue_mean_bytes, buffer.queue_max_packets), (Some(40_000.0), Some(6)));
        assert_eq!(buffer.window_mean_bytes, Some(3_000_000.0));
        let text = analysis.table().text();
        for expected in
            ["1 KiB", "4 MiB", "keepalive timer, %", "of it copying, %", "queue, mean packets", "40.0 k"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let json = serde_json::to_string(&analysis).unwrap();
        assert!(!json.contains("null"));
        assert_eq!(serde_json::from_str::<ReceiveAnalysis>(&json).unwrap().table().text(), text);
        assert!(ReceiveAnalysis { buffers: Vec::new(), ..analysis }.table().rows.is_empty());
    }
}
