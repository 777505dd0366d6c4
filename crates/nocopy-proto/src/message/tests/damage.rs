//! Damage that no checksum finds, in sequence numbers and acknowledgements (docs/protocol.md §5.3).

use super::*;

const SEQUENCE: usize = 12;
const EXPECTED: usize = 16;

/// The datagram with this number in its header increased.
fn increased(datagram: &[u8], at: usize, by: u32) -> Vec<u8> {
    let mut damaged = datagram.to_vec();
    let number = u32::from_be_bytes(damaged[at..at + 4].try_into().unwrap());
    damaged[at..at + 4].copy_from_slice(&number.wrapping_add(by).to_be_bytes());
    damaged
}

/// Has the client send a message, and returns its datagram.
fn sent(table: &mut Table, client: Peer) -> Vec<u8> {
    table.send(0, client, b"message");
    whole(table.hosts[0].poll_transmit(table.now).expect("it may be sent"))
}

fn in_flight(table: &Table, client: Peer) -> usize {
    table.hosts[0].statistics(client).unwrap().expect("it is connected").in_flight
}

fn arrives(table: &mut Table, to: usize, datagram: Vec<u8>) {
    table.now = table.now + Duration::from_micros(2);
    table.hosts[to].handle_datagram(table.now, address(1 - to), false, datagram);
    table.settle(|_, _| true);
}

/// The client ends the connection after at least 10 s, and at most 30 s with the default settings.
#[track_caller]
fn assert_ends_in_time(table: &mut Table, client: Peer, server: Peer) {
    table.sleep(Duration::from_secs(9));
    assert_eq!((table.lost(0), table.lost(1)), (None, None));
    table.sleep(Duration::from_secs(21));
    let reason = LostReason::Violation(Violation::Acknowledgement).to_string();
    assert_eq!(table.lost(0), Some((client, reason)));
    assert_eq!(table.lost(1), Some((server, "it ended the connection (code 3)".to_owned())));
}

/// Contradicts what was acknowledged, after which all seems acknowledged.
fn assert_ends_whether_more_is_sent(contradict: impl Fn(&mut Table, Peer)) {
    for sends_more in [false, true] {
        let (mut table, client, server) = Table::connected(&Settings::default());
        contradict(&mut table, client);
        assert_eq!(in_flight(&table, client), 0);
        if sends_more {
            table.send(0, client, b"message");
        }
        table.settle(|_, _| true);
        assert_ends_in_time(&mut table, client, server);
    }
}

/// The receiver keeps a packet by a number that was not sent yet, and reports that number with each
/// acknowledgement.
#[test]
fn a_damaged_sequence_number_does_not_stop_the_sender() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    let packet = sent(&mut table, client);
    arrives(&mut table, 1, increased(&packet, SEQUENCE, 30));
    arrives(&mut table, 1, packet);
    assert_eq!(in_flight(&table, client), 0);
    assert!(table.hosts[0].counters().impossible_acks > 0);
    for _ in 0..40 {
        let packet = sent(&mut table, client);
        arrives(&mut table, 1, packet);
    }
    assert_eq!(in_flight(&table, client), 0);
    assert_eq!(std::iter::from_fn(|| table.received(1)).count(), 41);
    table.settle(|_, _| true);
    finish(&mut table, [client, server]);
}

/// The receiver expects a packet after the last one that was sent.
#[test]
fn lasting_acknowledgements_of_unsent_packets_end_it() {
    let (mut table, client, server) = Table::connected(&Settings::default());
    let packet = sent(&mut table, client);
    table.hosts[1].handle_datagram(table.now, address(0), false, packet.clone());
    arrives(&mut table, 1, increased(&packet, SEQUENCE, 1));
    assert_ends_in_time(&mut table, client, server);
}

/// The sender no longer has a packet that the receiver waits for: a damaged acknowledgement was of packets
/// that had not arrived.
#[test]
fn lasting_acknowledgements_below_earlier_ones_end_it() {
    assert_ends_whether_more_is_sent(|table, client| {
        let packet = sent(table, client);
        table.hosts[1].handle_datagram(table.now, address(0), false, packet);
        sent(table, client); // is lost
        table.now = table.now + Duration::from_millis(1);
        table.hosts[1].handle_timeout(table.now);
        let ack = whole(table.hosts[1].poll_transmit(table.now).expect("it is due"));
        arrives(table, 0, increased(&ack, EXPECTED, 1));
    });
}

/// The sender no longer has a packet that the receiver waits for: a damaged range was of a packet that had
/// not arrived.
#[test]
fn ranges_that_later_ones_contradict_end_it() {
    assert_ends_whether_more_is_sent(|table, client| {
        let packet = sent(table, client);
        sent(table, client); // is lost
        let third = sent(table, client);
        table.hosts[1].handle_datagram(table.now, address(0), false, third);
        let ack = whole(table.hosts[1].poll_transmit(table.now).expect("it reports a gap"));
        // Both packets behind the first one.
        let range = [0, 1, 0, 2];
        assert_eq!(ack[HEADER_BYTES..], [0, 2, 0, 1]);
        arrives(table, 0, [&ack[..HEADER_BYTES], &range].concat());
        arrives(table, 1, packet);
    });
}

/// An old acknowledgement that arrives again and again, long after newer ones, is only old.
#[test]
fn repeated_old_acknowledgements_end_nothing() {
    let (mut table, client, _) = Table::connected(&Settings::default());
    let mut first_ack = None;
    for _ in 0..2 {
        table.send(0, client, b"message");
        table.settle(|_, _| true);
        table.sleep_while(Duration::from_millis(5), |from, datagram| {
            if from == 1 {
                first_ack.get_or_insert(datagram.to_vec());
            }
            true
        });
    }
    let first_ack = first_ack.expect("it was sent");
    for _ in 0..100 {
        arrives(&mut table, 0, first_ack.clone());
        table.sleep(Duration::from_secs(1));
    }
    assert_eq!((table.lost(0), table.lost(1)), (None, None));
}
