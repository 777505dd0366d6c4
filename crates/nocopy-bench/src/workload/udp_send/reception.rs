//! Datagrams received by hand, and by the library's socket, from a sender that hands over bursts.

use super::{DatagramSendContext, PAYLOAD_BYTES, SendMethod, SinkTestbed, sink};
use crate::Failure;
use crate::bench::Bench;
use crate::datagram::DatagramSpec;
use crate::series::{Series, Trial};
use crate::stage::USUAL_MTU_BYTES;
use crate::workload::udp_send::sink::ReceiverKind;
use crate::workload::{LOOPBACK, Workload};
use nocopy_report::figure::Figure;

const NAME: &str = "udp-receive";
const SINK: &str = "a program that reads every byte";

const BASELINE: &str = "recvmmsg";
const BY_HAND: &str = "gro";

pub(crate) const UDP_RECEIVE: Workload = Workload {
    name: NAME,
    about: "Datagrams received, and read",
    methods: &[
        ("recvmmsg", "recvmmsg(), 64 datagrams a call"),
        ("gro", "recvmsg() of datagrams as the kernel joined them (UDP_GRO)"),
        ("auto", "the library's socket, which takes datagrams as the kernel joined them, too"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &["udp-receive: the sender hands over bursts of datagrams (UDP_SEGMENT), in one call each."],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let testbed = sink::pair_testbed(sink::private_site_pair(USUAL_MTU_BYTES)?)?;
    bench.run_series(PAYLOAD_BYTES.map(|bytes| build_series(&testbed, bytes)).into(), 12)
}

pub(crate) fn build_series(testbed: &SinkTestbed, bytes: usize) -> Series<'_> {
    let trial =
        |method, receiver_kind, baselines| build_trial(testbed, bytes, method, receiver_kind, baselines);
    let trials = vec![
        trial(BASELINE, ReceiverKind::Recvmmsg, &[]),
        trial(BY_HAND, ReceiverKind::Joined, &[BASELINE]),
        trial("auto", ReceiverKind::Ours, &[BASELINE, BY_HAND]),
    ];
    series_of_trials(NAME, bytes, trials)
}

pub(crate) fn series_of_trials<'a>(
    workload: &'static str,
    bytes: usize,
    trials: Vec<Trial<'a>>,
) -> Series<'a> {
    Series {
        workload,
        title: format!("{workload}, {bytes}-byte datagrams"),
        sink: Some(SINK),
        payload_bytes: bytes,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

/// From a sender that hands over bursts.
pub(crate) fn build_trial<'a>(
    testbed: &'a SinkTestbed,
    bytes: usize,
    method: &'static str,
    receiver_kind: ReceiverKind,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let context = DatagramSendContext {
        testbed,
        datagrams: DatagramSpec::in_bursts(bytes),
        send_method: SendMethod::Segmented,
        receiver_kind: Some(receiver_kind),
    };
    let run = Box::new(move |duration| context.run(duration));
    Trial { method, variant: None, baselines, run }
}
