//! A stream sent by every method, to a receiver that copies the data and does not look at it.

use super::{BUFFER_BYTES, NOTE, TcpTestbed};
use crate::Failure;
use crate::bench::Bench;
use crate::series::{BEST_FOR_OWNED, BEST_METHOD, Series, Trial};
use crate::stream::{ReceiveMode, ReportingSide, SOURCE_BYTES, SOURCE_BYTES_WARM, SendMode, StreamSetup};
use crate::workload::{LOOPBACK, Workload};
use nocopy_report::figure::Figure;
use nocopy_report::result::LinkDescription;

const NAME: &str = "tcp-send";

const BASELINE: &str = "plain";

pub(crate) const TCP_SEND: Workload = Workload {
    name: NAME,
    about: "A TCP stream sent in every way there is",
    methods: &[
        ("plain", "send() of a stream"),
        ("zerocopy", "the library's stream, owned buffers of 64 KiB with MSG_ZEROCOPY"),
        ("uring-zerocopy", "the same with io_uring (IORING_OP_SENDMSG_ZC)"),
        ("auto", "the same, and the library chooses the method by measurement"),
        ("published", "the library's stream, sealed data sent by reference to its pages"),
        ("sendfile", "sendfile() from a file in memory"),
        ("vmsplice", "vmsplice() into a pipe, and splice() from there"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let by = [Figure::BytesPerSecond, Figure::SenderCpuPerMegabyte];
    bench.run_series_for_figures(build_series(&TcpTestbed::over_loopback_and_veth()?), &by, 64)
}

fn build_series(testbeds: &[TcpTestbed]) -> Vec<Series<'_>> {
    testbeds
        .iter()
        .flat_map(|testbed| [owned_buffer_series(testbed), published_data_series(testbed)])
        .collect()
}

/// Data that a program made and hands over, in a new buffer each time.
pub(crate) fn owned_buffer_series(testbed: &TcpTestbed) -> Series<'_> {
    let trial = |method, send, baselines| build_trial(testbed, method, send, SOURCE_BYTES, baselines);
    let trials = vec![
        trial(BASELINE, SendMode::Plain, &[]),
        trial("zerocopy", SendMode::ZeroCopy, &[BASELINE]),
        trial("uring-zerocopy", SendMode::UringZeroCopy, &[BASELINE]),
        trial("auto", SendMode::Auto, &[BASELINE, BEST_FOR_OWNED]),
    ];
    testbed.build_series(NAME, "", trials)
}

/// Data that never changes, sent to one peer after another from the same memory.
pub(crate) fn published_data_series(testbed: &TcpTestbed) -> Series<'_> {
    let trial = |method, send, baselines| build_trial(testbed, method, send, SOURCE_BYTES_WARM, baselines);
    let trials = vec![
        trial(BASELINE, SendMode::Plain, &[]),
        trial("published", SendMode::Published, &[BASELINE, BEST_METHOD]),
        trial("sendfile", SendMode::Sendfile, &[BASELINE]),
        trial("vmsplice", SendMode::Vmsplice, &[BASELINE]),
    ];
    let series = testbed.build_series(NAME, ", the same 1 MiB again and again", trials);
    let link = series.link.map(|link| LinkDescription { source_bytes: Some(SOURCE_BYTES_WARM), ..link });
    Series { link, ..series }
}

fn build_trial<'a>(
    testbed: &'a TcpTestbed,
    method: &'static str,
    send: SendMode,
    source_bytes: usize,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let receive = ReceiveMode::Unread { buffer_bytes: BUFFER_BYTES };
    testbed.build_trial(
        method,
        None,
        baselines,
        StreamSetup { send, source_bytes, proxy: None, receive },
        ReportingSide::Sender,
    )
}
