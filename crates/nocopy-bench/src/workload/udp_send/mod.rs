//! Datagrams to one destination, into four sinks: the kernel's ways to send, used by hand, against the
//! library's.

mod reception;
mod sink;

use crate::evidence;
use std::time::Duration;

use nocopy::Cause;
use nocopy::udp::Method;
use nocopy_proto::UdpChecksum;
pub(crate) use reception::{UDP_RECEIVE, series as reception};
pub(crate) use sink::{Place, checked, delivered, has_offload, pair, segmented};
use sink::{Sink, Taker};

use super::{LOOPBACK, Workload};
use crate::Failure;
use crate::baseline::datagram_sender;
use crate::bench::Bench;
use crate::datagram::Datagrams;
use crate::series::{BEST_METHOD, Sample, Series, Trial};
use crate::stage::{LONG_MTU_BYTES, USUAL_MTU_BYTES};
use crate::traffic::{self, Work, conduct};
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
    skips: |_| sink::skip().into_iter().collect(),
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let places = sink::places(USUAL_MTU_BYTES)?;
    let mut all = series(&places, &PAYLOAD_BYTES);
    all.extend(series_of_single_datagrams(&places, &PAYLOAD_BYTES));
    bench.play(all, 50)?;
    drop(places);
    let places = sink::places(LONG_MTU_BYTES)?;
    bench.play(series(&places, &PAYLOAD_BYTES_LONG), 25)
}

/// All methods with bursts, separately for each sink and length.
fn series<'a>(places: &'a [Place], payload_bytes: &[usize]) -> Vec<Series<'a>> {
    let lengths = payload_bytes.iter().map(|&bytes| Datagrams::in_bursts(bytes));
    lengths.flat_map(|datagrams| places.iter().map(move |place| in_bursts(place, datagrams))).collect()
}

/// Single datagrams, each handed over alone.
fn series_of_single_datagrams<'a>(places: &'a [Place], payload_bytes: &[usize]) -> Vec<Series<'a>> {
    let segmented = places.iter().filter(|place| matches!(place.sink, Sink::Segmented(_)));
    segmented
        .flat_map(|place| payload_bytes.iter().map(|&bytes| singly(place, Datagrams::singly(bytes))))
        .collect()
}

pub(crate) fn in_bursts(place: &Place, datagrams: Datagrams) -> Series<'_> {
    let context = |way| Context::of(place, datagrams, way);
    let trial = |way, baselines| context(way).trial(None, baselines);
    let mut trials = Vec::new();
    if matches!(place.sink, Sink::Pair) {
        // First, because the others are compared with it.
        let to_recvmmsg = Context { taker: Some(Taker::Recvmmsg), ..context(Way::Singly) };
        trials.push(to_recvmmsg.trial(Some(TO_RECVMMSG), &[]));
        trials.push(trial(Way::Singly, &[BASELINE]));
    } else {
        trials.push(trial(Way::Singly, &[]));
    }
    let pinned = [Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];
    let others = [Way::Batches, Way::Segmented].into_iter().chain(pinned.map(Way::Pinned));
    let ports = [false, true].map(|copied| Way::Port { copied, checksum: UdpChecksum::Computed });
    trials.extend(others.chain(ports).map(|way| trial(way, &[BASELINE])));
    if matches!(place.sink, Sink::Segmented(_)) {
        let bare = [false, true].map(|copied| Way::Port { copied, checksum: UdpChecksum::Omitted });
        trials.extend(bare.map(|way| context(way).trial(Some(NO_CHECKSUM), &[BASELINE])));
    }
    trials.push(trial(Way::Auto, &[BASELINE, "gso", BEST_METHOD]));
    of(place, datagrams, format!("{NAME}, {}-byte datagrams", datagrams.bytes), trials)
}

pub(crate) fn singly(place: &Place, datagrams: Datagrams) -> Series<'_> {
    let trial =
        |way, baselines| Context { place, datagrams, way, taker: None }.trial(Some(ONE_A_CALL), baselines);
    let trials = vec![trial(Way::Singly, &[]), trial(Way::Auto, &[BASELINE])];
    of(place, datagrams, format!("{NAME}, {}-byte datagrams, {ONE_A_CALL}", datagrams.bytes), trials)
}

fn of<'a>(place: &Place, datagrams: Datagrams, title: String, trials: Vec<Trial<'a>>) -> Series<'a> {
    Series {
        workload: NAME,
        title,
        sink: Some(place.sink.name()),
        payload_bytes: datagrams.bytes,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
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

impl Way {
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
pub(crate) struct Context<'a> {
    place: &'a Place,
    datagrams: Datagrams,
    way: Way,
    taker: Option<Taker>,
}

impl<'a> Context<'a> {
    /// Sends to the sink's own receiver, if it has one.
    pub(crate) fn of(place: &'a Place, datagrams: Datagrams, way: Way) -> Self {
        Self { place, datagrams, way, taker: place.sink.taker() }
    }

    pub(crate) fn trial(self, variant: Option<&str>, baselines: &'static [&'static str]) -> Trial<'a> {
        let run = Box::new(move |duration| self.run(duration));
        Trial { method: self.way.name(), variant: variant.map(str::to_owned), baselines, run }
    }

    fn run(self, duration: Duration) -> Result<Sample, Failure> {
        let Self { place, datagrams, .. } = self;
        let method = self.way.name();
        let receive = self.taker.map(|taker| taker.open(&place.stage.receiver, datagrams)).transpose()?;
        let ledger = SharedLedger::default();
        let (send, evidence) = self.sender(&ledger)?;
        let count = || place.sink.dropped();
        let count: Option<traffic::Sink<'_>> = if self.taker.is_none() { Some(&count) } else { None };
        let traffic = conduct(&place.stage, duration, count, vec![send], receive.into_iter().collect())
            .map_err(Failure::step(method, "send", "raise 'ulimit -l', or free memory"))?;
        let evidence = evidence.unwrap_or_else(|| ledger.evidence());
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    /// The sender, and the evidence if it is known in advance; otherwise the sender stores its evidence in
    /// `ledger`.
    fn sender<'l>(self, ledger: &'l SharedLedger) -> Result<(Work<'l>, Option<Evidence>), Failure> {
        let Self { place, datagrams, way, .. } = self;
        let failed = || Failure::step(way.name(), "open a socket", "raise 'ulimit -n', or free memory");
        let plain = || datagram_sender::open(&place.stage).map_err(failed());
        let copied = Some(evidence::told(nocopy::Evidence::Copied(Cause::SocketCall)));
        let (work, evidence): (Work<'l>, _) = match way {
            Way::Singly => {
                let socket = plain()?;
                (Box::new(move |gauge| datagram_sender::send_singly(&socket, datagrams, gauge)), copied)
            }
            Way::Batches => {
                let socket = plain()?;
                (Box::new(move |gauge| datagram_sender::send_batches(&socket, datagrams, gauge)), copied)
            }
            Way::Segmented => {
                let socket = datagram_sender::open_segmenting(&place.stage, datagrams).map_err(failed())?;
                (Box::new(move |gauge| datagram_sender::send_segmented(&socket, datagrams, gauge)), copied)
            }
            Way::Pinned(_) | Way::Auto => {
                let method = if let Way::Pinned(method) = way { Some(method) } else { None };
                let sender = udp::open(&place.stage, method)?;
                let send = if datagrams.a_burst == 1 { udp::send_singly } else { udp::send };
                (Box::new(move |gauge| send(sender, datagrams, ledger, gauge)), None)
            }
            Way::Foreign(method) => {
                let sender = udp::open_returning(&place.stage, method)?;
                (Box::new(move |gauge| udp::send_foreign(sender, datagrams, ledger, gauge)), None)
            }
            Way::Port { copied, checksum } => {
                let (path, evidence) = udp_over_port::open(&place.stage, datagrams, checksum)?;
                let work: Work<'_> = match copied {
                    false => Box::new(move |gauge| path.send(gauge)),
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
    use sink::places;

    const WAYS: [Way; 14] = [
        Way::Singly,
        Way::Batches,
        Way::Segmented,
        Way::Pinned(Method::ZeroCopy),
        Way::Pinned(Method::ZeroCopyGso),
        Way::Pinned(Method::UringZeroCopy),
        Way::Pinned(Method::UringZeroCopyGso),
        Way::Auto,
        Way::Port { copied: false, checksum: UdpChecksum::Computed },
        Way::Port { copied: true, checksum: UdpChecksum::Computed },
        Way::Port { copied: false, checksum: UdpChecksum::Omitted },
        Way::Port { copied: false, checksum: UdpChecksum::Offloaded },
        Way::Foreign(Method::ZeroCopy),
        Way::Foreign(Method::UringZeroCopy),
    ];

    /// How often a trial is repeated whose sender did not start in time, because the machine was busy.
    const ATTEMPTS: usize = 50;

    fn check(place: &Place, datagrams: Datagrams, way: Way) {
        let context = Context { place, datagrams, way, taker: None };
        let name = place.sink.name();
        for _ in 0..ATTEMPTS {
            let before = place.sink.dropped().unwrap();
            let sample = context.run(Duration::from_millis(2)).unwrap();
            let sent = sample.traffic.senders[0].packets_total;
            let dropped = place.sink.dropped().unwrap() - before;
            assert_eq!(sent, dropped, "{name} {datagrams:?} {way:?}");
            if sent > 0 {
                return;
            }
        }
        panic!("{name} {datagrams:?} {way:?}: nothing was sent in {ATTEMPTS} attempts");
    }

    #[test]
    fn every_datagram_that_is_sent_is_counted_where_it_is_dropped() {
        if nocopy_lab::lab_or_skip().is_none() {
            return;
        }
        let has_io_uring = nocopy_lab::has_io_uring();
        let ways: Vec<Way> =
            WAYS.into_iter().filter(|way| has_io_uring || !way.name().starts_with("uring")).collect();
        for (mtu_bytes, lengths) in
            [(USUAL_MTU_BYTES, &PAYLOAD_BYTES[..]), (LONG_MTU_BYTES, &PAYLOAD_BYTES_LONG)]
        {
            let places = places(mtu_bytes).unwrap();
            for place in places.iter().filter(|place| place.sink.taker().is_none()) {
                for &bytes in lengths {
                    ways.iter().for_each(|way| check(place, Datagrams::in_bursts(bytes), *way));
                }
                check(place, Datagrams::singly(lengths[0]), Way::Auto);
            }
        }
        nocopy_lab::io_uring_or_skip();
    }

    #[test]
    fn bursts_arrive_whole_where_a_card_would_cut_them() {
        if nocopy_lab::lab_or_skip().is_none() {
            return;
        }
        let places = places(USUAL_MTU_BYTES).unwrap();
        let (place, drop) = match &places[0] {
            place @ Place { sink: Sink::Offload(drop), .. } => (place, drop),
            _ => return nocopy_lab::skip(&nocopy_lab::Missing::Kernel("tcx links (Linux 6.6)")),
        };
        let datagrams = Datagrams::in_bursts(1400);
        check(place, datagrams, Way::Segmented);
        assert_eq!(drop.packets().unwrap() * datagrams.a_burst as u64, drop.datagrams().unwrap());
    }
}
