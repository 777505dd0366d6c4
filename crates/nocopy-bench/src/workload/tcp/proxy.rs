//! A stream that a proxy passes on.
//!
//! Sender and receiver stand for other machines, so they are as cheap as possible and share a processor:
//! pages of a file are sent by reference, and the kernel discards the received data. The proxy has the other
//! processor, and limits the rate.

use super::{BUFFER_BYTES, NOTE, TcpTestbed, length_name};
use crate::Failure;
use crate::bench::Bench;
use crate::series::{BEST_READ_WRITE, Series, Trial};
use crate::stream::{ProxyMode, ReceiveMode, SOURCE_BYTES, SendMode, Side, StreamSetup};
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
    bench.run_series(vec![series(&TcpTestbed::loopback()?)], 30)
}

pub(crate) fn series(testbed: &TcpTestbed) -> Series<'_> {
    testbed.series(NAME, "", trials(testbed))
}

fn trials(testbed: &TcpTestbed) -> Vec<Trial<'_>> {
    let by_hand = BUFFERS_BYTES.map(|buffer_bytes| {
        let mode = ProxyMode::ReadWrite { buffer_bytes };
        trial(testbed, "read-write", Some(length_name(buffer_bytes)), mode, &[])
    });
    let spliced = trial(testbed, "splice", None, ProxyMode::Splice, &[BEST_READ_WRITE]);
    by_hand.into_iter().chain([spliced]).collect()
}

fn trial<'a>(
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
    testbed.trial(method, variant, baselines, setup, Side::Proxy)
}
