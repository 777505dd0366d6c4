//! Datagrams to one destination, into four sinks: the kernel's ways to send, used by hand, against the
//! library's.

mod reception;
mod sink;

use crate::evidence;
use std::time::Duration;

use nocopy::Cause;
use nocopy::udp::Method;
use nocopy_proto::UdpChecksum;
pub(crate) use reception::{UDP_RECEIVE, build_series as reception, build_trial, series_of_trials};
use sink::DatagramSink;
pub(crate) use sink::{
    ReceiverKind, SinkTestbed, checked_testbed, delivered_testbed, pair_testbed, private_site_pair,
    segmented_testbed, supports_offload_sink,
};

use super::{LOOPBACK, Workload};
use crate::Failure;
use crate::baseline::datagram_sender;
use crate::bench::Bench;
use crate::datagram::DatagramSpec;
use crate::series::{BEST_METHOD, Sample, Series, Trial};
use crate::stage::{LONG_MTU_BYTES, USUAL_MTU_BYTES};
use crate::traffic::{self, ThreadWork, run_trial};
use crate::udp::{self, SharedLedger};
use crate::udp_over_port;
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

const NAME: &str = "udp-send";

/// The baseline: one datagram per `send()`.
const BASELINE: &str = "socket";

/// Payload lengths: usual for games and name servers; nearly filling the usual MTU; nearly filling the long
/// one.
const PAYLOAD_BYTES: [usize; 2] = [64, 1400];
const PAYLOAD_BYTES_LONG: [usize; 1] = [8192];

/// The receiver `recvmmsg`, where it is not the sink's own.
const TO_RECVMMSG: &str = "to-recvmmsg";
/// Methods that compute checksums themselves, without one.
const NO_CHECKSUM: &str = "no-checksum";
pub(crate) const ONE_A_CALL: &str = "one-a-call";

pub(crate) const UDP_SEND: Workload = Workload {
    name: NAME,
    about: "Datagrams sent in every way there is, to sinks that drop or read them",
    methods: &[
        ("socket", "send() of a datagram a call"),
        ("sendmmsg", "sendmmsg(), 64 datagrams a call"),
        ("gso", "send() of a burst that the kernel or the card cuts (UDP_SEGMENT)"),
        ("zerocopy", "the library's socket with MSG_ZEROCOPY"),
        ("zerocopy-gso", "the same, a burst a call"),
        ("uring-zerocopy", "the library's socket with io_uring (IORING_OP_SEND_ZC)"),
        ("uring-zerocopy-gso", "the same, a burst a call"),
        ("auto", "the library's socket, which chooses the method by measurement"),
        ("xdp-udp", "UDP over a port of AF_XDP, from frames that the payloads lie in"),
        ("xdp-copy", "the same, with payloads copied into the frames"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[sink::NOTE],
    skips: |_| sink::skip_note().into_iter().collect(),
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let testbeds = sink::open_testbeds(USUAL_MTU_BYTES)?;
    let mut all = build_series(&testbeds, &PAYLOAD_BYTES);
    all.extend(series_of_single_datagrams(&testbeds, &PAYLOAD_BYTES));
    bench.run_series(all, 50)?;
    drop(testbeds);
    let testbeds = sink::open_testbeds(LONG_MTU_BYTES)?;
    bench.run_series(build_series(&testbeds, &PAYLOAD_BYTES_LONG), 25)
}

/// All methods with bursts, separately for each sink and length.
fn build_series<'a>(testbeds: &'a [SinkTestbed], payload_bytes: &[usize]) -> Vec<Series<'a>> {
    let lengths = payload_bytes.iter().map(|&bytes| DatagramSpec::in_bursts(bytes));
    lengths
        .flat_map(|datagrams| testbeds.iter().map(move |testbed| burst_series(testbed, datagrams)))
        .collect()
}

/// Single datagrams, each handed over alone.
fn series_of_single_datagrams<'a>(testbeds: &'a [SinkTestbed], payload_bytes: &[usize]) -> Vec<Series<'a>> {
    let segmented = testbeds.iter().filter(|testbed| matches!(testbed.sink, DatagramSink::Segmented(_)));
    segmented
        .flat_map(|testbed| {
            payload_bytes.iter().map(|&bytes| single_datagram_series(testbed, DatagramSpec::singly(bytes)))
        })
        .collect()
}

pub(crate) fn burst_series(testbed: &SinkTestbed, datagrams: DatagramSpec) -> Series<'_> {
    let context = |send_method| DatagramSendContext::to_own_receiver(testbed, datagrams, send_method);
    let trial = |send_method, baselines| context(send_method).build_trial(None, baselines);
    let mut trials = Vec::new();
    if matches!(testbed.sink, DatagramSink::Pair) {
        // First, because the others are compared with it.
        let to_recvmmsg = DatagramSendContext {
            receiver_kind: Some(ReceiverKind::Recvmmsg),
            ..context(SendMethod::Singly)
        };
        trials.push(to_recvmmsg.build_trial(Some(TO_RECVMMSG), &[]));
        trials.push(trial(SendMethod::Singly, &[BASELINE]));
    } else {
        trials.push(trial(SendMethod::Singly, &[]));
    }
    let pinned = [Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];
    let others =
        [SendMethod::Batches, SendMethod::Segmented].into_iter().chain(pinned.map(SendMethod::Pinned));
    let ports = [false, true].map(|copied| SendMethod::Port { copied, checksum: UdpChecksum::Computed });
    trials.extend(others.chain(ports).map(|send_method| trial(send_method, &[BASELINE])));
    if matches!(testbed.sink, DatagramSink::Segmented(_)) {
        let bare = [false, true].map(|copied| SendMethod::Port { copied, checksum: UdpChecksum::Omitted });
        trials
            .extend(bare.map(|send_method| context(send_method).build_trial(Some(NO_CHECKSUM), &[BASELINE])));
    }
    trials.push(trial(SendMethod::Auto, &[BASELINE, "gso", BEST_METHOD]));
    series_of_datagrams(testbed, datagrams, format!("{NAME}, {}-byte datagrams", datagrams.bytes), trials)
}

pub(crate) fn single_datagram_series(testbed: &SinkTestbed, datagrams: DatagramSpec) -> Series<'_> {
    let trial = |send_method, baselines| {
        DatagramSendContext { testbed, datagrams, send_method, receiver_kind: None }
            .build_trial(Some(ONE_A_CALL), baselines)
    };
    let trials = vec![trial(SendMethod::Singly, &[]), trial(SendMethod::Auto, &[BASELINE])];
    series_of_datagrams(
        testbed,
        datagrams,
        format!("{NAME}, {}-byte datagrams, {ONE_A_CALL}", datagrams.bytes),
        trials,
    )
}

fn series_of_datagrams<'a>(
    testbed: &SinkTestbed,
    datagrams: DatagramSpec,
    title: String,
    trials: Vec<Trial<'a>>,
) -> Series<'a> {
    Series {
        workload: NAME,
        title,
        sink: Some(testbed.sink.name()),
        payload_bytes: datagrams.bytes,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMethod {
    Singly,
    Batches,
    Segmented,
    Pinned(Method),
    /// By this method, from memory of the program instead of buffers of the pool.
    Foreign(Method),
    Auto,
    /// Over an AF_XDP port: from its frames, or from memory that is copied into them.
    Port {
        copied: bool,
        checksum: UdpChecksum,
    },
}

impl SendMethod {
    fn name(self) -> &'static str {
        match self {
            Self::Singly => BASELINE,
            Self::Batches => "sendmmsg",
            Self::Segmented => "gso",
            Self::Pinned(method) | Self::Foreign(method) => match method {
                Method::ZeroCopy => "zerocopy",
                Method::ZeroCopyGso => "zerocopy-gso",
                Method::UringZeroCopy => "uring-zerocopy",
                _ => "uring-zerocopy-gso",
            },
            Self::Auto => "auto",
            Self::Port { copied: false, .. } => "xdp-udp",
            Self::Port { copied: true, .. } => "xdp-copy",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DatagramSendContext<'a> {
    testbed: &'a SinkTestbed,
    datagrams: DatagramSpec,
    send_method: SendMethod,
    receiver_kind: Option<ReceiverKind>,
}

impl<'a> DatagramSendContext<'a> {
    /// Sends to the sink's own receiver, if it has one.
    pub(crate) fn to_own_receiver(
        testbed: &'a SinkTestbed,
        datagrams: DatagramSpec,
        send_method: SendMethod,
    ) -> Self {
        Self { testbed, datagrams, send_method, receiver_kind: testbed.sink.receiver_kind() }
    }

    pub(crate) fn build_trial(self, variant: Option<&str>, baselines: &'static [&'static str]) -> Trial<'a> {
        let run = Box::new(move |duration| self.run(duration));
        Trial { method: self.send_method.name(), variant: variant.map(str::to_owned), baselines, run }
    }

    fn run(self, duration: Duration) -> Result<Sample, Failure> {
        let Self { testbed, datagrams, .. } = self;
        let method = self.send_method.name();
        let receive = self
            .receiver_kind
            .map(|receiver_kind| receiver_kind.open(&testbed.stage.receiver, datagrams))
            .transpose()?;
        let ledger = SharedLedger::default();
        let (send, evidence) = self.open_sender_work(&ledger)?;
        let count = || testbed.sink.datagrams_dropped();
        let count: Option<traffic::SinkCounter<'_>> =
            if self.receiver_kind.is_none() { Some(&count) } else { None };
        let traffic = run_trial(&testbed.stage, duration, count, vec![send], receive.into_iter().collect())
            .map_err(Failure::step(method, "send", "raise 'ulimit -l', or free memory"))?;
        let evidence = evidence.unwrap_or_else(|| ledger.evidence());
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    /// The sender, and the evidence if it is known in advance; otherwise the sender stores its evidence in
    /// `ledger`.
    fn open_sender_work<'l>(
        self,
        ledger: &'l SharedLedger,
    ) -> Result<(ThreadWork<'l>, Option<Evidence>), Failure> {
        let Self { testbed, datagrams, send_method, .. } = self;
        let failed =
            || Failure::step(send_method.name(), "open a socket", "raise 'ulimit -n', or free memory");
        let plain = || datagram_sender::open_sender_socket(&testbed.stage).map_err(failed());
        let copied = Some(evidence::result_evidence(nocopy::Evidence::Copied(Cause::SocketCall)));
        let (work, evidence): (ThreadWork<'l>, _) = match send_method {
            SendMethod::Singly => {
                let socket = plain()?;
                (Box::new(move |gauge| datagram_sender::send_singly(&socket, datagrams, gauge)), copied)
            }
            SendMethod::Batches => {
                let socket = plain()?;
                (Box::new(move |gauge| datagram_sender::send_batches(&socket, datagrams, gauge)), copied)
            }
            SendMethod::Segmented => {
                let socket = datagram_sender::open_gso_socket(&testbed.stage, datagrams).map_err(failed())?;
                (Box::new(move |gauge| datagram_sender::send_segmented(&socket, datagrams, gauge)), copied)
            }
            SendMethod::Pinned(_) | SendMethod::Auto => {
                let method = if let SendMethod::Pinned(method) = send_method { Some(method) } else { None };
                let sender = udp::open_sender(&testbed.stage, method)?;
                let send = if datagrams.a_burst == 1 { udp::send_singly } else { udp::send_bursts };
                (Box::new(move |gauge| send(sender, datagrams, ledger, gauge)), None)
            }
            SendMethod::Foreign(method) => {
                let sender = udp::open_returning_sender(&testbed.stage, method)?;
                (Box::new(move |gauge| udp::send_program_memory(sender, datagrams, ledger, gauge)), None)
            }
            SendMethod::Port { copied, checksum } => {
                let (path, evidence) = udp_over_port::open_port_sender(&testbed.stage, datagrams, checksum)?;
                let work: ThreadWork<'_> = match copied {
                    false => Box::new(move |gauge| path.send_from_frames(gauge)),
                    true => Box::new(move |gauge| path.send_copied(gauge)),
                };
                (work, Some(evidence))
            }
        };
        Ok((work, evidence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sink::open_testbeds;

    const SEND_METHODS: [SendMethod; 14] = [
        SendMethod::Singly,
        SendMethod::Batches,
        SendMethod::Segmented,
        SendMethod::Pinned(Method::ZeroCopy),
        SendMethod::Pinned(Method::ZeroCopyGso),
        SendMethod::Pinned(Method::UringZeroCopy),
        SendMethod::Pinned(Method::UringZeroCopyGso),
        SendMethod::Auto,
        SendMethod::Port { copied: false, checksum: UdpChecksum::Computed },
        SendMethod::Port { copied: true, checksum: UdpChecksum::Computed },
        SendMethod::Port { copied: false, checksum: UdpChecksum::Omitted },
        SendMethod::Port { copied: false, checksum: UdpChecksum::Offloaded },
        SendMethod::Foreign(Method::ZeroCopy),
        SendMethod::Foreign(Method::UringZeroCopy),
    ];

    /// How often a trial is repeated whose sender did not start in time, because the machine was busy.
    const ATTEMPTS: usize = 50;

    fn assert_all_datagrams_counted(testbed: &SinkTestbed, datagrams: DatagramSpec, send_method: SendMethod) {
        let context = DatagramSendContext { testbed, datagrams, send_method, receiver_kind: None };
        let name = testbed.sink.name();
        for _ in 0..ATTEMPTS {
            let before = testbed.sink.datagrams_dropped().unwrap();
            let sample = context.run(Duration::from_millis(2)).unwrap();
            let sent = sample.traffic.senders[0].packets_total;
            let dropped = testbed.sink.datagrams_dropped().unwrap() - before;
            assert_eq!(sent, dropped, "{name} {datagrams:?} {send_method:?}");
            if sent > 0 {
                return;
            }
        }
        panic!("{name} {datagrams:?} {send_method:?}: nothing was sent in {ATTEMPTS} attempts");
    }

    #[test]
    fn every_sent_datagram_is_counted_at_its_sink() {
        if nocopy_lab::lab_or_skip().is_none() {
            return;
        }
        let has_io_uring = nocopy_lab::has_io_uring();
        let send_methods: Vec<SendMethod> = SEND_METHODS
            .into_iter()
            .filter(|send_method| has_io_uring || !send_method.name().starts_with("uring"))
            .collect();
        for (mtu_bytes, lengths) in
            [(USUAL_MTU_BYTES, &PAYLOAD_BYTES[..]), (LONG_MTU_BYTES, &PAYLOAD_BYTES_LONG)]
        {
            let testbeds = open_testbeds(mtu_bytes).unwrap();
            for testbed in testbeds.iter().filter(|testbed| testbed.sink.receiver_kind().is_none()) {
                for &bytes in lengths {
                    send_methods.iter().for_each(|send_method| {
                        assert_all_datagrams_counted(testbed, DatagramSpec::in_bursts(bytes), *send_method)
                    });
                }
                assert_all_datagrams_counted(testbed, DatagramSpec::singly(lengths[0]), SendMethod::Auto);
            }
        }
        nocopy_lab::io_uring_or_skip();
    }

    #[test]
    fn bursts_reach_the_offload_sink_uncut() {
        if nocopy_lab::lab_or_skip().is_none() {
            return;
        }
        let testbeds = open_testbeds(USUAL_MTU_BYTES).unwrap();
        let (testbed, drop) = match &testbeds[0] {
            testbed @ SinkTestbed { sink: DatagramSink::Offload(drop), .. } => (testbed, drop),
            _ => return nocopy_lab::skip(&nocopy_lab::Missing::Kernel("tcx links (Linux 6.6)")),
        };
        let datagrams = DatagramSpec::in_bursts(1400);
        assert_all_datagrams_counted(testbed, datagrams, SendMethod::Segmented);
        assert_eq!(drop.packets().unwrap() * datagrams.a_burst as u64, drop.datagrams().unwrap());
    }
}
