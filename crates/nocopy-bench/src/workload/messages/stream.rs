//! Messages one way, as fast as possible, counted where they arrive.

use crate::evidence;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{NOTE, fits_a_frame, link_description, make_site_pair};
use crate::Failure;
use crate::baseline::{tcp, udp};
use crate::bench::Bench;
use crate::conversation::{NUMBER_BYTES, PartialMessage};
use crate::frame::{FrameTemplate, HEADER_BYTES};
use crate::message::{self, CarrierKind};
use crate::series::{Sample, Series, Trial};
use crate::stage::{LONG_MTU_BYTES, SitePair};
use crate::traffic::{ThreadWork, run_trial};
use crate::window::WindowGauge;
use crate::workload::{LOOPBACK, Workload};
use crate::xdp::{self, PortSpec};
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use nocopy_report::quantity::length_text;
use nocopy_report::result::Evidence;
use nocopy_transfer::exchange::message::MessageExchange;
use nocopy_transfer::exchange::tcp::TcpExchange;
use nocopy_transfer::exchange::udp::DATAGRAM_BYTES_MAX;
use nocopy_transfer::exchange::{Exchange, WaitMode};

/// The two ends of a message connection.
type ExchangePair = (MessageExchange, MessageExchange);

const NAME: &str = "message-stream";

const PAYLOADS_BYTES: [usize; 4] = [64, 1 << 10, 64 << 10, 1 << 20];

/// Lengths between them and beyond, with which carriers only are compared.
const PAYLOADS_BYTES_CARRIERS: [usize; 6] = [256, 4 << 10, 16 << 10, 256 << 10, 4 << 20, 16 << 20];

const PAYLOADS_BYTES_LONG: [usize; 1] = [1 << 20];

/// The methods that compare carriers: datagrams, a TCP connection, and both.
const CARRIERS: [&str; 6] =
    ["tcp-blocking", "tcp-whole", "tcp-batched", "tcp-gathered", "message-udp", "message-auto"];

/// The sent bytes, repeatedly: they stay in a cache, like data that a program has just made.
const SOURCE_BYTES: usize = 1 << 20;

/// Messages a sender has at a time, and how many bytes of them at most.
const BATCH_MAX: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

/// Bytes of all posted buffers: as many messages as may come in one look.
const POSTED_BYTES: usize = 4 << 20;

/// How long the last messages may take to arrive, if lost ones are sent again; longer than any busy machine
/// needs.
const LAST_MAX: Duration = Duration::from_secs(60);

const SOCKET_CAUSE: &str = "socket call: the kernel copies what is sent, and what is received";
const ACTION: &str = "check that both interfaces are still up";

pub(crate) const MESSAGE_STREAM: Workload = Workload {
    name: NAME,
    about: "Messages of several lengths one way",
    methods: &[
        ("tcp-blocking", "one connection with TCP_NODELAY, a write for each message; waits in the kernel"),
        ("tcp-whole", "the same; the receiver reads each message when all of it has come, in one piece"),
        ("tcp-batched", "as tcp-blocking, with one writev() for a batch of messages"),
        (
            "tcp-gathered",
            "as tcp-blocking, with one write() of a buffer that a batch of messages is copied into",
        ),
        ("tcp-spinning", "one connection with TCP_NODELAY; both ends spin"),
        (
            "message-xdp",
            "the library's message protocol over a port of AF_XDP; the variant says how it waits",
        ),
        ("message-udp", "the library's message protocol over UDP sockets; the variant says how it waits"),
        (
            "message-auto",
            "the same, with a TCP connection beside the datagrams for messages that the library sends by it",
        ),
        (
            "message-published",
            "the same, with the prepared part of each message published once: the TCP connection sends it by reference to its pages",
        ),
        (
            "message-posted",
            "as message-auto; the receiver posts buffers of 4 MiB in all, into which the library reads messages from the TCP connection",
        ),
        ("message-posted-udp", "the same without TCP connections: messages are copied into the buffers"),
        ("udp-spinning", "a datagram for each message; nothing is sent again"),
        ("xdp-spinning", "a frame for each message, over two ports of AF_XDP; nothing is sent again"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let usual = make_site_pair(Lab::builder())?;
    bench.run_series(build_series(&usual, &PAYLOADS_BYTES), 60)?;
    let mut carriers = build_series(&usual, &PAYLOADS_BYTES_CARRIERS);
    carriers.iter_mut().for_each(|series| series.trials.retain(|trial| CARRIERS.contains(&trial.method)));
    bench.run_series(carriers, 40)?;
    let long = make_site_pair(Lab::builder().mtu(LONG_MTU_BYTES))?;
    bench.run_series(build_series(&long, &PAYLOADS_BYTES_LONG), 14)
}

fn build_series<'a>(stage: &'a SitePair, payloads_bytes: &[usize]) -> Vec<Series<'a>> {
    payloads_bytes.iter().map(|&bytes| series_of_length(stage, bytes)).collect()
}

pub(crate) fn series_of_length(stage: &SitePair, bytes: usize) -> Series<'_> {
    Series {
        workload: NAME,
        title: format!("{NAME}, {}, MTU {}", length_text(bytes), stage.mtu_bytes()),
        sink: None,
        payload_bytes: bytes,
        link: Some(link_description(stage, Some(SOURCE_BYTES))),
        figure: Figure::MessagesPerSecond,
        trials: build_trials(stage, bytes),
    }
}

fn build_trials(stage: &SitePair, bytes: usize) -> Vec<Trial<'_>> {
    use WaitMode::{Blocking, Spinning};
    let spec = |method, baselines, waiting| MessageStreamSpec {
        method,
        variant: None,
        baselines,
        waiting,
        bytes,
        is_reliable: true,
    };
    let mut trials = vec![spec("tcp-blocking", &[], Blocking).tcp_trial(stage, |tcp| tcp)];
    if batch_size(bytes) == 1 {
        let whole = spec("tcp-whole", &["tcp-blocking"], Blocking);
        trials.push(whole.tcp_trial(stage, TcpExchange::with_whole_messages));
    }
    if batch_size(bytes) > 1 {
        trials.push(
            spec("tcp-batched", &["tcp-blocking"], Blocking)
                .tcp_trial(stage, TcpExchange::with_batched_sends),
        );
        trials.push(
            spec("tcp-gathered", &["tcp-blocking"], Blocking)
                .tcp_trial(stage, TcpExchange::with_gathered_sends),
        );
    }
    trials.push(spec("tcp-spinning", &["tcp-blocking"], Spinning).tcp_trial(stage, |tcp| tcp));
    for carrier in CarrierKind::ALL {
        trials.extend([Blocking, Spinning].map(|waiting| {
            let spec = spec(carrier.method_name(), baselines(carrier), waiting);
            MessageStreamSpec { variant: Some(waiting.name()), ..spec }.message_trial(stage, carrier, Ok)
        }));
    }
    if batch_size(bytes) == 1 {
        trials.extend([Blocking, Spinning].map(|waiting| {
            let spec = spec("message-published", &["tcp-blocking"], waiting);
            let spec = MessageStreamSpec { variant: Some(waiting.name()), ..spec };
            spec.message_trial(stage, CarrierKind::Auto, |(from, to)| Ok((from.with_published_payload(), to)))
        }));
        if bytes <= POSTED_BYTES {
            let posted = |method, carrier: CarrierKind, baselines| {
                spec(method, baselines, Blocking).message_trial(stage, carrier, move |(from, to)| {
                    Ok((from, to.with_posted_buffers((POSTED_BYTES / bytes) as u32, bytes)?))
                })
            };
            trials.push(posted("message-posted", CarrierKind::Auto, &["message-auto"]));
            trials.push(posted("message-posted-udp", CarrierKind::Sockets, &["message-udp"]));
        }
    }
    let unreliable =
        |method| MessageStreamSpec { is_reliable: false, ..spec(method, &["tcp-blocking"], Spinning) };
    if bytes <= DATAGRAM_BYTES_MAX {
        trials.push(unreliable("udp-spinning").udp_trial(stage));
    }
    if fits_a_frame(stage, bytes) {
        trials.push(unreliable("xdp-spinning").xdp_trial(stage));
    }
    trials
}

fn baselines(carrier: CarrierKind) -> &'static [&'static str] {
    match carrier {
        CarrierKind::Port => &["tcp-blocking", "tcp-batched", "tcp-gathered", "xdp-spinning"],
        CarrierKind::Sockets => &["tcp-blocking", "tcp-batched", "tcp-gathered", "udp-spinning"],
        CarrierKind::Auto => &["tcp-blocking", "tcp-whole", "tcp-batched", "tcp-gathered", "message-udp"],
    }
}

/// Messages that a sender has at a time.
fn batch_size(bytes: usize) -> usize {
    (BATCH_BYTES / bytes).clamp(1, BATCH_MAX)
}

#[derive(Debug, Clone, Copy)]
struct MessageStreamSpec {
    method: &'static str,
    variant: Option<&'static str>,
    baselines: &'static [&'static str],
    waiting: WaitMode,
    bytes: usize,
    is_reliable: bool,
}

impl MessageStreamSpec {
    /// `set` sets how an end sends several messages, and receives.
    fn tcp_trial(self, stage: &SitePair, set: fn(TcpExchange) -> TcpExchange) -> Trial<'_> {
        self.build_trial(stage, move |stage, waiting| {
            let action = "check that the kernel has the reno congestion control";
            let pair = tcp::connected_pair(stage, waiting);
            let (from, to) = pair.map_err(Failure::step(self.method, "open its sockets", action))?;
            Ok(((set(from), set(to)), Evidence::copied(SOCKET_CAUSE)))
        })
    }

    fn udp_trial(self, stage: &SitePair) -> Trial<'_> {
        self.build_trial(stage, move |stage, waiting| {
            let pair = udp::connected_pair(stage, waiting);
            let pair = pair.map_err(Failure::step(
                self.method,
                "open its sockets",
                "raise 'ulimit -n', or free memory",
            ))?;
            Ok((pair, Evidence::copied(SOCKET_CAUSE)))
        })
    }

    /// `set` sets how the ends send and receive.
    fn message_trial<'a>(
        self,
        stage: &'a SitePair,
        carrier: CarrierKind,
        set: impl Fn(ExchangePair) -> io::Result<ExchangePair> + 'a,
    ) -> Trial<'a> {
        self.build_trial(stage, move |stage, waiting| {
            let ends = set(message::connected_pair(stage, carrier, waiting, self.bytes)?);
            let ends = ends.map_err(Failure::step(self.method, "post buffers", "free memory"))?;
            Ok((ends, Evidence::unknown("nothing was sent")))
        })
    }

    /// Frames with UDP headers, without a protocol: the port's own limit.
    fn xdp_trial(self, stage: &SitePair) -> Trial<'_> {
        self.trial_from_run(move |duration| {
            let spec = PortSpec::in_xdp_mode(xdp::PortWaitMode::Spinning);
            let (from, to) = (spec.open(&stage.sender)?, spec.open(&stage.receiver)?);
            let evidence = xdp::port_evidence(&from);
            let template = FrameTemplate::to_peer(stage, HEADER_BYTES + self.bytes);
            let send: ThreadWork<'_> = Box::new(|gauge| xdp::send_packets(from, &template, gauge));
            let receive: ThreadWork<'_> = Box::new(|gauge| xdp::receive_packets(to, gauge));
            let moved = run_trial(stage, duration, None, vec![send], vec![receive]);
            let traffic = moved.map_err(Failure::step(self.method, "send messages", ACTION))?;
            Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
        })
    }

    /// Between two ends that are opened for each run.
    fn build_trial<'a, E: Exchange + 'a>(
        self,
        stage: &'a SitePair,
        open: impl Fn(&SitePair, WaitMode) -> Result<((E, E), Evidence), Failure> + 'a,
    ) -> Trial<'a> {
        self.trial_from_run(move |duration| {
            let ((mut from, mut to), evidence) = open(stage, self.waiting)?;
            let send: ThreadWork<'_> = Box::new(|gauge| send_in_batches(&mut from, self.bytes, gauge));
            let receive: ThreadWork<'_> = Box::new(|gauge| {
                receive_and_check_order(&mut to, OrderChecker::new(self.bytes, self.is_reliable), gauge)
            });
            let moved = run_trial(stage, duration, None, vec![send], vec![receive]);
            let mut traffic = moved.map_err(Failure::step(self.method, "send messages", ACTION))?;
            traffic.stream.receiver_user_copies = to.user_copies();
            let evidence = from.ledger().map_or(evidence, |ledger| evidence::ledger_evidence(&ledger));
            Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
        })
    }

    fn trial_from_run<'a>(self, run: impl Fn(Duration) -> Result<Sample, Failure> + 'a) -> Trial<'a> {
        let Self { method, variant, baselines, .. } = self;
        Trial { method, variant: variant.map(str::to_owned), baselines, run: Box::new(run) }
    }
}

fn send_in_batches(
    exchange: &mut impl Exchange,
    bytes: usize,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let batch = batch_size(bytes);
    if batch == 1 {
        return send_prepared(exchange, bytes, gauge);
    }
    let mut source: Vec<u8> = (0..SOURCE_BYTES.max(bytes)).map(|offset| offset as u8).collect();
    let (mut number, mut offset) = (0_u64, 0);
    while gauge.may_send() {
        let messages = &mut source[offset..offset + batch * bytes];
        for message in messages.chunks_exact_mut(bytes) {
            message[..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
            number += 1;
        }
        exchange.send_all(messages.chunks_exact(bytes))?;
        gauge.count_packets(batch as u64);
        // Both are powers of two, so a batch never runs over the end.
        offset = (offset + batch * bytes) % source.len();
    }
    exchange.finish(LAST_MAX)
}

/// The repeated part of a message is prepared: no method pays for making it.
fn send_prepared(exchange: &mut impl Exchange, bytes: usize, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let ready: Arc<[u8]> = (NUMBER_BYTES..bytes).map(|offset| offset as u8).collect();
    let mut number = 0_u64;
    while gauge.may_send() {
        exchange.send_with_prepared(&number.to_be_bytes(), &ready)?;
        number += 1;
        gauge.count_packets(1);
    }
    exchange.finish(LAST_MAX)
}

fn receive_and_check_order(
    exchange: &mut impl Exchange,
    mut order: OrderChecker,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let mut stopped: Option<Instant> = None;
    // Retransmitted messages may arrive late.
    while gauge.may_receive()
        || (order.is_reliable && stopped.get_or_insert_with(Instant::now).elapsed() < LAST_MAX)
    {
        let batch = batch_size(order.bytes);
        let received = exchange.receive_several(batch, |piece| match piece {
            Some(piece) => order.message.take_piece(piece),
            None => order.complete_message(),
        });
        let counted = std::mem::take(&mut order.counted);
        // A window may have few long messages: it begins and ends with one of them.
        if counted > 0 || batch > 1 {
            gauge.count_packets(counted);
        }
        if let Some(wrong) = order.wrong {
            return Err(wrong);
        }
        match received {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            received => received?,
        };
    }
    Ok(())
}

struct OrderChecker {
    message: PartialMessage,
    bytes: usize,
    is_reliable: bool,
    next: u64,
    /// Messages that count, since they were counted last.
    counted: u64,
    /// What came instead of the message that was due.
    wrong: Option<io::Error>,
}

impl OrderChecker {
    fn new(bytes: usize, is_reliable: bool) -> Self {
        Self { message: PartialMessage::default(), bytes, is_reliable, next: 0, counted: 0, wrong: None }
    }

    /// Ends a message.
    #[inline]
    fn complete_message(&mut self) {
        let PartialMessage { bytes, .. } = self.message;
        let number = std::mem::take(&mut self.message).message_number();
        match number {
            Some(number) if bytes == self.bytes && (number == self.next || !self.is_reliable) => {
                self.next = number + 1;
                self.counted += 1;
            }
            _ if !self.is_reliable => {}
            _ => {
                let text =
                    format!("{bytes} bytes came, of number {number:?}, where message {} was due", self.next);
                self.wrong.get_or_insert(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reliable_messages_must_be_complete_and_in_order() {
        let message = |number: u64| [&number.to_be_bytes()[..], &[0; 8]].concat();
        let mut order = OrderChecker::new(16, true);
        for number in 0..3 {
            order.message.take_piece(&message(number));
            order.complete_message();
        }
        assert_eq!(order.counted, 3);
        order.message.take_piece(&message(4));
        order.complete_message();
        assert!(order.wrong.unwrap().to_string().contains("message 3"));
        let mut order = OrderChecker::new(16, false);
        for (bytes, counts) in [(&message(7)[..], true), (&message(3)[..], true), (&[0; 15], false)] {
            order.message.take_piece(bytes);
            order.complete_message();
            assert_eq!((std::mem::take(&mut order.counted) == 1, order.wrong.is_none()), (counts, true));
        }
    }

    #[test]
    fn batches_divide_the_source_evenly() {
        for bytes in PAYLOADS_BYTES.into_iter().chain(PAYLOADS_BYTES_CARRIERS) {
            assert_eq!(SOURCE_BYTES.max(bytes) % (batch_size(bytes) * bytes), 0);
        }
    }
}
