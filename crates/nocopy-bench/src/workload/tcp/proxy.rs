//! A stream that a proxy passes on.
//!
//! Sender and receiver stand for other machines, so they are as cheap as possible and share a processor:
//! pages of a file are sent by reference, and the kernel discards the received data. The proxy has the other
//! processor, and limits the rate.

use super::{BUFFER_BYTES, NOTE, TcpTestbed, length_name};
use crate::Failure;
use crate::bench::Bench;
use crate::series::{BEST_READ_WRITE, Series, Trial};
use crate::stream::{ProxyMode, ReceiveMode, ReportingSide, SOURCE_BYTES, SendMode, StreamSetup};
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "tcp-proxy";

/// `splice` is compared with the better of them.
const BUFFERS_BYTES: [usize; 2] = [BUFFER_BYTES, 256 << 10];

pub(crate) const TCP_PROXY: Workload = Workload {
    name: NAME,
    about: "A TCP stream forwarded from one connection to another",
    methods: &[
        ("read-write", "recv() and send() through a buffer, whose length is the variant"),
        ("splice", "the library's pages in a pipe, by splice()"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.run_series(vec![build_series(&TcpTestbed::over_loopback()?)], 30)
}

pub(crate) fn build_series(testbed: &TcpTestbed) -> Series<'_> {
    testbed.build_series(NAME, "", build_trials(testbed))
}

fn build_trials(testbed: &TcpTestbed) -> Vec<Trial<'_>> {
    let by_hand = BUFFERS_BYTES.map(|buffer_bytes| {
        let mode = ProxyMode::ReadWrite { buffer_bytes };
        build_trial(testbed, "read-write", Some(length_name(buffer_bytes)), mode, &[])
    });
    let spliced = build_trial(testbed, "splice", None, ProxyMode::Splice, &[BEST_READ_WRITE]);
    by_hand.into_iter().chain([spliced]).collect()
}

fn build_trial<'a>(
    testbed: &'a TcpTestbed,
    method: &'static str,
    variant: Option<String>,
    mode: ProxyMode,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let setup = StreamSetup {
        send: SendMode::Sendfile,
        source_bytes: SOURCE_BYTES,
        proxy: Some(mode),
        receive: ReceiveMode::Discard,
    };
    testbed.build_trial(method, variant, baselines, setup, ReportingSide::Proxy)
}
