//! Short messages there and back while 1 MiB ones flow to the same peer: behind them on one TCP connection,
//! or beside puts.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{link_description, make_site_pair};
use crate::Failure;
use crate::baseline::tcp;
use crate::bench::Bench;
use crate::message::{CarrierKind, open_endpoint};
use crate::series::Series;
use crate::stage::SitePair;
use crate::workload::latency::RoundTripSpec;
use crate::workload::{LOOPBACK, Workload};
use nocopy::message::{Endpoint, Event, Peer, Region};
use nocopy::{Buffer, Ledger, Pool, Reason};
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;
use nocopy_transfer::exchange::message::user_copies_per_byte;
use nocopy_transfer::exchange::tcp::TcpExchange;
use nocopy_transfer::exchange::{Exchange, PATIENCE, WaitMode};

const NAME: &str = "message-beside";
const PAYLOAD_BYTES: usize = 64;
const LOAD_BYTES: usize = 1 << 20;
/// Long messages that are not answered, at most.
const LOADS_MAX: usize = 4;
const CONNECT_MAX: Duration = Duration::from_secs(5);

pub(crate) const MESSAGE_BESIDE: Workload = Workload {
    name: NAME,
    about: "Round trips of 64 bytes while 1 MiB messages flow to the same peer",
    methods: &[
        ("tcp-behind", "one connection with TCP_NODELAY for both: short messages wait behind long ones"),
        (
            "message-puts",
            "the library's message protocol over UDP sockets; the long ones are puts, which go by a TCP connection beside",
        ),
        ("message-puts-udp", "the same without TCP connections: puts go by datagrams, too"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[
        "message-beside: the asking end keeps 4 long messages on their way, each of which is answered; a short one is sent behind them.",
    ],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.run_series(build_series(&make_site_pair(Lab::builder())?), 4)
}

fn build_series(stage: &SitePair) -> Vec<Series<'_>> {
    let of = |waiting| {
        let spec = |method, baselines| RoundTripSpec {
            method,
            variant: Some(WaitMode::name(waiting)),
            baselines,
            waiting,
            bytes: PAYLOAD_BYTES,
        };
        let behind = spec("tcp-behind", &[]).build_trial(stage, |stage, waiting| {
            let action = "check that the kernel has the reno congestion control";
            let pair = tcp::connected_pair(stage, waiting);
            let (from, to) = pair.map_err(Failure::step("tcp-behind", "open its sockets", action))?;
            let evidence =
                Evidence::copied("socket call: the kernel copies what is sent, and what is received");
            Ok(((SharedTcpExchange::new(from, true), SharedTcpExchange::new(to, false)), evidence))
        });
        let puts = |method, carrier| {
            spec(method, &["tcp-behind"]).build_trial(stage, move |stage, waiting| {
                let action = "free memory, or raise 'ulimit -n'";
                let pair = PutExchange::open_connected_pair(stage, carrier, waiting)?;
                let pair = pair.map_err(Failure::step(method, "connect its endpoints", action))?;
                Ok((pair, Evidence::unknown("nothing was sent")))
            })
        };
        let (puts, by_datagrams) =
            (puts("message-puts", CarrierKind::Auto), puts("message-puts-udp", CarrierKind::Sockets));
        Series {
            workload: NAME,
            title: format!("{NAME}, 64 B there and back, 1 MiB one way, {}", waiting.name()),
            sink: None,
            payload_bytes: PAYLOAD_BYTES,
            link: Some(link_description(stage, Some(LOAD_BYTES))),
            figure: Figure::TailLatency,
            trials: vec![behind, puts, by_datagrams],
        }
    };
    vec![of(WaitMode::Blocking), of(WaitMode::Spinning)]
}

/// An end of a TCP connection that long messages go by, too. Each of them is answered by one byte, as a put
/// is by its answer.
struct SharedTcpExchange {
    tcp: TcpExchange,
    /// What is sent again and again, if this is the asking end.
    load: Option<Vec<u8>>,
    in_flight: usize,
    /// The first bytes of the message that is being received, and how many it has until now.
    short: Vec<u8>,
    bytes: usize,
}

impl SharedTcpExchange {
    fn new(tcp: TcpExchange, asks: bool) -> Self {
        let load = asks.then(|| vec![7; LOAD_BYTES]);
        Self { tcp, load, in_flight: 0, short: Vec::new(), bytes: 0 }
    }

    /// Sends so many long messages, if there are not enough on their way.
    fn send_long_messages(&mut self, most: usize) -> io::Result<()> {
        let Some(load) = &self.load else { return Ok(()) };
        for _ in 0..most.min(LOADS_MAX - self.in_flight) {
            self.tcp.send(load)?;
            self.in_flight += 1;
        }
        Ok(())
    }
}

impl Exchange for SharedTcpExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_long_messages(1)?;
        self.tcp.send(message)
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        self.send_long_messages(1)?;
        let Self { tcp, short, bytes, .. } = self;
        let is_whole = tcp.receive(|piece| {
            *bytes += piece.len();
            if *bytes <= PAYLOAD_BYTES {
                short.extend_from_slice(piece);
            }
        })?;
        if !is_whole {
            return Ok(false);
        }
        let message = std::mem::take(short);
        match std::mem::take(bytes) {
            1 => self.in_flight -= 1,
            PAYLOAD_BYTES => {
                take(&message);
                return Ok(true);
            }
            _ => self.tcp.send(&[0])?,
        }
        Ok(false)
    }
}

/// An end between which there are puts.
struct PutExchange {
    endpoint: Endpoint,
    peer: Peer,
    /// Where to put, and what, if this is the asking end.
    load: Option<(Region, Arc<[u8]>)>,
    in_flight: usize,
}

impl PutExchange {
    fn open_connected_pair(
        stage: &SitePair,
        carrier: CarrierKind,
        waiting: WaitMode,
    ) -> Result<io::Result<(Self, Self)>, Failure> {
        let open = |site| open_endpoint(stage, site, carrier, waiting, LOAD_BYTES);
        let (from, to) = (open(&stage.sender)?, open(&stage.receiver)?);
        Ok(stage.sender.run(|| Self::connect(from, to)))
    }

    fn connect(mut from: Endpoint, mut to: Endpoint) -> io::Result<(Self, Self)> {
        let start = Instant::now();
        let to_right = from.start_connect(to.local_addr()).map_err(io::Error::other)?;
        loop {
            from.wait(Duration::ZERO)?;
            to.wait(Duration::ZERO)?;
            if let Some(Event::Accepted(to_left, _)) = to.poll_event() {
                let buffer = Pool::new(1, LOAD_BYTES)?.take().ok_or(io::ErrorKind::OutOfMemory)?;
                let region = to.register(buffer, to_left).map_err(|rejected| rejected.reason)?;
                let load = Some((region, vec![7; LOAD_BYTES].into()));
                let end = |endpoint, peer, load| Self { endpoint, peer, load, in_flight: 0 };
                return Ok((end(from, to_right, load), end(to, to_left, None)));
            }
            if start.elapsed() > CONNECT_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Puts so many times, if there are not enough on their way.
    fn put_long_messages(&mut self, most: usize) -> io::Result<()> {
        let Some((region, bytes)) = &self.load else { return Ok(()) };
        for _ in 0..most.min(LOADS_MAX - self.in_flight) {
            let buffer = Buffer::from_owner(Arc::clone(bytes));
            match self.endpoint.put(buffer, self.peer, *region, 0) {
                Ok(_) => self.in_flight += 1,
                Err(rejected) if matches!(rejected.reason, Reason::Full) => break,
                Err(rejected) => return Err(rejected.reason.into()),
            }
        }
        Ok(())
    }
}

impl Exchange for PutExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.put_long_messages(1)?;
        match self.endpoint.send_copy_to(message, self.peer) {
            Ok(()) => self.endpoint.flush(),
            Err(Reason::Full) => Ok(()), // lost, as it is counted
            Err(reason) => Err(reason.into()),
        }
    }

    fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<bool> {
        self.put_long_messages(1)?;
        if let Some(message) = self.endpoint.receive_timeout(PATIENCE)? {
            message.pieces().for_each(take);
            return Ok(true);
        }
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::PutDone(..) => self.in_flight -= 1,
                Event::PutRefused(_, _, refusal) => return Err(io::Error::other(refusal)),
                Event::Lost(_, reason) => return Err(io::Error::other(reason)),
                _ => {}
            }
        }
        Ok(false)
    }

    fn ledger(&self) -> Option<Ledger> {
        Some(self.endpoint.ledger())
    }

    fn user_copies(&self) -> Option<f64> {
        user_copies_per_byte(&self.endpoint.ledger())
    }
}
