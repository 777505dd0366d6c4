//! What both ends of a TCP transfer show of its streams.

use std::time::{Duration, Instant};

use nocopy_report::live::LiveLine;
use nocopy_report::quantity::{in_time_suffix, short_number};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct StreamRow {
    pub number: u32,
    /// Absent if the stream has no range of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    pub bytes: u64,
    pub seconds: f64,
}

/// Rows of a table: none for a single stream.
pub(crate) fn stream_table_rows(streams: &[StreamRow]) -> impl Iterator<Item = (String, String)> {
    let rows = if streams.len() > 1 { streams } else { &[] };
    rows.iter().map(|row| {
        let rate = short_number(8.0 * row.bytes as f64 / row.seconds.max(1e-9));
        let from = row.offset.map(|offset| format!(" from {offset}")).unwrap_or_default();
        let said = format!("{} bytes{from}{}, {rate}bit/s", row.bytes, in_time_suffix(row.seconds));
        (format!("stream {}", row.number), said)
    })
}

/// The bytes of all streams and their rate, on a line of the terminal.
pub(crate) struct LiveBytes {
    line: LiveLine,
    bytes: u64,
    /// What follows the number of bytes.
    what: &'static str,
}

impl LiveBytes {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { line: LiveLine::default(), bytes: 0, what }
    }

    pub(crate) fn update(&mut self, now_bytes: u64) {
        let Self { line, bytes, what } = self;
        line.update(Instant::now(), |since: Duration| {
            let rate = short_number(8.0 * (now_bytes - *bytes) as f64 / since.as_secs_f64());
            *bytes = now_bytes;
            format!("{}B{what}, {rate}bit/s", short_number(now_bytes as f64))
        });
    }
}
