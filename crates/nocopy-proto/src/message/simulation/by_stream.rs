//! Simulations of messages that go by a stream and by datagrams.

use std::time::Duration;

use super::tests::{assert_settles, disturbances, on, pair};
use super::*;
use crate::message::wire::Attach;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn streams(from_bytes: usize) -> StreamSettings {
    StreamSettings {
        from_bytes,
        memory_units: 16,
        cut_after: None,
        stall: Duration::ZERO,
        opens_at_once: true,
    }
}

/// Sends much in both directions, longer messages by streams with these settings; returns the units sent, and
/// those that were sent again.
fn both_ways(seed: u64, link: &LinkSettings, streams: [Option<StreamSettings>; 2]) -> (u64, u64) {
    let [to_client, to_server] = streams;
    let client = HostSettings { streams: to_client, ..on(link.clone()) };
    let says = Some(Traffic::of(200, Sizes::UpTo(6_000)));
    let server = HostSettings { says, streams: to_server, ..on(link.clone()) };
    let (mut world, client, server) = pair(seed, client, server);
    world.connect(client, server, Some(Traffic::of(300, Sizes::UpTo(9_000))));
    assert_settles(&mut world, 300 * SECOND, &[client, server]);
    let counters = [client, server].map(|host| world.endpoint(host).counters());
    let again = counters.iter().map(|counters| counters.units_sent_again).sum();
    (counters.iter().map(|counters| counters.units_sent).sum(), again)
}

/// Messages arrive once and in order, by either way, while datagrams are lost, reordered and late.
#[test]
fn two_ways_keep_one_order() {
    for (name, link) in disturbances() {
        for (seed, from_bytes) in (0..).zip([0, 100, 1_000, 4_000]) {
            println!("{name}, seed {seed}, from {from_bytes} bytes");
            let stalls = StreamSettings { stall: 5 * MS, ..streams(from_bytes) };
            let (units, cut) = both_ways(seed, &link, [Some(stalls.clone()), Some(stalls)]);
            assert!(units > 20 && cut == 0, "{units} units, {cut} of them again");
        }
    }
}

#[test]
fn a_cut_stream_loses_nothing() {
    let (mut units, mut again) = (0, 0);
    for (name, link) in disturbances() {
        for seed in 0..8 {
            println!("{name}, seed {seed}");
            // Every second time nothing but the units that wait has another stream opened.
            let opens_at_once = seed % 2 == 0;
            let cut_after = Some(20 * MS);
            let cuts = StreamSettings { cut_after, stall: 5 * MS, opens_at_once, ..streams(500) };
            let (sent, repeated) = both_ways(seed, &link, [Some(cuts.clone()), Some(cuts)]);
            (units, again) = (units + sent, again + repeated);
        }
    }
    assert!(units > 1_000 && again > 1_000, "{units} units, {again} of them again");
}

/// A receiver with hardly any memory for units that waits for a lost datagram is not blocked by later units.
#[test]
fn the_next_message_finds_memory() {
    let link = LinkSettings { loss: 0.1, ..LinkSettings::gigabit() };
    for seed in 0..10 {
        let few = StreamSettings { memory_units: 1, ..streams(2_000) };
        let (units, _) = both_ways(seed, &link, [Some(few.clone()), Some(few)]);
        assert!(units > 100, "{units} units");
    }
}

#[test]
fn units_are_no_wider_than_the_window_of_the_peer() {
    let mut units = 0;
    for seed in 0..4 {
        let client = HostSettings { streams: Some(streams(0)), ..on(LinkSettings::gigabit()) };
        let mut server = client.clone();
        server.endpoint.window_packets = 2;
        let (mut world, client, server) = pair(seed, client, server);
        world.connect(client, server, Some(Traffic::of(300, Sizes::UpTo(2_000))));
        assert_settles(&mut world, 300 * SECOND, &[client, server]);
        units += world.endpoint(client).counters().units_sent;
    }
    assert!(units > 5, "{units} units");
}

/// The server asks for it by its datagrams, of which some are lost; both ends send by it then.
#[test]
fn a_client_opens_a_stream_when_it_is_asked() {
    for (name, link) in disturbances() {
        let asked = StreamSettings { opens_at_once: false, ..streams(500) };
        let (units, _) = both_ways(2, &link, [Some(asked.clone()), Some(asked)]);
        assert!(units > 20, "{name}: {units} units");
    }
}

#[test]
fn an_end_without_streams_gets_datagrams() {
    for ends in [[Some(streams(0)), None], [None, Some(streams(0))]] {
        assert_eq!(both_ways(1, &LinkSettings::gigabit(), ends), (0, 0));
    }
}

#[test]
fn a_stream_is_attached_by_id_key_and_address() {
    let client = HostSettings { streams: Some(streams(0)), ..on(LinkSettings::gigabit()) };
    let (mut world, client, server) = pair(1, client.clone(), client);
    let quiet = Traffic { finish: false, ..Traffic::of(1, Sizes::Bytes(10)) };
    let peer = world.connect(client, server, Some(quiet));
    world.run(SECOND);
    let (path, attach) = world.endpoint_mut(client).want_stream(peer).unwrap().expect("both use streams");
    assert_eq!(path.remote, world.address(server));
    let from = world.address(client).ip();
    let mut attaches = |attach| world.endpoint_mut(server).attach(from, &attach).map(|(_, answer)| answer.to);
    assert_eq!(attaches(attach), Some(attach.from));
    assert_eq!(attaches(Attach { key: attach.key.saturating_add(1), ..attach }), None);
    assert_eq!(attaches(Attach { to: attach.to ^ 1 << 30, ..attach }), None);
    assert_eq!(attaches(Attach { from: attach.from ^ 1, ..attach }), None);
    let elsewhere = world.address(server).ip();
    assert!(world.endpoint_mut(server).attach(elsewhere, &attach).is_none());
}
