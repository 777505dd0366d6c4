//! Tests that the short ways, for runs of datagrams and common cases, have the same effect as the general
//! way, byte for byte.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::framing;
use super::wire::HEADER_BYTES;
use super::*;

type Host = Endpoint<Vec<u8>, Vec<u8>>;

fn address(host: usize) -> SocketAddr {
    ([10, 0, 0, host as u8 + 1], 7000).into()
}

/// What happens to a datagram on its way.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    Late,
    Damaged(u8),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        30 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Late),
        1 => (0u8..48).prop_map(Fate::Damaged),
    ];
    prop::collection::vec(fate, 1..60)
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize, usize),
    /// A packet with this many messages.
    Short(usize, u8, u8),
    /// As `Short`, sent at once.
    AtOnce(usize, u8, u8, Vec<Fate>),
    Carry(usize, bool, Vec<Fate>),
    /// A packet with this many messages, read in place.
    InPlace(usize, bool, u8, u8),
    /// A message of so many bytes, sent at once.
    RunAtOnce(usize, usize, Vec<Fate>),
    /// A message of so many bytes, read in place where its packets arrived; maybe one of them is damaged.
    RunInPlace(usize, bool, usize, Option<(u8, u8)>),
    Read(usize, u8),
    Sleep(u16),
    Finish(usize),
    Memory(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let host = 0..2_usize;
    let step = prop_oneof![
        6 => (host.clone(), 0..40_000_usize).prop_map(|(host, bytes)| Step::Send(host, bytes)),
        6 => (host.clone(), 1..5_u8, any::<u8>()).prop_map(|(host, count, bytes)| Step::Short(host, count, bytes)),
        6 => (host.clone(), 1..5_u8, any::<u8>(), fates())
            .prop_map(|(host, count, bytes, fates)| Step::AtOnce(host, count, bytes, fates)),
        10 => (host.clone(), any::<bool>(), fates()).prop_map(|(host, marked, fates)| Step::Carry(host, marked, fates)),
        6 => (host.clone(), any::<bool>(), 1..3_u8, any::<u8>())
            .prop_map(|(host, marked, count, bytes)| Step::InPlace(host, marked, count, bytes)),
        6 => (host.clone(), 0..20_000_usize, fates())
            .prop_map(|(host, bytes, fates)| Step::RunAtOnce(host, bytes, fates)),
        6 => (host.clone(), any::<bool>(), 0..40_000_usize, prop::option::weighted(0.2, (any::<u8>(), 0..48_u8)))
            .prop_map(|(host, marked, bytes, damage)| Step::RunInPlace(host, marked, bytes, damage)),
        3 => (host.clone(), 0..4_u8).prop_map(|(host, most)| Step::Read(host, most)),
        3 => (0..3000_u16).prop_map(Step::Sleep),
        1 => host.clone().prop_map(Step::Finish),
        1 => (host, 0..200_usize).prop_map(|(host, packets)| Step::Memory(host, packets)),
    ];
    prop::collection::vec(step, 1..60)
}

/// Two copies of two hosts: one handles everything the general way, the other the short way.
struct Twins {
    now: Time,
    single: [Host; 2],
    runs: [Host; 2],
    followers: usize,
    /// Packets sent the short way, which is used every other time.
    fresh: usize,
    /// Acknowledgements, and packets that were never queued, sent the short way.
    acks: usize,
    at_once: usize,
    /// Messages that were read in place.
    in_place: usize,
    runs_in_place: usize,
    runs_at_once: usize,
    /// How often time passed.
    passed: usize,
    /// Acknowledgements sent at once when they were due.
    acks_when_due: usize,
    carried: usize,
}

impl Twins {
    fn new() -> Self {
        let settings = Settings { window_packets: 100, max_message_bytes: 60_000, ..Settings::default() };
        let hosts = || [1, 2].map(|seed| Endpoint::new(settings.clone(), [seed; 32]));
        let mut single = hosts();
        single.iter_mut().for_each(Endpoint::go_the_general_way);
        Self {
            now: Time::from_ns(1_000_000),
            single,
            runs: hosts(),
            followers: 0,
            fresh: 0,
            acks: 0,
            at_once: 0,
            in_place: 0,
            runs_in_place: 0,
            runs_at_once: 0,
            passed: 0,
            acks_when_due: 0,
            carried: 0,
        }
    }

    fn both(&mut self, host: usize) -> [&mut Host; 2] {
        [&mut self.single[host], &mut self.runs[host]]
    }

    /// Sends everything there is, and delivers it to the other host.
    fn carry(&mut self, from: usize, marked: bool, fates: &[Fate]) {
        let sent = self.sent_single(from);
        self.carried += 1;
        assert!(sent == self.sent_in_runs(from), "they sent different datagrams");
        self.deliver(from, marked, fates, sent);
    }

    fn deliver(&mut self, from: usize, marked: bool, fates: &[Fate], sent: Vec<Vec<u8>>) {
        let mut late = Vec::new();
        let mut arrived = Vec::new();
        for (mut datagram, fate) in sent.into_iter().zip(fates.iter().cycle()) {
            match fate {
                Fate::Arrives => arrived.push(datagram),
                Fate::Lost => {}
                Fate::Twice => arrived.extend([datagram.clone(), datagram]),
                Fate::Late => late.push(datagram),
                Fate::Damaged(at) => {
                    let at = usize::from(*at) % datagram.len();
                    datagram[at] ^= 1 << (at % 8);
                    arrived.push(datagram);
                }
            }
        }
        arrived.extend(late);
        for datagram in &arrived {
            self.single[1 - from].handle_datagram(self.now, address(from), marked, datagram.clone());
        }
        let (host, now, from) = (&mut self.runs[1 - from], self.now, address(from));
        if let [datagram] = &arrived[..] {
            let mut is_kept = false;
            let mut keep = || {
                is_kept = true;
                Some(datagram.clone())
            };
            if host.handle_in_place(now, from, marked, datagram, &mut keep) {
                // A datagram that was read in place was never handed over.
                host.released.extend((!is_kept).then(|| datagram.clone()));
                return;
            }
        }
        host.handle_run(now, from, marked, arrived);
    }

    fn sent_single(&mut self, from: usize) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some(transmit) = self.single[from].poll_transmit(self.now) {
            sent.push(match transmit {
                Transmit::Control { datagram, .. } => datagram.to_vec(),
                Transmit::Unit { .. } => unreachable!("no unit was queued"),
                Transmit::Packet { packet, header, .. } => [&header[..], packet].concat(),
            });
        }
        sent
    }

    fn sent_in_runs(&mut self, from: usize) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        loop {
            let before = sent.len();
            let is_fresh = self.carried % 4 < 2;
            let fresh = match is_fresh {
                false => Fresh::None,
                true => self.runs[from].transmit_fresh(self.now, 20, |_, packet, header| {
                    sent.push([&header[..], packet].concat());
                }),
            };
            self.fresh += sent.len() - before;
            let is_ack = is_fresh
                && fresh == Fresh::None
                && self.runs[from].transmit_ack(self.now, |_, ack, _| sent.push(ack.to_vec()));
            if is_ack {
                self.acks += 1;
                continue;
            }
            match fresh {
                Fresh::None => {}
                Fresh::Some => continue,
                Fresh::Last => break self.runs[from].rest_after_last(self.now),
            }
            let Some(transmit) = self.runs[from].poll_transmit(self.now) else { break };
            match transmit {
                Transmit::Control { datagram, .. } => sent.push(datagram.to_vec()),
                Transmit::Unit { .. } => unreachable!("no unit was queued"),
                Transmit::Packet { peer, packet, header, .. } => {
                    sent.push([&header[..], packet].concat());
                    let before = sent.len();
                    self.runs[from].transmit_followers(self.now, peer, header, |packet, header| {
                        sent.push([&header[..], packet].concat());
                    });
                    self.followers += sent.len() - before;
                }
            }
        }
        sent
    }

    /// The packets of a message.
    fn packets(host: &Host, to: Peer, bytes: usize) -> Option<Vec<Vec<u8>>> {
        let max = host.payload_bytes_max(to).ok()?;
        let chunks = framing::chunks(Kind::Plain, bytes, 0, max.max(HEADER_BYTES));
        Some(
            chunks.map(|placed| [placed.header(), &vec![bytes as u8; placed.range.len()]].concat()).collect(),
        )
    }

    fn send(&mut self, from: usize, to: Peer, bytes: usize) {
        for host in self.both(from) {
            let Some(mut packets) = Self::packets(host, to, bytes) else { continue };
            let _ = host.queue_all(to, &mut packets); // no room: for neither
        }
    }

    /// Sends a message at once, and everything else there is to send, and delivers it to the other host.
    fn send_run_at_once(&mut self, from: usize, to: Peer, bytes: usize, fates: &[Fate]) {
        let now = self.now;
        let [single, runs] = self.both(from);
        let Some(mut packets) = Self::packets(single, to, bytes) else { return };
        let (mut others, mut in_runs) = (packets.clone(), Vec::new());
        let _ = single.queue_all(to, &mut packets);
        let at_once = runs.send_run_at_once(now, to, &mut others, |_, packets, headers| {
            in_runs
                .extend(packets.iter().zip(headers).map(|(packet, header)| [&header[..], packet].concat()));
        });
        match at_once {
            true => runs.rest_after(now, to),
            false => drop(runs.queue_all(to, &mut others)),
        }
        self.runs_at_once += usize::from(at_once);
        let sent = self.sent_single(from);
        in_runs.extend(self.sent_in_runs(from));
        assert!(sent == in_runs, "they sent different datagrams");
        self.deliver(from, false, fates, sent);
    }

    /// A packet with messages of each kind.
    fn short_packet(count: u8, bytes: u8) -> Vec<u8> {
        let kinds = [Kind::Plain, Kind::Request(7), Kind::Response(9)].into_iter().cycle();
        let packet = kinds.take(count.into()).flat_map(|kind| {
            let placed = framing::chunks(kind, bytes.into(), 400, 400).next().expect("one");
            [placed.header(), &vec![bytes; bytes.into()][..]].concat()
        });
        packet.collect()
    }

    fn send_short(&mut self, from: usize, to: Peer, count: u8, bytes: u8) {
        for host in self.both(from) {
            let _ = host.queue(to, Self::short_packet(count, bytes)); // no room: for neither
        }
    }

    /// Sends such a packet at once, and everything else there is to send, and delivers it to the other host.
    fn send_at_once(&mut self, from: usize, to: Peer, count: u8, bytes: u8, fates: &[Fate]) {
        let _ = self.single[from].queue(to, Self::short_packet(count, bytes));
        let sent = self.sent_single(from);
        let (now, packet) = (self.now, Self::short_packet(count, bytes));
        let mut in_runs = Vec::new();
        let at_once = self.runs[from].send_at_once(now, to, packet, |_, packet, header| {
            in_runs.push([&header[..], packet].concat());
        });
        match at_once {
            Ok(()) => {
                self.runs[from].rest_after(now, to);
                self.at_once += 1;
            }
            Err(packet) => {
                let _ = self.runs[from].queue(to, packet);
            }
        }
        in_runs.extend(self.sent_in_runs(from));
        assert!(sent == in_runs, "they sent different datagrams");
        self.deliver(from, false, fates, sent);
    }

    /// Sends such a packet, and reads it in place if that is possible.
    fn read_in_place(&mut self, from: usize, to: Peer, marked: bool, count: u8, bytes: u8) {
        self.send_short(from, to, count, bytes);
        let sent = self.sent_single(from);
        assert!(sent == self.sent_in_runs(from), "they sent different datagrams");
        let (now, address) = (self.now, address(from));
        for datagram in sent {
            let [single, runs] = self.both(1 - from);
            single.handle_datagram(now, address, marked, datagram.clone());
            match runs.receive_in_place(now, address, marked, &datagram) {
                Some((peer, kind, range)) => {
                    let message = single.receive().expect("the other one has it");
                    let is_same = (message.peer(), message.kind()) == (peer, kind);
                    assert!(
                        is_same && message.as_slice() == Some(&datagram[range]),
                        "they read different messages"
                    );
                    drop(message);
                    runs.released.push(datagram); // never given
                    self.in_place += 1;
                }
                None => runs.handle_datagram(now, address, marked, datagram),
            }
        }
    }

    /// Sends a message, and reads it where its packets arrived if that is possible.
    fn read_run_in_place(
        &mut self,
        from: usize,
        to: Peer,
        marked: bool,
        bytes: usize,
        damage: Option<(u8, u8)>,
    ) {
        self.send(from, to, bytes);
        let mut sent = self.sent_single(from);
        assert!(sent == self.sent_in_runs(from), "they sent different datagrams");
        if let Some((datagram, at)) = damage
            && let count @ 1.. = sent.len()
        {
            let datagram = &mut sent[usize::from(datagram) % count];
            let at = usize::from(at) % datagram.len();
            datagram[at] ^= 1 << (at % 8);
        }
        let (now, address) = (self.now, address(from));
        for datagram in &sent {
            self.single[1 - from].handle_datagram(now, address, marked, datagram.clone());
        }
        let [single, runs] = self.both(1 - from);
        let is_run = sent.windows(2).all(|two| two[0].len() >= two[1].len())
            && sent.iter().rev().skip(1).all(|datagram| datagram.len() == sent[0].len());
        let run = sent.concat();
        let read = match &sent[..] {
            [first, ..] if is_run => runs.receive_run_in_place(now, address, marked, &run, first.len()),
            _ => None,
        };
        let Some((peer, kind, spread)) = read else { return runs.handle_run(now, address, marked, sent) };
        let message = single.receive().expect("the other one has it");
        assert_eq!((message.peer(), message.kind(), message.len()), (peer, kind, spread.bytes(run.len())));
        assert!(message.pieces().eq(spread.pieces(&run)), "they read different messages");
        drop(message);
        runs.released.extend(sent); // never given
        self.runs_in_place += 1;
    }

    fn step(&mut self, peers: [Peer; 2], step: &Step) {
        match step {
            Step::RunAtOnce(from, bytes, fates) => self.send_run_at_once(*from, peers[*from], *bytes, fates),
            Step::RunInPlace(from, marked, bytes, damage) => {
                self.read_run_in_place(*from, peers[*from], *marked, *bytes, *damage);
            }
            Step::Send(from, bytes) => self.send(*from, peers[*from], *bytes),
            Step::Short(from, count, bytes) => self.send_short(*from, peers[*from], *count, *bytes),
            Step::AtOnce(from, count, bytes, fates) => {
                self.send_at_once(*from, peers[*from], *count, *bytes, fates);
            }
            Step::InPlace(from, marked, count, bytes) => {
                self.read_in_place(*from, peers[*from], *marked, *count, *bytes);
            }
            Step::Carry(from, marked, fates) => self.carry(*from, *marked, fates),
            Step::Read(host, most) => {
                if *most == 3 {
                    return self.read_whole(*host);
                }
                for _ in 0..*most {
                    let [one, other] = self.both(*host).map(|host| {
                        host.receive().map(|message| message.pieces().flatten().copied().collect::<Vec<u8>>())
                    });
                    assert!(one == other, "they read different messages");
                }
            }
            Step::Sleep(us) => {
                self.now = self.now + Duration::from_micros((*us).into());
                (0..2).for_each(|host| self.pass_time(host));
            }
            Step::Finish(host) => {
                let peer = peers[*host];
                self.both(*host).into_iter().for_each(|host| drop(host.finish(peer, Vec::new())));
            }
            Step::Memory(host, packets) => {
                self.both(*host).into_iter().for_each(|host| host.set_free(*packets));
            }
        }
        for host in [0, 1] {
            let [one, other] = self.both(host);
            assert_eq!(one.counters(), other.counters());
            assert_eq!(one.statistics(peers[host]), other.statistics(peers[host]));
            assert_eq!(one.poll_timeout(), other.poll_timeout());
            assert_eq!(one.poll_event(), other.poll_event());
            let released =
                self.both(host).map(|host| std::iter::from_fn(|| host.released()).collect::<Vec<_>>());
            assert!(released[0] == released[1], "they gave different datagrams back");
            let given = self.both(host).map(|host| std::iter::from_fn(|| host.acknowledged()).count());
            assert_eq!(given[0], given[1]);
        }
    }

    /// Handles what is due. Every second time one endpoint sends its acknowledgement at once; it arrives.
    fn pass_time(&mut self, host: usize) {
        let (now, mut acks) = (self.now, Vec::new());
        self.passed += 1;
        if self.passed % 4 < 2 {
            self.runs[host].acknowledge_due(now, |_, ack, _| acks.push(ack.to_vec()));
        }
        self.both(host).into_iter().for_each(|host| host.handle_timeout(now));
        if acks.is_empty() {
            return;
        }
        self.acks_when_due += 1;
        acks.extend(self.sent_in_runs(host));
        let sent = self.sent_single(host);
        assert!(sent == acks, "they sent different datagrams");
        self.deliver(host, false, &[Fate::Arrives], sent);
    }

    /// Reads one by one what lies in the next packet, and at once.
    fn read_whole(&mut self, host: usize) {
        let mut read = Vec::new();
        let count = self.runs[host].receive_whole(|_, kind, bytes| read.push((kind, bytes.to_vec())));
        assert_eq!(count, read.len());
        for (kind, bytes) in read {
            let message = self.single[host].receive().expect("the other one has it");
            assert_eq!((message.kind(), message.as_slice()), (kind, Some(&bytes[..])));
        }
    }

    fn connect(&mut self) -> [Peer; 2] {
        let now = self.now;
        let [client, _] = self.both(0).map(|host| host.connect(now, address(1)).unwrap());
        for _ in 0..4 {
            self.carry(0, false, &[Fate::Arrives]);
            self.carry(1, false, &[Fate::Arrives]);
        }
        let [accepted, _] = self.both(1).map(Endpoint::poll_event);
        let Some(Event::Accepted(server, _)) = accepted else { panic!("not accepted") };
        [client, server]
    }

    /// Connects; then each end acknowledges a message, without which none goes to it the short way.
    fn connect_and_answer(&mut self) -> [Peer; 2] {
        let peers = self.connect();
        for host in [0, 1] {
            self.step(peers, &Step::Send(host, 8));
            self.step(peers, &Step::Carry(host, false, vec![Fate::Arrives]));
            self.step(peers, &Step::Read(1 - host, 1));
            self.step(peers, &Step::Sleep(600));
            self.step(peers, &Step::Carry(1 - host, false, vec![Fate::Arrives]));
        }
        peers
    }
}

#[test]
fn a_long_message_goes_in_runs() {
    let mut twins = Twins::new();
    let peers = twins.connect_and_answer();
    twins.step(peers, &Step::Send(0, 40_000));
    for _ in 0..20 {
        twins.step(peers, &Step::Carry(0, false, vec![Fate::Arrives]));
        twins.step(peers, &Step::Carry(1, false, vec![Fate::Arrives]));
    }
    let (followers, fresh) = (twins.followers, twins.fresh);
    assert!(followers >= 5 && fresh >= 5 && followers + fresh >= 20, "{followers} and {fresh} of 28 packets");
    assert!(twins.runs[1].has_message());
    twins.step(peers, &Step::Read(1, 1));
}

#[test]
fn long_questions_and_answers_are_read_where_they_arrive() {
    let mut twins = Twins::new();
    let peers = twins.connect();
    for round in 0..20 {
        twins.step(peers, &Step::RunInPlace(round % 2, round == 19, 2_000 + 400 * round, None));
    }
    assert_eq!(twins.runs_in_place, 20);
    for round in 0..20 {
        twins.step(peers, &Step::RunAtOnce(round % 2, 2_000 + 400 * round, vec![Fate::Arrives]));
        twins.step(peers, &Step::Read(1 - round % 2, 1));
    }
    assert_eq!(twins.runs_at_once, 20);
}

#[test]
fn questions_and_answers_go_at_once() {
    let mut twins = Twins::new();
    let peers = twins.connect_and_answer();
    for round in 0..20 {
        for host in [0, 1] {
            twins.step(peers, &Step::AtOnce(host, 1, 64, vec![Fate::Arrives]));
            twins.step(peers, &Step::Read(1 - host, 1));
        }
        assert_eq!(twins.at_once, 2 * (round + 1));
    }
    let before = twins.acks;
    for _ in 0..10 {
        twins.step(peers, &Step::AtOnce(0, 1, 64, vec![Fate::Arrives]));
        twins.step(peers, &Step::Read(1, 1));
        twins.step(peers, &Step::Sleep(600));
        twins.step(peers, &Step::Carry(1, false, vec![Fate::Arrives]));
    }
    let before_in_place = twins.in_place;
    for round in 0..10 {
        twins.step(peers, &Step::InPlace(round % 2, false, 1, 64));
    }
    assert_eq!(twins.in_place, before_in_place + 10);
    let acks = (twins.acks - before, twins.acks_when_due);
    assert!(acks.0 >= 2 && acks.1 >= 4, "{acks:?} acknowledgements");
}

proptest! {
    /// Runs have the same effect as single datagrams, whatever is lost, repeated, late or damaged.
    #[test]
    fn runs_and_single_datagrams_do_the_same(steps in steps()) {
        let mut twins = Twins::new();
        let peers = twins.connect();
        for step in &steps {
            twins.step(peers, step);
        }
    }
}
