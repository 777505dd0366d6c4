//! Receiving a stream by every method, with a receiver that reads every byte.

use super::{BUFFER_BYTES, NOTE, TcpTestbed, length_name};
use crate::Failure;
use crate::bench::Bench;
use crate::series::{BEST_RECV, Series, Trial};
use crate::stream::{ReceiveMode, ReportingSide, SOURCE_BYTES, SendMode, StreamSetup};
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "tcp-receive";

const BASELINE: &str = "recv";

/// From the buffer of a program that reads lines to that of a program that reads files.
const BUFFERS_BYTES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, BUFFER_BYTES, 256 << 10, 1 << 20, 4 << 20];

/// With 4148 and 8244 a segment has exactly one or two pages beside 52 bytes of headers; with the others it
/// does not.
const MTUS_BYTES: [u32; 4] = [1500, 4148, 8244, 9000];

pub(crate) const TCP_RECEIVE: Workload = Workload {
    name: NAME,
    about: "A TCP stream received in every way there is, and read",
    methods: &[
        ("recv", "recv() into one buffer, whose length is the variant"),
        (
            "mapped",
            "the library's stream, with pages that the kernel maps (TCP_ZEROCOPY_RECEIVE); what does not map is copied",
        ),
        ("auto", "the library's stream, which chooses how long chunks are, and whether they are mapped"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.run_series(build_series(&TcpTestbed::over_loopback_and_veth()?), 40)?;
    bench.run_series(series_of_pages(&page_testbeds()?), 28)
}

fn page_testbeds() -> Result<Vec<TcpTestbed>, Failure> {
    MTUS_BYTES.into_iter().map(TcpTestbed::over_veth).collect()
}

/// Receives from an ordinary sender, into buffers of every length.
fn build_series(testbeds: &[TcpTestbed]) -> Vec<Series<'_>> {
    testbeds.iter().map(series_of_testbed).collect()
}

/// Receives from an ordinary sender, at one place.
pub(crate) fn series_of_testbed(testbed: &TcpTestbed) -> Series<'_> {
    testbed.build_series(NAME, "", build_trials(testbed))
}

/// Receives from a sender of whole pages, which could be mapped.
fn series_of_pages(testbeds: &[TcpTestbed]) -> Vec<Series<'_>> {
    let about = ", from whole pages by MSG_ZEROCOPY";
    testbeds.iter().map(|testbed| testbed.build_series(NAME, about, trials_of_pages(testbed))).collect()
}

fn build_trials(testbed: &TcpTestbed) -> Vec<Trial<'_>> {
    let by_hand = BUFFERS_BYTES.map(|buffer_bytes| {
        let setup = stream_setup(SendMode::Plain, ReceiveMode::Recv { buffer_bytes });
        testbed.build_trial(BASELINE, Some(length_name(buffer_bytes)), &[], setup, ReportingSide::Receiver)
    });
    by_hand.into_iter().chain([library_trial(testbed, "auto", SendMode::Plain, ReceiveMode::Auto)]).collect()
}

fn trials_of_pages(testbed: &TcpTestbed) -> Vec<Trial<'_>> {
    let by_hand = stream_setup(SendMode::WholePages, ReceiveMode::Recv { buffer_bytes: BUFFER_BYTES });
    vec![
        testbed.build_trial(BASELINE, Some(length_name(BUFFER_BYTES)), &[], by_hand, ReportingSide::Receiver),
        library_trial(testbed, "mapped", SendMode::WholePages, ReceiveMode::Mapped),
        library_trial(testbed, "auto", SendMode::WholePages, ReceiveMode::Auto),
    ]
}

fn library_trial<'a>(
    testbed: &'a TcpTestbed,
    method: &'static str,
    send: SendMode,
    receive: ReceiveMode,
) -> Trial<'a> {
    testbed.build_trial(method, None, &[BEST_RECV], stream_setup(send, receive), ReportingSide::Receiver)
}

fn stream_setup(send: SendMode, receive: ReceiveMode) -> StreamSetup {
    StreamSetup { send, source_bytes: SOURCE_BYTES, proxy: None, receive }
}
