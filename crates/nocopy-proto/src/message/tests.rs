//! Two endpoints without a network: everything sent arrives in the next step.

use std::net::SocketAddr;
use std::time::Duration;

use super::framing;
use super::wire::HEADER_BYTES;
use super::*;

mod addresses;
mod damage;
mod units;

type Host = Endpoint<Vec<u8>, Vec<u8>>;

struct Table {
    now: Time,
    hosts: [Host; 2],
    /// Datagrams carried so far.
    carried: usize,
    /// The units for streams, and the host that sent each.
    units: Vec<(usize, Vec<u8>)>,
    /// The round trip that the first host's echoes claim, if it forges them.
    forged_round_trip: Option<Duration>,
}

fn address(host: usize) -> SocketAddr {
    ([10, 0, 0, host as u8 + 1], 7000).into()
}

fn whole(transmit: Transmit<'_, Vec<u8>>) -> Vec<u8> {
    match transmit {
        Transmit::Control { datagram, .. } => datagram.to_vec(),
        Transmit::Unit { .. } => unreachable!("no unit was queued"),
        Transmit::Packet { packet, header, crc, .. } => {
            let mut datagram = [&header[..], packet].concat();
            if crc {
                crc::seal(&mut datagram);
            }
            datagram
        }
    }
}

impl Table {
    fn new(settings: &Settings) -> Self {
        let hosts = [1, 2].map(|seed| Endpoint::new(settings.clone(), [seed; 32]));
        Self { now: Time::from_ns(1_000_000), hosts, carried: 0, units: Vec::new(), forged_round_trip: None }
    }

    fn connected(settings: &Settings) -> (Self, Peer, Peer) {
        let mut table = Self::new(settings);
        let client = table.hosts[0].connect(table.now, address(1)).unwrap();
        table.settle(|_, _| true);
        assert_eq!(table.hosts[0].poll_event(), Some(Event::Connected(client, address(1))));
        let Some(Event::Accepted(server, from)) = table.hosts[1].poll_event() else { panic!("not accepted") };
        assert_eq!(from, address(0));
        (table, client, server)
    }

    /// Delivers datagrams until there are none, except those that `passes` holds back.
    fn settle(&mut self, mut passes: impl FnMut(usize, &[u8]) -> bool) {
        loop {
            let mut quiet = true;
            for from in [0, 1] {
                while let Some(transmit) = self.hosts[from].poll_transmit(self.now) {
                    quiet = false;
                    if let Transmit::Unit { unit, header, .. } = transmit {
                        self.units.push((from, [&header[..], unit].concat()));
                        continue;
                    }
                    let mut datagram = whole(transmit);
                    if let (0, Some(round_trip)) = (from, self.forged_round_trip) {
                        let ticks = (round_trip.as_nanos() / 64) as u32;
                        datagram[28..32].copy_from_slice(&self.now.ticks().wrapping_sub(ticks).to_be_bytes());
                    }
                    if passes(from, &datagram) {
                        self.now = self.now + Duration::from_micros(2);
                        self.carried += 1;
                        self.hosts[1 - from].handle_datagram(self.now, address(from), false, datagram);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn sleep(&mut self, duration: Duration) {
        self.sleep_while(duration, |_, _| true);
    }

    fn sleep_while(&mut self, duration: Duration, mut passes: impl FnMut(usize, &[u8]) -> bool) {
        let until = self.now + duration;
        loop {
            let due = self.hosts.iter().filter_map(Endpoint::poll_timeout).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
            self.settle(&mut passes);
        }
        self.now = until;
    }

    fn send(&mut self, from: usize, to: Peer, message: &[u8]) {
        let max = self.hosts[from].payload_bytes_max(to).unwrap();
        for placed in framing::chunks(Kind::Plain, message.len(), 0, max) {
            let packet = [placed.header(), &message[placed.range.clone()]].concat();
            assert!(HEADER_BYTES + packet.len() <= 1472);
            self.hosts[from].queue(to, packet).unwrap();
        }
    }

    /// The first peer that a host has lost, and why.
    fn lost(&mut self, host: usize) -> Option<(Peer, String)> {
        std::iter::from_fn(|| self.hosts[host].poll_event()).find_map(|event| match event {
            Event::Lost(peer, reason) => Some((peer, reason.to_string())),
            _ => None,
        })
    }

    fn received(&mut self, host: usize) -> Option<Vec<u8>> {
        self.hosts[host].receive().map(|message| message.pieces().flatten().copied().collect())
    }
}

/// Also for an hour: its machine was suspended, or its program did not run.
#[test]
fn a_client_that_was_away_asks_before_it_gives_up() {
    let mut table = Table::new(&Settings::default());
    let client = table.hosts[0].connect(table.now, address(1)).unwrap();
    table.settle(|_, _| false);
    table.now = table.now + Duration::from_secs(3600);
    table.hosts[0].handle_timeout(table.now);
    table.settle(|_, _| true);
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Connected(client, address(1))));
}

#[test]
fn a_client_without_answers_gives_up_in_time() {
    let settings = Settings::default();
    let mut table = Table::new(&settings);
    let client = table.hosts[0].connect(table.now, address(1)).unwrap();
    table.settle(|_, _| false);
    table.sleep_while(settings.dead_after, |_, _| false);
    assert_eq!(table.lost(0).map(|(peer, _)| peer), Some(client));
}

/// After a stall, which makes the smoothed round-trip time long, a conversation continues at its own pace.
#[test]
fn a_round_trip_that_took_long_delays_no_answer_after_it() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    for round in 0..500 {
        table.send(0, client, b"question");
        if round % 100 == 50 {
            let question = whole(table.hosts[0].poll_transmit(table.now).expect("a question"));
            table.now = table.now + Duration::from_millis(100);
            table.hosts[1].handle_datagram(table.now, address(0), false, question);
        }
        table.settle(|_, _| true);
        assert_eq!(table.received(1).as_deref(), Some(&b"question"[..]), "{round}");
        table.send(1, server, b"answer");
        table.settle(|_, _| true);
        assert_eq!(table.received(0).as_deref(), Some(&b"answer"[..]), "{round}");
    }
}

/// A peer may be gone that has acknowledged nothing yet, or did not answer when it was asked: what is sent to
/// it is looked at one by one.
#[test]
fn only_to_peers_that_answer_do_packets_go_the_short_way() {
    let (mut table, client, _) = Table::connected(&Settings::default());
    let goes_short = |table: &mut Table| {
        table.send(0, client, b"message");
        let sent = table.hosts[0].transmit_fresh(table.now, 1, |_, _, _| ());
        if sent == Fresh::Last {
            table.hosts[0].rest_after_last(table.now);
        }
        sent != Fresh::None
    };
    assert!(!goes_short(&mut table), "nothing is acknowledged yet");
    table.settle(|_, _| true);
    table.sleep(Duration::from_secs(1));
    assert!(goes_short(&mut table));
    table.sleep_while(Duration::from_secs(1), |_, _| false);
    assert!(!goes_short(&mut table), "a probe is unanswered");
    table.sleep(Duration::from_secs(2));
    assert!(goes_short(&mut table));
    table.sleep(Duration::from_secs(2)); // it arrives by a probe
    table.sleep_while(Settings::default().keep_alive, |_, _| false);
    assert!(!goes_short(&mut table), "a question is unanswered");
}

#[test]
fn messages_arrive_in_order_and_leave_nothing_behind() {
    for crc in [false, true] {
        let (mut table, client, server) = Table::connected(&Settings { crc, ..Settings::default() });
        let messages: Vec<Vec<u8>> =
            [0, 1, 64, 1400, 1500, 100_000].map(|bytes| vec![bytes as u8; bytes]).into();
        for message in &messages {
            table.send(0, client, message);
            table.send(1, server, message);
        }
        table.settle(|_, _| true);
        for host in [0, 1] {
            for message in &messages {
                assert_eq!(table.received(host).as_ref(), Some(message));
            }
            assert_eq!(table.received(host), None);
        }
        table.sleep(Duration::from_millis(2));
        for (host, peer) in [(0, client), (1, server)] {
            let statistics = table.hosts[host].statistics(peer).unwrap().unwrap();
            assert_eq!((statistics.in_flight, statistics.queued, statistics.unread), (0, 0, 0));
            assert_eq!(table.hosts[host].counters().packets_sent_again, 0);
            let packets = table.hosts[host].counters().packets_sent as usize;
            assert_eq!(std::iter::from_fn(|| table.hosts[host].acknowledged()).count(), packets);
        }
    }
}

#[test]
fn a_conversation_needs_no_acknowledgements_of_its_own() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    table.sleep(Duration::from_millis(10));
    let before = table.carried;
    for _ in 0..100 {
        table.send(0, client, b"ping");
        table.settle(|_, _| true);
        assert_eq!(table.received(1).as_deref(), Some(&b"ping"[..]));
        table.send(1, server, b"pong");
        table.settle(|_, _| true);
        assert_eq!(table.received(0).as_deref(), Some(&b"pong"[..]));
    }
    assert_eq!(table.carried - before, 200);
}

#[test]
fn what_is_lost_is_sent_again() {
    let (mut table, client, _) = Table::connected(&Settings::default());
    let message: Vec<u8> = (0..200_000).map(|at| (at / 7) as u8).collect();
    table.send(0, client, &message);
    let mut count = 0;
    table.settle(|from, _| {
        count += usize::from(from == 0);
        from == 1 || count % 7 != 0
    });
    table.sleep(Duration::from_secs(1));
    assert_eq!(table.received(1), Some(message));
    let Counters { lost, spurious, packets_sent_again, .. } = table.hosts[0].counters();
    assert!(
        packets_sent_again >= 15 && lost >= 15 && spurious == 0,
        "{lost} {packets_sent_again} {spurious}"
    );
}

#[test]
fn both_ends_end() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    table.send(0, client, b"last words");
    table.hosts[0].finish(client, Vec::new()).unwrap();
    let (packet, error) = table.hosts[0].queue(client, vec![0]).unwrap_err();
    assert_eq!(
        (packet, error.to_string()),
        (vec![0], "this direction was ended; nothing more can be sent on this connection".to_owned())
    );
    table.settle(|_, _| true);
    assert_eq!(table.hosts[1].poll_event(), None, "there is something to read first");
    assert_eq!(table.received(1).as_deref(), Some(&b"last words"[..]));
    table.settle(|_, _| true);
    assert_eq!(table.hosts[1].poll_event(), Some(Event::Finished(server)));
    table.hosts[1].finish(server, Vec::new()).unwrap();
    table.settle(|_, _| true);
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Finished(client)));
    table.sleep(Duration::from_secs(10));
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Closed(client)));
    assert_eq!(table.hosts[1].poll_event(), Some(Event::Closed(server)));
    assert_eq!(table.hosts.each_ref().map(Endpoint::peers), [0, 0]);
    assert_eq!(table.hosts.each_ref().map(Endpoint::poll_timeout), [None, None]);
    let gone = table.hosts[0].room(client).unwrap_err();
    assert_eq!(gone.to_string(), "the peer is gone: the connection was closed, or lost");
}

/// Two ends that connect to each other at once have one connection, whichever of their first datagrams are
/// lost.
#[test]
fn connecting_from_both_ends_gives_one_connection() {
    for lost in 0..1_u32 << 8 {
        let mut table = Table::new(&Settings::default());
        let peers = [0, 1].map(|host| table.hosts[host].connect(table.now, address(1 - host)).unwrap());
        let mut carried = 0;
        let mut passes = |_: usize, _: &[u8]| {
            carried += 1;
            carried > 8 || lost & 1 << (carried - 1) == 0
        };
        table.settle(&mut passes);
        table.sleep_while(Duration::from_secs(5), &mut passes);
        for host in [0, 1] {
            let event = table.hosts[host].poll_event();
            assert_eq!(event, Some(Event::Connected(peers[host], address(1 - host))), "{lost:b}");
            assert_eq!((table.hosts[host].poll_event(), table.hosts[host].peers()), (None, 1), "{lost:b}");
            table.send(host, peers[host], b"both ways");
        }
        table.settle(|_, _| true);
        assert_eq!([0, 1].map(|host| table.received(host)), [0, 1].map(|_| Some(b"both ways".to_vec())));
    }
}

/// Ends that accept no peers are connected if both asked for it.
#[test]
fn connecting_from_both_ends_needs_no_acceptance() {
    let mut table = Table::new(&Settings { accept: false, ..Settings::default() });
    let peers = [0, 1].map(|host| table.hosts[host].connect(table.now, address(1 - host)).unwrap());
    table.settle(|_, _| true);
    table.sleep(Duration::from_secs(1));
    for host in [0, 1] {
        assert_eq!(table.hosts[host].poll_event(), Some(Event::Connected(peers[host], address(1 - host))));
    }
}

/// An end that answered, and then receives nothing, reports the loss to its caller.
#[test]
fn a_connection_from_both_ends_that_breaks_is_lost() {
    let mut table = Table::new(&Settings::default());
    let peers = [0, 1].map(|host| table.hosts[host].connect(table.now, address(1 - host)).unwrap());
    let is_accept =
        |datagram: &[u8]| matches!(wire::Datagram::parse(datagram), Ok(wire::Datagram::Accept(_)));
    table.settle(|_, datagram| !is_accept(datagram));
    table.sleep_while(Duration::from_secs(100), |_, datagram| !is_accept(datagram));
    for host in [0, 1] {
        let event = table.hosts[host].poll_event();
        assert!(matches!(event, Some(Event::Lost(peer, _)) if peer == peers[host]), "{event:?}");
        assert_eq!(table.hosts[host].peers(), 0);
    }
}

/// Finishes both directions; nothing may be unread.
fn finish(table: &mut Table, peers: [Peer; 2]) {
    for (host, peer) in peers.into_iter().enumerate() {
        table.hosts[host].finish(peer, Vec::new()).unwrap();
    }
    table.settle(|_, _| true);
    table.sleep(Duration::from_millis(10));
    for (host, peer) in peers.into_iter().enumerate() {
        let events = std::iter::from_fn(|| table.hosts[host].poll_event());
        assert!(events.eq([Event::Finished(peer), Event::Closed(peer)]));
        assert_eq!(table.hosts[host].peers(), 1, "it still answers");
    }
}

#[test]
fn forged_echoes_do_not_hold_a_place_for_minutes() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    for round in 0..20 {
        // Not so much longer than the one before that this end could not have run meanwhile.
        table.forged_round_trip =
            Some((Duration::from_millis(250) * 2_u32.pow(round)).min(Duration::from_secs(59)));
        table.send(1, server, b"measure this");
        table.settle(|_, _| true);
        table.sleep(Duration::from_millis(1));
        assert!(table.received(0).is_some());
    }
    let round_trip = table.hosts[1].statistics(server).unwrap().unwrap().round_trip;
    assert!(round_trip > Duration::from_secs(20), "{round_trip:?}");
    finish(&mut table, [client, server]);
    table.sleep(Settings::default().dead_after);
    assert_eq!(table.hosts[1].peers(), 0);
}

#[test]
fn a_connection_that_is_over_makes_room() {
    let (mut table, client, server) = Table::connected(&Settings { peers_max: 1, ..Settings::default() });
    let (now, to) = (table.now, address(1));
    assert_eq!(
        table.hosts[0].connect(now, to).unwrap_err().to_string(),
        "there are 1 peers, as many as the settings allow; raise peers_max"
    );
    finish(&mut table, [client, server]);
    let again = table.hosts[0].connect(table.now, to).expect("a place");
    table.settle(|_, _| true);
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Connected(again, to)));
    assert!(matches!(table.hosts[1].poll_event(), Some(Event::Accepted(..))));
    assert_eq!(table.hosts[1].counters().evicted, 0, "its end was reported");
}

#[test]
fn a_flood_leaves_places_for_answers_to_clients() {
    let mut table = Table::new(&Settings::default());
    let client = table.hosts[0].connect(table.now, address(1)).unwrap();
    let flood = |table: &mut Table| {
        for number in 0..5_000 {
            let mut hello = Vec::new();
            wire::Hello { versions: wire::Versions::HERE, client_id: number }.emit(&mut hello);
            table.hosts[1].handle_datagram(table.now, address(2), false, hello);
            let mut stray = vec![0; HEADER_BYTES];
            stray[0] = 1;
            table.hosts[1].handle_datagram(table.now, address(number as usize % 200 + 3), false, stray);
        }
    };
    // Its Hello and its Connect come right behind a flood each, and are answered at once.
    for _ in 0..2 {
        let datagram = whole(table.hosts[0].poll_transmit(table.now).expect("a Hello or Connect"));
        flood(&mut table);
        table.hosts[1].handle_datagram(table.now, address(0), false, datagram);
        let [client, server] = &mut table.hosts;
        while let Some(Transmit::Control { to, datagram }) = server.poll_transmit(table.now) {
            if to.remote == address(0) {
                client.handle_datagram(table.now, address(1), false, datagram.to_vec());
            }
        }
    }
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Connected(client, address(1))));
    assert!(table.hosts[1].counters().unknown >= 10_000);
}

#[test]
fn a_peer_that_was_started_again_is_told_of() {
    let (mut table, client, _) = Table::connected(&Settings::default());
    table.hosts[1] = Endpoint::new(Settings::default(), [3; 32]);
    table.send(0, client, b"are you there?");
    table.settle(|_, _| true);
    let restarted = "it no longer knows the connection, for example after a restart; connect again";
    assert_eq!(table.lost(0), Some((client, restarted.to_owned())));
    assert_eq!(table.hosts[0].acknowledged().as_deref().map(<[u8]>::len), Some(4 + 14));
}

#[test]
fn a_peer_that_is_not_heard_is_lost() {
    let (mut table, client, _) = Table::connected(&Settings::default());
    table.send(0, client, b"are you there?");
    let mut sent = 0;
    for _ in 0..10_000 {
        table.settle(|_, _| {
            sent += 1;
            false
        });
        let Some(due) = table.hosts[0].poll_timeout() else { break };
        table.now = due;
        table.hosts[0].handle_timeout(due);
    }
    let silent = "no more datagrams arrived from it; is it running, and is the network up?";
    assert_eq!(table.lost(0), Some((client, silent.to_owned())));
    assert!((10..100).contains(&sent), "{sent} datagrams into silence");
}

#[test]
fn a_connection_that_is_not_made_says_why() {
    let why = |answer: fn(u64) -> Option<Vec<u8>>| {
        let mut table = Table::new(&Settings::default());
        let peer = table.hosts[0].connect(table.now, address(1)).unwrap();
        let mut client_id = 0;
        table.settle(|_, datagram| {
            if let Ok(wire::Datagram::Hello(hello)) = wire::Datagram::parse(datagram) {
                client_id = hello.client_id;
            }
            false
        });
        if let Some(answer) = answer(client_id) {
            table.hosts[0].handle_datagram(table.now, address(1), false, answer);
        }
        table.sleep_while(Duration::from_secs(100), |_, _| false);
        let (lost, why) = table.lost(0).expect("no peer");
        assert_eq!(lost, peer);
        why
    };
    assert_eq!(why(|_| None), "no answer; is an endpoint bound there, and does a firewall let UDP pass?");
    let refused = why(|client_id| {
        let mut refused = Vec::new();
        wire::Refused { versions: wire::Versions { first: 2, last: 3 }, client_id }.emit(&mut refused);
        Some(refused)
    });
    assert_eq!(refused, "it speaks versions 2 to 3 of the protocol, and this end 1; update the older one");
}

#[test]
fn a_peer_that_breaks_the_protocol_is_told_of() {
    let packet = |message_bytes, number| {
        let chunk = framing::chunks(Kind::Plain, message_bytes, 0, 1472 - HEADER_BYTES).nth(number).unwrap();
        [chunk.header(), &vec![0; chunk.range.len()]].concat()
    };
    let violations = [
        (false, vec![0xff], "the payload ends in the header of a chunk"),
        (false, packet(2 << 20, 0), "a message is longer than was agreed on"),
        (false, packet(5_000, 1), "a piece of a message does not follow from the one before"),
        (true, packet(5_000, 0), "the last packet ends inside a message, or others follow it"),
    ];
    for (is_last, packet, violation) in violations {
        let (mut table, client, server) = Table::connected(&Settings::default());
        if is_last {
            table.hosts[0].finish(client, packet).unwrap();
        } else {
            table.hosts[0].queue(client, packet).unwrap();
        }
        table.settle(|_, _| true);
        assert_eq!(table.lost(1), Some((server, format!("it broke the protocol: {violation}"))));
        assert_eq!(table.lost(0), Some((client, "it ended the connection (code 3)".to_owned())));
    }
}

/// A peer that sends signs of life but acknowledges nothing keeps its packets only as long as no other peer
/// needs the memory.
#[test]
fn a_peer_that_acknowledges_nothing_gives_its_memory_to_others() {
    for is_wanted in [false, true] {
        let (mut table, client, server) = Table::connected(&Settings::default());
        table.send(1, server, &[7; 100_000]);
        table.send(0, client, b"here is one that is acknowledged");
        table.settle(|from, _| from == 0);
        // It goes on talking, of its own packets.
        for _ in 0..25 {
            table.send(0, client, b"here I am");
            table.sleep_while(Duration::from_millis(500), |from, datagram| {
                from == 0 && matches!(wire::Datagram::parse(datagram), Ok(wire::Datagram::Data(..)))
            });
            while table.received(1).is_some() {}
            if is_wanted {
                table.hosts[1].want_packets(table.now);
            }
        }
        let lost =
            std::iter::from_fn(|| table.hosts[1].poll_event()).find(|event| matches!(event, Event::Lost(..)));
        assert_eq!(lost, is_wanted.then_some(Event::Lost(server, LostReason::Stalled)));
        let unacknowledged = table.hosts[1].unacknowledged(server);
        assert_eq!(unacknowledged.is_err(), is_wanted, "{unacknowledged:?}");
    }
}

/// The same for a peer that acknowledges every packet but grants no credit, so that nothing is in flight.
#[test]
fn a_peer_that_grants_no_credit_gives_its_memory_to_others() {
    for is_wanted in [false, true] {
        let (mut table, _, server) = Table::connected(&Settings::default());
        // It reads nothing, so there is no credit behind its first window. Then a window more is queued.
        for _ in 0..2 {
            while table.hosts[1].room(server).unwrap() > 0 {
                table.send(1, server, b"nobody reads it");
            }
            table.settle(|_, _| true);
        }
        for _ in 0..25 {
            table.sleep(Duration::from_millis(500));
            if is_wanted {
                table.hosts[1].want_packets(table.now);
            } else {
                let statistics = table.hosts[1].statistics(server).unwrap().unwrap();
                assert!(statistics.in_flight == 0 && statistics.queued > 0, "{statistics:?}");
            }
        }
        let stalled = "it stopped in the middle of a message, or acknowledged nothing, while other peers needed the memory; give this endpoint more memory, or connect again";
        assert_eq!(table.lost(1), is_wanted.then(|| (server, stalled.to_owned())));
    }
}

/// No more peers are ended than needed: first the one that keeps most of the address that keeps most, then
/// the next.
#[test]
fn the_peer_that_keeps_most_is_ended_first() {
    let mut server: Host = Endpoint::new(Settings::default(), [1; 32]);
    let mut now = Time::from_ns(1_000_000);
    let peers = [(1, 100), (2, 60), (2, 70), (3, 90)].map(|(number, packets)| {
        let mut client: Host = Endpoint::new(Settings::default(), [packets; 32]);
        client.connect(now, address(0)).unwrap();
        for _ in 0..4 {
            while let Some(datagram) = client.poll_transmit(now).map(whole) {
                server.handle_datagram(now, address(number), false, datagram);
            }
            while let Some(datagram) = server.poll_transmit(now).map(whole) {
                client.handle_datagram(now, address(0), false, datagram);
            }
        }
        let Some(Event::Accepted(peer, _)) = server.poll_event() else { panic!("not accepted") };
        (peer, packets)
    });
    for (peer, packets) in peers {
        (0..packets).for_each(|_| server.queue(peer, vec![7; 100]).unwrap());
    }
    let mut ended = Vec::new();
    for _ in 0..200 {
        now = now + Duration::from_millis(100);
        server.want_packets(now);
        let before = ended.len();
        ended.extend(std::iter::from_fn(|| server.poll_event()));
        assert!(ended.len() <= before + 1, "{ended:?}");
    }
    let order = [2, 0, 3, 1].map(|number: usize| Event::Lost(peers[number].0, LostReason::Stalled));
    assert_eq!(ended, order);
}

#[test]
fn a_path_that_takes_only_short_datagrams_gets_short_ones() {
    let mut table = Table::new(&Settings::default());
    let client = table.hosts[0].connect(table.now, address(1)).unwrap();
    let mut accepts = Vec::new();
    // The answers do not get through as long as they are long: the server has a connection, and has to
    // shorten it.
    let mut passes = |from: usize, datagram: &[u8]| {
        if from == 1 && datagram.len() >= 1200 {
            accepts.push(datagram.to_vec());
        }
        from == 0 || datagram.len() <= 1200
    };
    table.settle(&mut passes);
    table.sleep_while(Duration::from_secs(3), &mut passes);
    assert_eq!(table.hosts[0].poll_event(), Some(Event::Connected(client, address(1))));
    let Some(Event::Accepted(server, _)) = table.hosts[1].poll_event() else { panic!("not accepted") };
    let payloads = [(0, client), (1, server)].map(|(host, peer)| table.hosts[host].payload_bytes_max(peer));
    assert_eq!(payloads, [Ok(1200 - HEADER_BYTES); 2]);
    assert_eq!(accepts.iter().map(Vec::len).collect::<Vec<_>>(), [1472, 1472, 1472, 1200]);
    for (host, peer) in [(0, client), (1, server)] {
        table.send(host, peer, &[9; 100_000]);
        table.settle(|_, _| true);
        assert_eq!(table.received(1 - host).map(|message| message.len()), Some(100_000));
    }
}

#[test]
fn an_answer_to_an_earlier_and_longer_connect_is_not_taken() {
    let mut table = Table::new(&Settings::default());
    table.hosts[0].connect(table.now, address(1)).unwrap();
    let mut late = Vec::new();
    let mut nothing_back = |from: usize, datagram: &[u8]| {
        if from == 1 && datagram.len() >= 1200 {
            late.push(datagram.to_vec());
        }
        from == 0 || datagram.len() < 1200
    };
    table.settle(&mut nothing_back);
    table.sleep_while(Duration::from_secs(3), &mut nothing_back);
    let (now, longest) = (table.now, late.first().unwrap().clone());
    assert_eq!(longest.len(), 1472);
    table.hosts[0].handle_datagram(now, address(1), false, longest);
    assert_eq!(table.hosts[0].poll_event(), None);
    let shortest = late.last().unwrap().clone();
    assert_eq!(shortest.len(), 1200);
    table.hosts[0].handle_datagram(now, address(1), false, shortest);
    assert!(matches!(table.hosts[0].poll_event(), Some(Event::Connected(..))));
}

#[test]
fn what_is_whole_is_read_although_the_peer_has_gone() {
    for has_finished in [false, true] {
        let (mut table, client, server) = Table::connected(&Settings::default());
        for number in 0..10 {
            table.send(0, client, &[number]);
        }
        table.hosts[0].finish(client, Vec::new()).unwrap();
        if has_finished {
            table.hosts[1].finish(server, Vec::new()).unwrap();
        }
        table.settle(|_, _| true);
        table.hosts[0].abort(client);
        table.settle(|_, _| true);
        assert_eq!(table.hosts[1].poll_event(), None, "there is something to read first");
        for number in 0..10 {
            assert_eq!(table.received(1), Some(vec![number]));
        }
        table.settle(|_, _| true);
        assert_eq!(table.hosts[1].poll_event(), Some(Event::Finished(server)));
        let end = match has_finished {
            true => Event::Closed(server),
            false => Event::Lost(server, LostReason::Aborted { code: 0 }),
        };
        assert_eq!((table.hosts[1].poll_event(), table.hosts[1].peers()), (Some(end), 0));
    }
}

#[test]
fn a_client_is_heard_of_although_its_first_word_is_lost() {
    let mut table = Table::new(&Settings::default());
    table.hosts[0].connect(table.now, address(1)).unwrap();
    let mut acks = 0;
    table.settle(|from, datagram| {
        let is_ack = from == 0 && matches!(wire::Datagram::parse(datagram), Ok(wire::Datagram::Ack(..)));
        acks += usize::from(is_ack);
        !is_ack
    });
    assert_eq!((acks, table.hosts[1].poll_event()), (1, None));
    table.sleep(Duration::from_secs(1));
    assert!(matches!(table.hosts[1].poll_event(), Some(Event::Accepted(..))));
}
