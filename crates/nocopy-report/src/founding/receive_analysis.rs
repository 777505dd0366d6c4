//! 2011: where the time goes in TCP receive. On an ARM9 throughput grew with the program's buffer and was level from 64 KiB on; small buffers
//! cost system calls and acknowledgements, and lost the direct path.

use super::{NOTHING, Part, System};
use crate::chart::{Bar, Line, Lines, Stacks, Value};
use crate::quantity::length;
use crate::receive_analysis::{BufferAnalysis, ReceiveAnalysis, StudyRow};
use crate::result::Report;

pub(super) const SYSTEM: System = System {
    title: "2011 · TCP receive analysis (USTC): where the processor time of a receiver goes",
    about: "TCP with SO_RCVBUF of 64 KiB, read by recv() with MSG_WAITALL into buffers of 1 KiB to 4 MiB; shares of the receiver's processor \
            time, its part of the softirqs included.",
    part,
};

/// From which length on the study saw throughput level.
const PUBLISHED_LEVEL_BYTES: usize = 64 << 10;

/// What is as fast as the fastest, for this purpose.
const LEVEL: f64 = 0.9;

fn part(report: &Report) -> Option<Part> {
    let analysis = report.receive_analysis.as_ref()?;
    Some(Part {
        table: analysis.table(),
        words: words(analysis),
        bars: vec![bars(analysis)],
        lines: vec![lines(analysis)],
    })
}

fn words(analysis: &ReceiveAnalysis) -> Vec<String> {
    let rate = |buffer: &BufferAnalysis| buffer.gbit_per_s.median;
    let fastest = analysis.buffers.iter().map(rate).fold(0.0, f64::max);
    let level = analysis.buffers.iter().find(|buffer| rate(buffer) >= LEVEL * fastest);
    let is_same = level.is_some_and(|buffer| buffer.buffer_bytes <= PUBLISHED_LEVEL_BYTES);
    let failed = analysis.failed_checks().map(|(buffer, check)| {
        format!("Two witnesses do not agree, buffer {}: {}.", length(buffer.buffer_bytes), check.words())
    });
    let level = format!(
        "Throughput is within {:.0} % of its best from a buffer of {} on; published: level from 64 KiB on: {}.",
        (1.0 - LEVEL) * 100.0,
        level.map_or_else(|| NOTHING.into(), |buffer| length(buffer.buffer_bytes)),
        if is_same { "the same" } else { "other than published" },
    );
    let amount = format!(
        "Each transfer moves {} MiB, {} times with profiling and as often without, whose rate is in the first line. Since Linux 4.14 every byte \
         goes through the receive queue: the direct share is of those that arrived when the reader waited already.",
        analysis.bytes >> 20,
        analysis.rounds
    );
    [level, amount].into_iter().chain(failed).collect()
}

fn bars(analysis: &ReceiveAnalysis) -> Stacks {
    let amounts = |buffer: &BufferAnalysis| {
        let time =
            |row: &StudyRow| buffer.rows.iter().find(|time| time.row == *row).and_then(|time| time.us_per_mb);
        StudyRow::ALL.iter().map(|row| time(row).unwrap_or(0.0)).collect()
    };
    let bar = |buffer: &BufferAnalysis| Bar { name: length(buffer.buffer_bytes), amounts: amounts(buffer) };
    Stacks {
        title: "Processor time by the length of the buffer, us for 10^6 bytes".into(),
        parts: StudyRow::ALL.iter().map(|row| row.words().to_owned()).collect(),
        bars: analysis.buffers.iter().map(bar).collect(),
    }
}

fn lines(analysis: &ReceiveAnalysis) -> Lines {
    let value = |buffer: &BufferAnalysis| Value {
        length_bytes: buffer.buffer_bytes as u64,
        value: buffer.gbit_per_s.median,
        interval: Some((buffer.gbit_per_s.low, buffer.gbit_per_s.high)),
    };
    let line = Line { name: "recv()".into(), values: analysis.buffers.iter().map(value).collect() };
    Lines { title: "Throughput by the length of the buffer, Gbit/s".into(), lines: vec![line] }
}
