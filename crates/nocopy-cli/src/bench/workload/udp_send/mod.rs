//! Datagrams to one destination, into four sinks: the kernel's ways to send, used by hand, against the library's.

mod sink;

use std::time::Duration;

pub(crate) use sink::{Place, places};
use sink::{Sink, Taker};

use crate::Failure;
use crate::bench::baseline::datagram_sender;
use crate::bench::datagram::Datagrams;
use crate::bench::result::Evidence;
use crate::bench::series::{BEST_METHOD, Figure, Sample, Series, Trial};
use crate::bench::traffic::{self, Work, conduct};

pub(crate) const NAME: &str = "udp-send";

/// What everybody does without a thought: a datagram a call.
const BASELINE: &str = "socket";

/// Bytes of payload: a game's or a name server's; one that nearly fills the usual MTU; one that nearly fills the long one.
pub(crate) const PAYLOAD_BYTES: [usize; 2] = [64, 1400];
pub(crate) const PAYLOAD_BYTES_LONG: [usize; 1] = [8192];

/// To whom, where it is not the sink's own receiver.
const TO_RECVMMSG: &str = "to-recvmmsg";
const ONE_A_CALL: &str = "one-a-call";

const SOCKET_CAUSE: &str = "socket call: the kernel copies each datagram into a socket buffer";

/// What a reader of its tables needs to know.
pub(crate) fn notes() -> Vec<String> {
    vec![sink::NOTE.into()]
}

/// All methods in bursts, each sink and length by itself.
pub(crate) fn series<'a>(places: &'a [Place], payload_bytes: &[usize]) -> Vec<Series<'a>> {
    let lengths = payload_bytes.iter().map(|&bytes| Datagrams::in_bursts(bytes));
    lengths.flat_map(|datagrams| places.iter().map(move |place| in_bursts(place, datagrams))).collect()
}

/// Datagrams one by one: what is there to be sent is always one.
pub(crate) fn series_of_single_datagrams<'a>(
    places: &'a [Place],
    payload_bytes: &[usize],
) -> Vec<Series<'a>> {
    let segmented = places.iter().filter(|place| matches!(place.sink, Sink::Segmented(_)));
    segmented
        .flat_map(|place| payload_bytes.iter().map(|&bytes| singly(place, Datagrams::singly(bytes))))
        .collect()
}

fn in_bursts(place: &Place, datagrams: Datagrams) -> Series<'_> {
    let context = |way| Context { place, datagrams, way, taker: place.sink.taker() };
    let mut trials = Vec::new();
    if matches!(place.sink, Sink::Pair) {
        // First: the others are compared with this one.
        let taker = Some(Taker::Recvmmsg);
        trials.push(Context { taker, ..context(Way::Singly) }.trial(Some(TO_RECVMMSG), &[]));
        trials.push(context(Way::Singly).trial(None, &[BASELINE]));
    } else {
        trials.push(context(Way::Singly).trial(None, &[]));
    }
    trials.extend([Way::Batches, Way::Segmented].map(|way| context(way).trial(None, &[BASELINE])));
    Series {
        workload: NAME,
        title: format!("{NAME}, {}-byte datagrams", datagrams.bytes),
        sink: Some(place.sink.name()),
        payload_bytes: datagrams.bytes,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

fn singly(place: &Place, datagrams: Datagrams) -> Series<'_> {
    let context = |way| Context { place, datagrams, way, taker: None };
    Series {
        workload: NAME,
        title: format!("{NAME}, {}-byte datagrams, {ONE_A_CALL}", datagrams.bytes),
        sink: Some(place.sink.name()),
        payload_bytes: datagrams.bytes,
        figure: Figure::PacketsPerSecond,
        trials: vec![context(Way::Singly).trial(Some(ONE_A_CALL), &[])],
    }
}

/// How datagrams are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Singly,
    Batches,
    Segmented,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Singly => BASELINE,
            Self::Batches => "sendmmsg",
            Self::Segmented => "gso",
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    place: &'a Place,
    datagrams: Datagrams,
    way: Way,
    taker: Option<Taker>,
}

impl<'a> Context<'a> {
    fn trial(self, variant: Option<&str>, baselines: &'static [&'static str]) -> Trial<'a> {
        let run = Box::new(move |duration| self.run(duration));
        Trial { method: self.way.name(), variant: variant.map(str::to_owned), baselines, run }
    }

    fn run(self, duration: Duration) -> Result<Sample, Failure> {
        let Self { place, datagrams, .. } = self;
        let method = self.way.name();
        let receive = self.taker.map(|taker| taker.open(&place.stage.receiver, datagrams.bytes)).transpose();
        let receive = receive.map_err(Failure::step(method, "open a receiver", "grant CAP_NET_ADMIN"))?;
        let (send, evidence) = self.sender()?;
        let count = || place.sink.dropped();
        let count: Option<traffic::Sink<'_>> = if self.taker.is_none() { Some(&count) } else { None };
        let traffic = conduct(&place.stage, duration, count, vec![send], receive.into_iter().collect())
            .map_err(Failure::step(method, "send", "see the errno"))?;
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    fn sender(self) -> Result<(Work<'a>, Evidence), Failure> {
        let Self { place, datagrams, .. } = self;
        let opened = match self.way {
            Way::Singly | Way::Batches => datagram_sender::open(&place.stage),
            Way::Segmented => datagram_sender::open_segmenting(&place.stage, datagrams),
        };
        let socket = opened.map_err(Failure::step(self.way.name(), "open a socket", "see the errno"))?;
        let work: Work<'_> = match self.way {
            Way::Singly => Box::new(move |gauge| datagram_sender::send_singly(&socket, datagrams, gauge)),
            Way::Batches => Box::new(move |gauge| datagram_sender::send_batches(&socket, datagrams, gauge)),
            Way::Segmented => {
                Box::new(move |gauge| datagram_sender::send_segmented(&socket, datagrams, gauge))
            }
        };
        Ok((work, Evidence::copied(SOCKET_CAUSE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stage::LONG_MTU_BYTES;

    /// Proves that the sinks that drop lose count of nothing: what was sent, by however long messages, is what they say.
    #[test]
    fn every_datagram_that_is_sent_is_counted_where_it_is_dropped() {
        if nocopy_lab::lab_or_skip().is_none() {
            return;
        }
        for (mtu_bytes, lengths) in [(1500, &PAYLOAD_BYTES[..]), (LONG_MTU_BYTES, &PAYLOAD_BYTES_LONG)] {
            let places = places(mtu_bytes).unwrap();
            for place in places.iter().filter(|place| place.sink.taker().is_none()) {
                for (&bytes, way) in lengths
                    .iter()
                    .flat_map(|bytes| [Way::Singly, Way::Batches, Way::Segmented].map(|way| (bytes, way)))
                {
                    let context = Context { place, datagrams: Datagrams::in_bursts(bytes), way, taker: None };
                    let before = place.sink.dropped().unwrap();
                    let sample = context.run(Duration::from_millis(5)).unwrap();
                    let sent = sample.traffic.senders[0].packets_total;
                    let dropped = place.sink.dropped().unwrap() - before;
                    assert!(
                        sent > 0 && sent == dropped,
                        "{} {bytes} {way:?}: {sent} {dropped}",
                        place.sink.name()
                    );
                    if let (Sink::Offload(drop), Way::Segmented) = (&place.sink, way) {
                        assert!(
                            drop.packets().unwrap() < drop.datagrams().unwrap(),
                            "bursts did not arrive whole"
                        );
                    }
                }
            }
        }
    }
}
