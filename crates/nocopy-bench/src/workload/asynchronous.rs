//! Programs of tokio over this library's asynchronous halves, against the same over `tokio::net`.

use super::tcp::TcpTestbed;
use super::udp_send::{self, ReceiverKind, SinkTestbed, pair_testbed, private_site_pair};
use super::{LOOPBACK, Workload};
use crate::Failure;
use crate::asynchronous::AsyncLibrary;
use crate::bench::Bench;
use crate::series::{Series, Trial};
use crate::stage::USUAL_MTU_BYTES;
use crate::stream::{ReceiveMode, ReportingSide, SOURCE_BYTES, SendMode, StreamSetup};
use nocopy_report::figure::Figure;

const NAME: &str = "async";
const DATAGRAM_BYTES: usize = 1400;
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) const ASYNC: Workload = Workload {
    name: NAME,
    about: "Programs of tokio, over its own sockets and over this library's",
    methods: &[
        (
            "tokio",
            "tokio::net: copy_buf of a TcpStream, with a BufReader to receive; recv_from of a UdpSocket",
        ),
        ("nocopy", "the library's sockets: copy_buf of an AsyncStream; a Stream of owned datagrams"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[
        "async: each program runs on one thread; at the other end the same plain program sends to both, or receives from both.",
    ],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let testbed = TcpTestbed::over_loopback()?;
    let by = [Figure::BytesPerSecond, Figure::ReceiverCpuPerMegabyte];
    bench.run_series_for_figures(vec![received_stream_series(&testbed)], &by, 14)?;
    let by = [Figure::BytesPerSecond, Figure::SenderCpuPerMegabyte];
    bench.run_series_for_figures(vec![sent_stream_series(&testbed)], &by, 14)?;
    let by = [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket];
    let testbed = pair_testbed(private_site_pair(USUAL_MTU_BYTES)?)?;
    bench.run_series_for_figures(vec![datagram_series(&testbed)], &by, 10)
}

fn received_stream_series(testbed: &TcpTestbed) -> Series<'_> {
    let trials = trials_of_libraries(|library, baselines| {
        let setup = stream_setup(SendMode::Plain, ReceiveMode::CopyBuf(library));
        testbed.build_trial(library.name(), None, baselines, setup, ReportingSide::Receiver)
    });
    testbed.build_series(NAME, ", received by copy_buf", trials)
}

fn sent_stream_series(testbed: &TcpTestbed) -> Series<'_> {
    let trials = trials_of_libraries(|library, baselines| {
        let receive = ReceiveMode::Unread { buffer_bytes: BUFFER_BYTES };
        let setup = stream_setup(SendMode::CopyBuf(library), receive);
        testbed.build_trial(library.name(), None, baselines, setup, ReportingSide::Sender)
    });
    testbed.build_series(NAME, ", sent by copy_buf", trials)
}

fn datagram_series(testbed: &SinkTestbed) -> Series<'_> {
    let trials = trials_of_libraries(|library, baselines| {
        let receiver_kind = ReceiverKind::Async(library);
        udp_send::build_trial(testbed, DATAGRAM_BYTES, library.name(), receiver_kind, baselines)
    });
    udp_send::series_of_trials(NAME, DATAGRAM_BYTES, trials)
}

fn trials_of_libraries<'a>(
    trial: impl Fn(AsyncLibrary, &'static [&'static str]) -> Trial<'a>,
) -> Vec<Trial<'a>> {
    vec![trial(AsyncLibrary::Tokio, &[]), trial(AsyncLibrary::Nocopy, &["tokio"])]
}

fn stream_setup(send: SendMode, receive: ReceiveMode) -> StreamSetup {
    StreamSetup { send, source_bytes: SOURCE_BYTES, proxy: None, receive }
}
