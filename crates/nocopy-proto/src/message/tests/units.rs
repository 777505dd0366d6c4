//! Units between two endpoints without a network: the tests hand over each unit that a stream would carry.

use proptest::prelude::*;

use super::*;
use crate::message::framing::Laid;
use crate::message::wire::{Attach, Connect, Datagram, Flags, Header, HeaderKind, Unit};

/// The settings of endpoints with streams in these tests.
fn settings() -> Settings {
    Settings { streams: true, ..Settings::default() }
}

/// A unit of one plain message, the number of packets it would be, and its bytes.
fn unit(bytes: usize, payload_bytes_max: usize) -> (Vec<u8>, u32, u32) {
    let mut header = [0; framing::CHUNK_HEADER_BYTES_MAX];
    let header_bytes = framing::put_whole_header(Kind::Plain, bytes, &mut header);
    let mut laid = Laid::default();
    laid.add(Kind::Plain, bytes, payload_bytes_max);
    let unit = [&header[..header_bytes], &vec![7; bytes]].concat();
    (unit, laid.packets() as u32, (header_bytes + bytes) as u32)
}

/// The same Connect with another datagram length.
fn shorter(connect: &[u8], datagram_bytes: u16) -> Vec<u8> {
    let Ok(Datagram::Connect(connect)) = Datagram::parse(connect) else { panic!("not a Connect") };
    let parameters = wire::Parameters { datagram_bytes, ..connect.parameters };
    let mut datagram = Vec::new();
    Connect { parameters, ..connect }.emit(&mut datagram);
    datagram
}

/// Both ends have connected, and one has answered: which one, the Connect that it answered, and its answer,
/// which was lost.
fn answered(settings: &Settings) -> (Table, Peer, usize, Vec<u8>, wire::Accept) {
    let mut table = Table::new(settings);
    let peers = [0, 1].map(|host| table.hosts[host].connect(table.now, address(1 - host)).unwrap());
    let (mut connects, mut answer) = ([None, None], None);
    table.settle(|from, datagram| match Datagram::parse(datagram) {
        Ok(Datagram::Connect(_)) => {
            connects[from] = Some(datagram.to_vec());
            true
        }
        Ok(Datagram::Accept(accept)) => {
            answer = Some((from, accept));
            false
        }
        _ => true,
    });
    let (server, accept) = answer.expect("one of them answers");
    let connect = connects[1 - server].take().expect("it was answered");
    (table, peers[server], server, connect, accept)
}

/// Two ends with a stream between them.
fn with_stream(settings: &Settings) -> (Table, [Peer; 2]) {
    let (mut table, client, server) = Table::connected(settings);
    for (host, peer) in [(0, client), (1, server)] {
        table.hosts[host].stream_opened(table.now, peer).unwrap();
    }
    (table, [client, server])
}

/// Queues a unit of one message.
fn send(table: &mut Table, from: usize, to: Peer, bytes: usize) {
    let (unit, span, unit_bytes) = unit(bytes, table.hosts[from].payload_bytes_max(to).unwrap());
    table.hosts[from].queue_unit(to, unit, span, unit_bytes).unwrap();
}

/// The event that a peer is lost, if there is one.
fn lost(host: &mut Host) -> Option<Event> {
    std::iter::from_fn(|| host.poll_event()).find(|event| matches!(event, Event::Lost(..)))
}

/// A unit's header, and how an endpoint judges it; `behind`: how far after the next number it begins.
fn arrives(host: &Host, peer: Peer, behind: u32, bytes: u32, span: u32) -> (Unit, Arriving) {
    let sequence = host.expected_of(peer).unwrap().wrapping_add(behind);
    let (kind, flags) = (HeaderKind::Data, Flags::NONE);
    let header = Header { kind, flags, marked: 0, to: 0, sequence, expected: 0, credit: 0, sent: 0, echo: 0 };
    let unit = Unit { header, bytes, span };
    (unit, host.arriving(peer, &unit))
}

#[test]
fn a_unit_wider_than_the_window_of_the_peer_is_refused() {
    let mut table = Table::new(&settings());
    table.hosts[1] = Endpoint::new(Settings { window_packets: 4, ..settings() }, [2; 32]);
    let peer = table.hosts[0].connect(table.now, address(1)).unwrap();
    table.settle(|_, _| true);
    let host = &mut table.hosts[0];
    let Outlook { window, room, .. } = host.outlook(peer).unwrap();
    assert!(window == 4 && room > 5);
    assert!(matches!(host.queue_unit(peer, Vec::new(), 5, 6_000), Err((_, QueueError::Full))));
    host.queue_unit(peer, Vec::new(), 4, 5_000).unwrap();
}

/// The memory for numbers depends on the bytes that arrive, and these on what the end accepts.
#[test]
fn a_unit_of_other_bytes_than_its_numbers_say_cannot_be() {
    let settings = Settings { max_message_bytes: 300_000, window_packets: 1_024, ..settings() };
    let (mut table, [_, peer]) = with_stream(&settings);
    for (bytes, span, is_possible) in [
        (4, 1, true),
        (4, 1_000, false),
        (1_440 * 499, 1_000, false),
        (0, 2, false),
        (3_000, 1, false),
        (300_008, 210, true),
        (300_009, 210, false),
    ] {
        let (_, arriving) = arrives(&table.hosts[1], peer, 0, bytes, span);
        assert_eq!(arriving != Arriving::Impossible, is_possible, "{bytes} bytes, {span} numbers");
    }
    let (unit, _) = arrives(&table.hosts[1], peer, 1, 4, 1_000);
    let mut bytes = [0; HEADER_BYTES];
    unit.emit(&mut bytes);
    table.hosts[1].handle_unit(table.now, peer, [&bytes[..], &[0; 4]].concat());
    let violation = LostReason::Violation(Violation::OutOfPlace);
    assert_eq!(lost(&mut table.hosts[1]), Some(Event::Lost(peer, violation)));
}

proptest! {
    /// Whatever messages are put into a unit, it is valid.
    #[test]
    fn any_unit_of_messages_may_come(messages in prop::collection::vec(0usize..4_400, 1..40)) {
        let settings = Settings { window_packets: 1_024, ..settings() };
        let (table, [_, peer]) = with_stream(&settings);
        let payload_bytes_max = table.hosts[1].payload_bytes_max(peer).unwrap();
        let (mut laid, mut unit_bytes) = (Laid::default(), 0);
        for bytes in messages {
            laid.add(Kind::Plain, bytes, payload_bytes_max);
            unit_bytes += 4 + bytes as u32;
            let (_, arriving) = arrives(&table.hosts[1], peer, 0, unit_bytes, laid.packets() as u32);
            prop_assert_eq!(arriving, Arriving::Next);
        }
    }
}

#[test]
fn a_unit_goes_at_once_where_nothing_else_does() {
    let (mut table, [client, _]) = with_stream(&settings());
    let (now, host) = (table.now, &mut table.hosts[0]);
    let mut sent = Vec::new();
    for number in 1..=3 {
        let at_once = host.send_unit_at_once(now, client, (vec![number], 1, 1), |unit, _| sent.push(unit[0]));
        assert_eq!(at_once, Ok(()));
        host.rest_after(now, client);
    }
    assert!(sent == [1, 2, 3] && host.poll_transmit(now).is_none() && host.counters().units_sent == 3);
    host.queue(client, vec![0; 8]).unwrap();
    let overtake = |_: &mut _, _: &_| unreachable!("it would overtake");
    assert_eq!(host.send_unit_at_once(now, client, (vec![4], 1, 1), overtake), Err(vec![4]));
}

proptest! {
    /// A unit that is read in place has the same effect as one that is kept and then read.
    #[test]
    fn a_unit_read_in_place_does_the_same(
        steps in prop::collection::vec((0..2_usize, 0..20_000_usize, 0..3_000_u64, 1..4_usize, any::<bool>()), 1..40)
    ) {
        let mut twins = [(); 2].map(|()| with_stream(&settings()));
        twins[0].0.hosts.iter_mut().for_each(Endpoint::go_the_general_way);
        for (from, bytes, sleep_us, units, reads) in steps {
            let to = 1 - from;
            let [sent, same] = twins.each_mut().map(|(table, peers)| {
                for _ in 0..units {
                    let (now, host, peer) = (table.now, &mut table.hosts[from], peers[from]);
                    let (unit, span, unit_bytes) = unit(bytes, host.payload_bytes_max(peer).unwrap());
                    let mut at_once = None;
                    let rejected = host.send_unit_at_once(now, peer, (unit, span, unit_bytes), |unit, header| {
                        at_once = Some([&header[..], unit].concat());
                    });
                    match rejected {
                        Ok(()) => host.rest_after(now, peer),
                        Err(unit) => drop(host.queue_unit(peer, unit, span, unit_bytes)), // no room: for neither
                    }
                    table.units.extend(at_once.map(|unit| (from, unit)));
                    table.settle(|_, _| true);
                }
                std::mem::take(&mut table.units)
            });
            prop_assert!(sent == same, "they sent different units");
            let [(general, peers), (in_place, _)] = &mut twins;
            let (now, peer, general, in_place) = (general.now, peers[to], &mut general.hosts[to], &mut in_place.hosts[to]);
            let mut was_lone = general.next_message().is_none();
            for (_, unit) in sent {
                general.handle_unit(now, peer, unit.clone());
                let read = if reads { in_place.receive_unit_in_place(now, peer, &unit) } else { None };
                prop_assert_eq!(read.is_some(), reads && was_lone);
                match read {
                    Some((kind, range)) => {
                        let message = general.receive().expect("the other one has it");
                        prop_assert_eq!((message.kind(), message.as_slice()), (kind, Some(&unit[range])));
                        drop(message);
                        in_place.released.push(unit); // never given
                    }
                    None => {
                        in_place.handle_unit(now, peer, unit);
                        was_lone = false;
                    }
                }
            }
            if reads {
                while let Some(message) = general.receive() {
                    let same = in_place.receive().expect("the other one has it");
                    prop_assert_eq!(message.as_slice(), same.as_slice());
                }
            }
            for (table, _) in &mut twins {
                table.settle(|_, _| true);
                table.sleep(Duration::from_micros(sleep_us));
                table.settle(|_, _| true);
            }
            let [(general, peers), (in_place, _)] = &mut twins;
            for host in [0, 1] {
                let (one, other) = (&mut general.hosts[host], &mut in_place.hosts[host]);
                prop_assert_eq!(one.counters(), other.counters());
                prop_assert_eq!(one.statistics(peers[host]), other.statistics(peers[host]));
                prop_assert_eq!(one.poll_timeout(), other.poll_timeout());
                prop_assert_eq!(one.poll_event(), other.poll_event());
                let released = [one, other].map(|host| std::iter::from_fn(|| host.released()).collect::<Vec<_>>());
                prop_assert!(released[0] == released[1], "they gave different units back");
            }
        }
    }
}

/// A peer that keeps units after a gap, and sends more of them, is ended when others lack memory for theirs.
#[test]
fn units_behind_a_gap_do_not_keep_memory_from_others() {
    for is_short in [false, true] {
        let (mut table, [client, peer]) = with_stream(&settings());
        for _ in 0..12 {
            send(&mut table, 0, client, 100);
        }
        table.settle(|_, _| true);
        for (_, unit) in table.units.split_off(1) {
            table.sleep(Duration::from_millis(500));
            table.hosts[1].handle_unit(table.now, peer, unit);
            if is_short {
                table.hosts[1].refuse_unit(table.now);
            }
        }
        assert_eq!(lost(&mut table.hosts[1]), is_short.then_some(Event::Lost(peer, LostReason::Stalled)));
    }
}

/// A long unit is waited for while parts of it arrive, if it is next in order.
#[test]
fn a_unit_that_comes_slowly_is_progress_if_it_is_next() {
    for behind in [0, 1] {
        let (mut table, [client, peer]) = with_stream(&settings());
        send(&mut table, 0, client, 10_000);
        send(&mut table, 0, client, 10);
        table.settle(|_, _| true);
        let (_, last) = table.units.pop().expect("it was sent");
        table.hosts[1].handle_unit(table.now, peer, last);
        let (unit, _) = arrives(&table.hosts[1], peer, behind, 1_000, 1);
        for _ in 0..12 {
            table.sleep(Duration::from_millis(500));
            table.hosts[1].unit_goes_on(peer, &unit);
            table.hosts[1].refuse_unit(table.now);
        }
        assert_eq!(lost(&mut table.hosts[1]), (behind > 0).then_some(Event::Lost(peer, LostReason::Stalled)));
    }
}

/// A peer whose next unit has come and waits for memory here is not ended, although what it sent behind that
/// unit is kept.
#[test]
fn a_unit_that_waits_for_memory_is_no_stall() {
    for waits in [false, true] {
        let (mut table, [client, peer]) = with_stream(&settings());
        send(&mut table, 0, client, 10_000);
        table.send(0, client, b"behind it");
        table.settle(|_, _| true);
        for _ in 0..12 {
            table.sleep(Duration::from_millis(500));
            if waits {
                assert!(!table.hosts[1].unit_waits(peer, false));
            }
            table.hosts[1].refuse_unit(table.now);
        }
        let lost = lost(&mut table.hosts[1]);
        assert_eq!(lost, (!waits).then_some(Event::Lost(peer, LostReason::Stalled)));
        if waits {
            let (_, unit) = table.units.pop().expect("it was sent");
            assert!(table.hosts[1].unit_waits(peer, true));
            table.hosts[1].unit_begins(peer);
            table.hosts[1].handle_unit(table.now, peer, unit);
            assert!(table.received(1).is_some() && table.received(1).is_some());
        }
    }
}

/// An acknowledgement is sent by a datagram, although a unit sent at the same time carries it, too, if
/// something precedes the unit in its stream. If nothing does, the unit suffices, and a probe asks for
/// another one where it is delayed nevertheless.
#[test]
fn an_acknowledgement_does_not_wait_in_a_stream() {
    for (is_behind, arrives) in [(true, false), (false, true), (false, false)] {
        let (mut table, [client, server]) = with_stream(&settings());
        if is_behind {
            send(&mut table, 1, server, 10_000);
            table.settle(|_, _| true);
        }
        table.send(0, client, b"to be acknowledged");
        table.settle(|_, _| true);
        send(&mut table, 1, server, 10_000);
        table.settle(|_, _| true);
        let units = 1 + usize::from(is_behind);
        assert_eq!((table.units.len(), table.hosts[0].unacknowledged(client)), (units, Ok(1)));
        if arrives {
            let (_, unit) = table.units.pop().expect("it was sent");
            table.hosts[0].handle_unit(table.now, client, unit);
        }
        let acks = table.hosts[1].counters().acks_sent;
        (0..if is_behind { 2 } else { 900 }).for_each(|_| table.sleep(Duration::from_millis(1)));
        let probes = u64::from(!is_behind && !arrives);
        let figures = (table.hosts[0].unacknowledged(client), table.hosts[0].counters().probes);
        assert_eq!(figures, (Ok(0), probes), "behind another {is_behind}, arrives {arrives}");
        assert_eq!(table.hosts[1].counters().acks_sent == acks, arrives);
    }
}

/// An end that is answered by units only hears its peer nevertheless.
#[test]
fn answers_by_a_stream_alone_are_no_silence() {
    let second = Duration::from_secs(1);
    let settings = Settings { keep_alive: second, dead_after: second, ..settings() };
    let (mut table, [client, server]) = with_stream(&settings);
    for round in 0..5_000 {
        for (from, to) in [(0, client), (1, server)] {
            send(&mut table, from, to, 10_000);
            table.settle(|_, _| true);
            let (_, unit) = table.units.pop().expect("it was sent");
            let other = 1 - from;
            table.hosts[other].handle_unit(table.now, [client, server][other], unit);
            while table.received(other).is_some() {}
        }
        table.sleep(Duration::from_millis(1));
        assert!(table.hosts.iter().all(|host| host.counters().probes == 0), "round {round}");
    }
    let acks = table.hosts[1].counters().acks_sent;
    assert!((40..60).contains(&acks), "{acks} in 5 s");
    assert!(table.hosts.each_mut().map(lost).iter().all(Option::is_none));
}

#[test]
fn a_late_unit_says_nothing_of_the_round_trip() {
    let (mut table, [client, server]) = with_stream(&settings());
    table.send(0, client, b"to be acknowledged");
    table.settle(|_, _| true);
    send(&mut table, 1, server, 10_000);
    table.settle(|_, _| true);
    let round_trip = |host: &Host| host.statistics(client).unwrap().unwrap().round_trip;
    let before = round_trip(&table.hosts[0]);
    let (_, unit) = table.units.pop().expect("it was sent");
    table.hosts[0].handle_unit(table.now + Duration::from_secs(2), client, unit);
    assert_eq!((round_trip(&table.hosts[0]), table.hosts[0].unacknowledged(client)), (before, Ok(0)));
}

#[test]
fn units_are_not_kept_in_the_memory_for_packets() {
    for has_packet in [false, true] {
        let (mut table, [_, server]) = with_stream(&settings());
        send(&mut table, 1, server, 10_000);
        if has_packet {
            table.send(1, server, b"behind it");
        }
        for _ in 0..25 {
            let is_data = |datagram: &[u8]| matches!(Datagram::parse(datagram), Ok(Datagram::Data(..)));
            table.sleep_while(Duration::from_millis(500), |from, datagram| from == 0 || !is_data(datagram));
            table.hosts[1].want_packets(table.now);
        }
        assert_eq!(lost(&mut table.hosts[1]), has_packet.then_some(Event::Lost(server, LostReason::Stalled)));
    }
}

#[test]
fn units_are_no_sign_of_life() {
    let settings = settings();
    let (mut table, [client, server]) = with_stream(&settings);
    for _ in 0..200 {
        send(&mut table, 0, client, 10);
    }
    table.settle(|_, _| true);
    let (step, mut lost_after) = (settings.keep_alive / 2, None);
    for (number, (_, unit)) in (1..).zip(std::mem::take(&mut table.units)) {
        table.sleep_while(step, |_, _| false);
        if table.hosts[1].has_peer(server) {
            table.hosts[1].handle_unit(table.now, server, unit);
            continue;
        }
        lost_after = Some(step * number);
        break;
    }
    let lost_after = lost_after.expect("it is lost");
    assert!(lost_after <= settings.dead_after + step, "{lost_after:?}");
}

/// A later Connect does not change what both ends agreed on for a stream.
#[test]
fn an_attached_stream_keeps_the_length_of_packets() {
    let (mut table, peer, server, connect, accept) = answered(&settings());
    let client = 1 - server;
    let (host, now) = (&mut table.hosts[server], table.now);
    let payload_bytes_max = host.payload_bytes_max(peer).unwrap();
    let (bytes, span, unit_bytes) = unit(4_000, payload_bytes_max);
    let refused = host.queue_unit(peer, bytes.clone(), span, unit_bytes).unwrap_err().1;
    assert!(matches!(refused, QueueError::Full), "nothing was heard of the peer");
    assert_eq!(host.want_stream(peer).unwrap(), None, "nor does it know the key");
    let key = accept.parameters.stream_key.expect("it takes streams");
    let attach = Attach { to: accept.server_id, from: accept.client_id, key };
    let (attached, _) = host.attach(address(client).ip(), &attach).expect("it is right");
    assert_eq!(attached, peer);
    assert_eq!(host.poll_event(), Some(Event::Connected(peer, address(client))));
    host.stream_opened(now, peer).unwrap();
    host.queue_unit(peer, bytes, span, unit_bytes).unwrap();
    host.handle_datagram(now, address(client), false, shorter(&connect, 512));
    assert_eq!(host.payload_bytes_max(peer), Ok(payload_bytes_max));
}

/// Has a stream opened at the first end, by which everything that waits is sent.
fn open_stream(table: &mut Table, peer: Peer) {
    table.hosts[0].stream_opened(table.now, peer).unwrap();
    table.settle(|_, _| true);
}

#[test]
fn units_are_sent_again_by_the_next_stream() {
    let (mut table, [client, _]) = with_stream(&settings());
    for bytes in [4_000, 5_000] {
        send(&mut table, 0, client, bytes);
    }
    table.settle(|_, _| true);
    let first = std::mem::take(&mut table.units);
    table.hosts[0].stream_cut(table.now, client);
    assert!(table.hosts[0].has_units(client) && !table.hosts[0].has_stream(client));
    send(&mut table, 0, client, 6_000);
    table.settle(|_, _| true);
    assert!(table.units.is_empty(), "there is no stream");
    open_stream(&mut table, client);
    let messages = |(_, unit): &(usize, Vec<u8>)| unit[HEADER_BYTES..].to_vec();
    assert!(table.units[..2].iter().map(messages).eq(first.iter().map(messages)) && table.units.len() == 3);
    let Counters { units_sent, units_sent_again, .. } = table.hosts[0].counters();
    assert_eq!((units_sent, units_sent_again), (3, 2));
}

/// The peer answers by datagrams, but no stream can be opened any more.
#[test]
fn a_connection_whose_units_get_no_stream_is_lost() {
    let (mut table, [client, _]) = with_stream(&settings());
    send(&mut table, 0, client, 4_000);
    table.settle(|_, _| true);
    table.hosts[0].stream_cut(table.now, client);
    table.sleep_while(Duration::from_secs(29), |_, _| true);
    assert!(table.hosts[0].has_peer(client), "it waits");
    table.sleep_while(Duration::from_secs(2), |_, _| true);
    assert_eq!(lost(&mut table.hosts[0]), Some(Event::Lost(client, LostReason::Silent)));
}

#[test]
fn streams_that_are_cut_before_a_unit_is_acknowledged_end_a_connection() {
    let (mut table, [client, server]) = with_stream(&settings());
    send(&mut table, 0, client, 4_000);
    for number in 1..=8 {
        open_stream(&mut table, client);
        if number == 4 {
            let (_, unit) = table.units.pop().expect("it was sent again");
            table.hosts[1].handle_unit(table.now, server, unit);
            table.sleep_while(Duration::from_millis(50), |_, _| true);
            send(&mut table, 0, client, 5_000);
        }
        table.hosts[0].stream_cut(table.now, client);
        table.sleep_while(Duration::from_millis(10), |_, _| true);
        assert!(table.hosts[0].has_peer(client), "{number} streams");
    }
    open_stream(&mut table, client);
    table.hosts[0].stream_cut(table.now, client);
    table.sleep_while(Duration::from_millis(10), |_, _| true);
    assert_eq!(lost(&mut table.hosts[0]), Some(Event::Lost(client, LostReason::Silent)));
}

/// Not even with the key that it gave: the client opens the streams.
#[test]
fn a_client_attaches_no_stream() {
    let (mut table, _, server, connect, accept) = answered(&settings());
    let Ok(Datagram::Connect(wire::Connect { client_id: to, parameters, .. })) = Datagram::parse(&connect)
    else {
        panic!("it is a Connect");
    };
    let (client, now, mut datagram) = (1 - server, table.now, Vec::new());
    accept.emit(&mut datagram);
    table.hosts[client].handle_datagram(now, address(server), false, datagram);
    let key = parameters.stream_key.expect("it takes part in streams");
    let attach = Attach { to, from: accept.server_id, key };
    assert_eq!(table.hosts[client].attach(address(server).ip(), &attach), None);
}

/// The same for packets that were queued for a peer from which nothing has arrived.
#[test]
fn queued_packets_keep_the_length_of_packets() {
    let (mut table, peer, server, connect, _) = answered(&Settings::default());
    let (from, now) = (address(1 - server), table.now);
    let before = table.hosts[server].payload_bytes_max(peer).unwrap();
    table.hosts[server].handle_datagram(now, from, false, shorter(&connect, 1_000));
    let shortened = table.hosts[server].payload_bytes_max(peer).unwrap();
    assert!(shortened < before, "nothing is queued");
    table.send(server, peer, b"laid out for that");
    table.hosts[server].handle_datagram(now, from, false, shorter(&connect, 512));
    assert_eq!(table.hosts[server].payload_bytes_max(peer).unwrap(), shortened);
}

/// A unit of one message as it is handed over when its bytes went elsewhere, for so many numbers.
fn front(host: &Host, peer: Peer, behind: u32, bytes: u32, span: u32) -> Vec<u8> {
    let (unit, _) = arrives(host, peer, behind, bytes + 4, span);
    let mut front = vec![0; HEADER_BYTES + 4];
    unit.emit(front.first_chunk_mut().unwrap());
    front[HEADER_BYTES..].copy_from_slice(&bytes.to_be_bytes());
    front
}

/// Proves that messages whose bytes were placed elsewhere keep their order among others, and that they are
/// what is taken.
#[test]
fn placed_messages_keep_their_order() {
    let (mut table, [client, peer]) = with_stream(&settings());
    let span = unit(10_000, table.hosts[1].payload_bytes_max(peer).unwrap()).1;
    let last = front(&table.hosts[1], peer, span + 1, 10_000, span);
    table.hosts[1].handle_placed_unit(table.now, peer, last.clone());
    assert!(!table.hosts[1].has_message(), "it is behind a gap");
    let first = front(&table.hosts[1], peer, 0, 10_000, span);
    table.hosts[1].handle_placed_unit(table.now, peer, first.clone());
    send(&mut table, 0, client, 10); // its number is the first one's
    table.settle(|_, _| true);
    let (_, mut middle) = table.units.pop().expect("it was sent");
    let (header, _) = arrives(&table.hosts[1], peer, 0, middle.len() as u32 - HEADER_BYTES as u32, 1);
    header.emit(middle.first_chunk_mut().unwrap());
    table.hosts[1].handle_unit(table.now, peer, middle);
    for expected in [Some(&first), None, Some(&last)] {
        let next = table.hosts[1].peek().expect("all are in order");
        assert_eq!(next.is_placed(), expected.is_some());
        assert_eq!(next.bytes(), if expected.is_some() { 10_000 } else { 10 });
        let mut pieces = Vec::new();
        table.hosts[1].receive_next(next).take(|piece| pieces.push(piece));
        match (&pieces[..], expected) {
            ([Piece::Datagram(front, _)], Some(expected)) => assert_eq!(front, expected),
            ([piece], None) => assert_eq!(piece.as_ref(), [7; 10]),
            _ => panic!("{pieces:?}"),
        }
    }
    assert_eq!((table.hosts[1].counters().messages_received, lost(&mut table.hosts[1])), (3, None));
}

/// Proves that what is placed is checked as other units are.
#[test]
fn placed_messages_that_cannot_be_end_the_connection() {
    for (bytes, span, violation) in [
        (10_000, 6, Violation::OutOfPlace),
        (10_000, 8, Violation::OutOfPlace),
        (70_000, 49, Violation::TooLong),
    ] {
        let settings = Settings { max_message_bytes: 60_000, ..settings() };
        let (mut table, [_, peer]) = with_stream(&settings);
        let front = front(&table.hosts[1], peer, 0, bytes, span);
        table.hosts[1].handle_placed_unit(table.now, peer, front);
        let expected = Event::Lost(peer, LostReason::Violation(violation));
        assert_eq!(lost(&mut table.hosts[1]), Some(expected), "{bytes} bytes, {span} numbers");
    }
    let (mut table, [_, peer]) = with_stream(&settings());
    let whole = front(&table.hosts[1], peer, 0, 0, 1);
    for malformed in [&whole[..], &whole[..HEADER_BYTES + 3], &[11; 4]] {
        table.hosts[1].handle_placed_unit(table.now, peer, malformed.to_vec());
    }
    assert_eq!((table.hosts[1].counters().malformed, lost(&mut table.hosts[1])), (3, None));
}
