use std::time::Duration;

use super::*;
use crate::message::{Event, LostReason, Settings};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn settings() -> Settings {
    Settings { window_packets: 256, max_message_bytes: 1 << 18, peers_max: 1_000, ..Settings::default() }
}

pub(super) fn on(link: LinkSettings) -> HostSettings {
    HostSettings {
        endpoint: settings(),
        memory_packets: 2_048,
        reading: None,
        says: None,
        is_general: None,
        link,
        streams: None,
    }
}

/// The first seed of these tests: 0, or from the environment, so that a nightly run uses other seeds.
fn first_seed() -> u64 {
    let text = std::env::var("NOCOPY_TEST_SEED");
    text.map_or(0, |text| text.parse().expect("NOCOPY_TEST_SEED is a number"))
}

pub(super) fn pair(seed: u64, client: HostSettings, server: HostSettings) -> (World, HostId, HostId) {
    let mut world = World::new(first_seed().wrapping_add(seed));
    let (client, server) = (world.host(client), world.host(server));
    (world, client, server)
}

/// Checks that everything was sent and arrived unchanged, and that nothing is left: no timer, no memory.
#[track_caller]
pub(super) fn assert_settles(world: &mut World, most: Duration, hosts: &[HostId]) {
    let quiet = world.run(most);
    let state = || {
        hosts
            .iter()
            .map(|&host| (world.ends(host), world.kept(host), world.link_counts(host)))
            .collect::<Vec<_>>()
    };
    assert!(world.faults().is_empty(), "{:#?}\n{:#?}", world.faults(), state());
    for flow in world.flows() {
        assert!(flow.begun && flow.received == flow.traffic.messages, "{flow:?} {:#?}", state());
        assert!(flow.finished || !flow.traffic.finish, "{flow:?} {:#?}", state());
        assert!(flow.traffic.calls.is_none() || flow.answered == flow.traffic.messages, "{flow:?}");
    }
    assert!(quiet, "something still happens after {:?} {:#?}", world.now(), state());
    for &host in hosts {
        assert!(world.ends(host).iter().all(|end| *end == Some(End::Closed)), "{:#?}", state());
        assert_eq!(world.kept(host), (0, 0), "{:#?}", state());
        assert_eq!(world.endpoint(host).poll_timeout(), None);
        assert_eq!(world.endpoint(host).peers(), 0);
    }
}

/// The ways in which a link can disturb traffic, by name.
pub(super) fn disturbances() -> Vec<(&'static str, LinkSettings)> {
    let good = LinkSettings::gigabit();
    let all = LinkSettings {
        loss: 0.03,
        duplication: 0.02,
        reordering: 0.05,
        jitter: 200 * MS / 1_000,
        queue_packets: 64,
        mark_packets: Some(16),
        ..good.clone()
    };
    vec![
        ("nothing", good.clone()),
        ("loss 1 %", LinkSettings { loss: 0.01, ..good.clone() }),
        ("loss 30 %", LinkSettings { loss: 0.3, ..good.clone() }),
        ("reordering", LinkSettings { reordering: 0.2, ..good.clone() }),
        ("far reordering", LinkSettings { reordering: 0.05, reordered_by: 20 * MS, ..good.clone() }),
        ("duplication", LinkSettings { duplication: 0.3, ..good.clone() }),
        ("jitter", LinkSettings { jitter: 3 * MS, ..good.clone() }),
        ("short queue", LinkSettings { queue_packets: 8, ..good.clone() }),
        ("marks", LinkSettings { mark_packets: Some(4), queue_packets: 256, ..good.clone() }),
        ("slow", LinkSettings { bytes_per_s: 1_250_000, queue_packets: 32, ..good.clone() }),
        ("few packets a second", LinkSettings { packets_per_s: 2_000, queue_packets: 16, ..good.clone() }),
        ("far", LinkSettings { delay: 100 * MS, loss: 0.01, ..good.clone() }),
        ("partition", LinkSettings { partitions: vec![5 * MS..2 * SECOND], ..good }),
        ("all together", all),
    ]
}

/// Sends much in both directions over the given link.
fn both_ways(seed: u64, link: &LinkSettings) -> (World, HostId, HostId) {
    let says = Traffic::of(300, Sizes::UpTo(5_000));
    let server = HostSettings { says: Some(Traffic::of(200, Sizes::UpTo(3_000))), ..on(link.clone()) };
    let (mut world, client, server) = pair(seed, on(link.clone()), server);
    world.connect(client, server, Some(says));
    (world, client, server)
}

/// Whatever a link does, every message arrives once, in order and unchanged, and nothing is left afterwards.
#[test]
fn every_disturbance_is_overcome() {
    for (name, link) in disturbances() {
        for seed in 0..if name == "all together" { 30 } else { 10 } {
            let (mut world, client, server) = both_ways(seed, &link);
            println!("{name}, seed {seed}");
            assert_settles(&mut world, 300 * SECOND, &[client, server]);
        }
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let (_, link) = disturbances().pop().expect("all together");
    let run = |seed| {
        let (mut world, client, server) = both_ways(seed, &link);
        assert_settles(&mut world, 300 * SECOND, &[client, server]);
        (world.fingerprint(), world.now(), world.counts(client), world.link_counts(server))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

/// A CRC finds what UDP's checksum does not; damage that neither finds affects only messages.
#[test]
fn corruption_is_found() {
    let link = LinkSettings { corruption: 0.1, ..LinkSettings::gigabit() };
    let (mut unseen, mut bad_crc) = (0, 0);
    for seed in 0..20 {
        let mut host = on(link.clone());
        host.endpoint.crc = true;
        let (mut world, client, server) = pair(seed, host.clone(), host);
        world.connect(client, server, Some(Traffic::of(2_000, Sizes::UpTo(1_500))));
        assert_settles(&mut world, 300 * SECOND, &[client, server]);
        for host in [client, server] {
            unseen += world.link_counts(host).corrupted_unseen;
            bad_crc += world.endpoint(host).counters().bad_crc;
        }
    }
    assert!(unseen > 20, "{unseen}");
    // A few were set-up datagrams, which have none, or had the same bits flipped twice.
    assert!((unseen - unseen / 4..=unseen).contains(&bad_crc), "{bad_crc} of {unseen}");
}

/// Without a CRC, damage that the Internet checksum misses affects messages or the connection, but causes no
/// panic and no endless wait.
#[test]
fn corruption_that_no_checksum_finds_does_bounded_harm() {
    let link = LinkSettings { corruption: 0.1, ..LinkSettings::gigabit() };
    let (mut harmed, mut unseen) = (0, 0);
    for seed in 0..40 {
        let (mut world, client, server) = pair(seed, on(link.clone()), on(link.clone()));
        world.connect(client, server, Some(Traffic::of(2_000, Sizes::UpTo(1_500))));
        assert!(world.run(300 * SECOND), "seed {seed}: {:?} {:?}", world.ends(client), world.ends(server));
        let missed =
            [client, server].map(|host| world.link_counts(host).corrupted_unseen).iter().sum::<u64>();
        assert!(missed > 0 || world.faults().is_empty(), "seed {seed}: {:?}", world.faults());
        harmed += u32::from(!world.faults().is_empty());
        unseen += missed;
        for host in [client, server] {
            assert_eq!(world.kept(host), (0, 0), "seed {seed}");
        }
    }
    assert!(unseen > 20 && harmed > 0, "{harmed} {unseen}");
}

/// A silence of the network loses nothing, if it is shorter than the limit for silent peers.
#[test]
fn partitions_are_overcome() {
    for (seed, (from, length)) in
        [(3, 1), (3, 150), (3, 1_100), (3, 9_000), (3, 29_000), (0, 2_500)].into_iter().enumerate()
    {
        let link =
            LinkSettings { partitions: vec![from * MS..(from + length) * MS], ..LinkSettings::gigabit() };
        for (to_client, to_server) in [(true, true), (true, false), (false, true)] {
            let of = |cut: bool| if cut { link.clone() } else { LinkSettings::gigabit() };
            let server =
                HostSettings { says: Some(Traffic::of(2_000, Sizes::UpTo(2_000))), ..on(of(to_server)) };
            let (mut world, client, server) = pair(seed as u64, on(of(to_client)), server);
            world.connect(client, server, Some(Traffic::of(2_000, Sizes::UpTo(2_000))));
            println!("{length} ms from {from} ms, to the client: {to_client}, to the server: {to_server}");
            assert_settles(&mut world, 300 * SECOND, &[client, server]);
        }
    }
}

/// Both sides report the loss in time when the network stays silent for longer, and keep nothing for it.
#[test]
fn a_peer_that_stays_silent_is_lost() {
    for seed in 0..10 {
        let (mut world, client, server) = both_ways(seed, &LinkSettings::gigabit());
        world.run(Duration::from_micros(500 + 300 * seed));
        let cut = world.now();
        for host in [client, server] {
            world.change_link(host, |link| link.loss = 1.0);
        }
        assert!(world.run(100 * SECOND), "something still happens");
        assert!(world.faults().is_empty(), "{:?}", world.faults());
        let dead_after = settings().dead_after;
        for host in [client, server] {
            for end in world.ends(host) {
                assert_eq!(end, Some(End::Lost(LostReason::Silent)), "seed {seed}");
            }
            let (at, last) = *world.events(host).last().expect("it was told");
            assert!(matches!(last, Event::Lost(..)));
            let silence = at.since(cut);
            assert!(silence <= dead_after + 2 * MS && silence >= dead_after - 2 * MS, "{silence:?}");
            assert_eq!(world.kept(host), (0, 0));
        }
    }
}

#[test]
fn nobody_answers() {
    let mut world = World::new(1);
    let host = world.host(on(LinkSettings::gigabit()));
    let (deaf, refusing) = (world.host(on(LinkSettings { loss: 1.0, ..LinkSettings::gigabit() })), {
        let mut settings = on(LinkSettings::gigabit());
        settings.endpoint.accept = false;
        world.host(settings)
    });
    world.connect(host, deaf, Some(Traffic::of(1, Sizes::Bytes(1))));
    world.connect(host, refusing, Some(Traffic::of(1, Sizes::Bytes(1))));
    assert!(world.run(100 * SECOND));
    assert_eq!(world.ends(host), [Some(End::Lost(LostReason::NoAnswer)), Some(End::Lost(LostReason::Full))]);
    // Waits grow: a minute of asking is no flood.
    assert!(world.counts(host).controls < 50, "{:?}", world.counts(host));
}

/// The other end notices a restarted peer at once, and both can connect again.
#[test]
fn a_restarted_peer_is_noticed() {
    let endless = Traffic { finish: false, ..Traffic::of(1_000_000, Sizes::UpTo(2_000)) };
    for seed in 0..10 {
        for client_restarts in [false, true] {
            let loss = if seed < 5 { 0.0 } else { 0.05 };
            let host = on(LinkSettings { loss, ..LinkSettings::gigabit() });
            let (mut world, client, server) = pair(seed, host.clone(), host);
            world.connect(client, server, Some(endless));
            assert!(world.run_until(20 * SECOND, |world| world.flows().any(|flow| flow.received > 500)));
            let (restarted, other) = if client_restarts { (client, server) } else { (server, client) };
            assert_eq!(world.ends(other), [None]);
            world.restart(restarted);
            let restarted_at = world.now();
            let told = world.run_until(20 * SECOND, |world| world.ends(other)[0].is_some());
            assert!(told, "seed {seed}, client {client_restarts}");
            assert_eq!(world.ends(other)[0], Some(End::Lost(LostReason::Restarted)), "seed {seed}");
            // The server has nothing to send: it asks for a sign of life when nothing arrives any more.
            let most = if client_restarts { settings().keep_alive + SECOND } else { SECOND };
            assert!(
                world.now().since(restarted_at) < most,
                "seed {seed} {:?}",
                world.now().since(restarted_at)
            );
            world.connect(client, server, Some(Traffic::of(500, Sizes::UpTo(2_000))));
            assert!(world.run(100 * SECOND));
            assert!(world.faults().is_empty(), "{:?}", world.faults());
            for host in [client, server] {
                assert_eq!(world.ends(host).last(), Some(&Some(End::Closed)), "seed {seed}");
                assert_eq!(world.kept(host), (0, 0));
            }
        }
    }
}

#[test]
fn a_slow_receiver_holds_its_peer_back() {
    for (messages, every) in [(1, MS), (40, 20 * MS), (2_000, 3 * SECOND)] {
        let receiver = HostSettings {
            reading: Some((messages, every)),
            memory_packets: 300,
            ..on(LinkSettings::gigabit())
        };
        let (mut world, client, server) = pair(5, on(LinkSettings::gigabit()), receiver);
        world.connect(client, server, Some(Traffic::of(3_000, Sizes::UpTo(3_000))));
        assert_settles(&mut world, 300 * SECOND, &[client, server]);
        let counts = world.counts(client);
        assert_eq!(world.counts(server).without_memory, 0);
        assert!(
            counts.again * 100 <= counts.packets,
            "credit is there so that nothing is sent in vain: {counts:?}"
        );
    }
}

/// Bursts arrive, with pauses, as long as no acknowledgement is late.
#[test]
fn bursts_arrive() {
    for loss in [0.0, 0.02] {
        let link = LinkSettings { loss, ..LinkSettings::gigabit() };
        let (mut world, client, server) = pair(6, on(link.clone()), on(link));
        let burst = Some((100, 50 * MS));
        world.connect(client, server, Some(Traffic { burst, ..Traffic::of(2_000, Sizes::UpTo(500)) }));
        assert_settles(&mut world, 100 * SECOND, &[client, server]);
        assert!(world.now().ns() >= 950_000_000);
    }
}

#[test]
fn calls_are_answered() {
    for (waiting, loss) in [(1, 0.0), (1, 0.05), (50, 0.05)] {
        let link = LinkSettings { loss, ..LinkSettings::gigabit() };
        let (mut world, client, server) = pair(7, on(link.clone()), on(link));
        world.connect(
            client,
            server,
            Some(Traffic { calls: Some(waiting), ..Traffic::of(500, Sizes::UpTo(2_000)) }),
        );
        assert_settles(&mut world, 100 * SECOND, &[client, server]);
    }
}

/// Without losses a call takes only the round-trip time.
#[test]
fn an_idle_sender_delays_nothing() {
    let (mut world, client, server) = pair(8, on(LinkSettings::gigabit()), on(LinkSettings::gigabit()));
    world.connect(client, server, Some(Traffic { calls: Some(1), ..Traffic::of(1_000, Sizes::Bytes(64)) }));
    assert_settles(&mut world, 100 * SECOND, &[client, server]);
    let (_, connected) = (world.events(client)[0].1, world.events(client)[0].0);
    let answered = world.events(client).iter().find(|(_, event)| matches!(event, Event::Finished(_)));
    let took = answered.expect("it ended").0.since(connected);
    // 100 us of delay and 6 us of transmissions each.
    assert!(took < Duration::from_micros(1_000 * 106 + 2_000), "{took:?}");
    assert!(took > Duration::from_micros(1_000 * 100), "{took:?}");
}

/// Both sides may end at the same time, and a side that has ended still receives.
#[test]
fn both_directions_end_by_themselves() {
    for seed in 0..20 {
        let link = LinkSettings { loss: if seed % 2 == 0 { 0.0 } else { 0.1 }, ..LinkSettings::gigabit() };
        for (client_says, server_says) in [(0, 0), (1, 1), (0, 1_000), (1_000, 0)] {
            let server =
                HostSettings { says: Some(Traffic::of(server_says, Sizes::UpTo(2_000))), ..on(link.clone()) };
            let (mut world, client, server) = pair(seed, on(link.clone()), server);
            world.connect(client, server, Some(Traffic::of(client_says, Sizes::UpTo(2_000))));
            assert_settles(&mut world, 100 * SECOND, &[client, server]);
            for host in [client, server] {
                let finished =
                    world.events(host).iter().filter(|(_, event)| matches!(event, Event::Finished(_)));
                assert_eq!(finished.count(), 1);
            }
        }
    }
}

/// An aborted connection ends at both ends at once, and leaves nothing.
#[test]
fn an_abort_is_told() {
    for seed in 0..10 {
        let (mut world, client, server) =
            pair(seed, on(LinkSettings::gigabit()), on(LinkSettings::gigabit()));
        let peer = world.connect(client, server, Some(Traffic::of(100_000, Sizes::UpTo(2_000))));
        world.run(Duration::from_micros(1_000 * seed + 100));
        world.abort(client, peer);
        assert!(world.run(100 * SECOND));
        assert!(world.faults().is_empty(), "{:?}", world.faults());
        assert_eq!(world.ends(client), [Some(End::Aborted)]);
        for end in world.ends(server) {
            assert!(
                matches!(end, Some(End::Lost(LostReason::Aborted { .. } | LostReason::Restarted))),
                "{end:?}"
            );
        }
        for host in [client, server] {
            assert_eq!(world.kept(host), (0, 0));
            assert_eq!(world.endpoint(host).poll_timeout(), None);
        }
    }
}

/// Many peers that send long messages to a host with little memory all succeed: one at a time has the
/// reserve.
#[test]
fn many_peers_share_little_memory() {
    for (peers, loss) in [(30, 0.0), (30, 0.02), (60, 0.0)] {
        let link = LinkSettings { loss, queue_packets: 512, ..LinkSettings::gigabit() };
        // The reserve is a window of 256 packets; the longest messages are 180 packets.
        let server = HostSettings { memory_packets: 300, ..on(link.clone()) };
        let mut world = World::new(9);
        let server = world.host(server);
        let clients: Vec<_> = (0..peers).map(|_| world.host(on(link.clone()))).collect();
        for &client in &clients {
            world.connect(client, server, Some(Traffic::of(4, Sizes::UpTo(1 << 18))));
        }
        println!("{peers} peers, loss {loss}");
        assert_settles(&mut world, 300 * SECOND, &[&[server][..], &clients].concat());
    }
}

/// An idle peer, ended or not, does not keep the reserve from others.
#[test]
fn an_idle_peer_does_not_hold_the_reserve() {
    let link = LinkSettings::gigabit();
    // All memory is reserve: the peer that needs it first gets it.
    let server = HostSettings {
        memory_packets: 256,
        says: Some(Traffic { burst: Some((1, SECOND)), ..Traffic::of(20, Sizes::Bytes(10)) }),
        ..on(link.clone())
    };
    let mut world = World::new(10);
    let server = world.host(server);
    let clients: Vec<_> = (0..3).map(|_| world.host(on(link.clone()))).collect();
    for (number, &client) in clients.iter().enumerate() {
        world.connect(client, server, Some(Traffic::of(number as u64, Sizes::UpTo(1 << 16))));
    }
    let all_heard = world.run_until(5 * SECOND, |world| {
        let from_clients = |flow: &&Flow| flow.traffic.burst.is_none();
        world.flows().filter(from_clients).all(|flow| flow.begun && flow.received == flow.traffic.messages)
    });
    assert!(all_heard, "{:#?}", world.flows().collect::<Vec<_>>());
    assert_settles(&mut world, 100 * SECOND, &[&[server][..], &clients].concat());
}

/// Datagrams from unknown senders are answered by no more datagrams and bytes than they have.
#[test]
fn strangers_get_no_more_than_they_send() {
    let (mut world, client, server) = both_ways(11, &LinkSettings::gigabit());
    world.keep = 10_000;
    let address = |number: usize| std::net::SocketAddr::from(([192, 0, 2, 1], number as u16 + 1));
    // During a connection, its datagrams from another address are not answered at all.
    for _ in 0..100 {
        world.run(Duration::from_micros(50));
        if let Some((_, to, datagram)) =
            world.recording.iter().rfind(|(_, _, datagram)| datagram[0] <= 2).cloned()
        {
            world.inject(address(0), to, datagram);
        }
    }
    assert!(world.stranger(address(0)).sent > 50);
    assert_eq!(world.stranger(address(0)).got, 0);
    assert_settles(&mut world, 100 * SECOND, &[client, server]);
    let recorded = std::mem::take(&mut world.recording);
    world.keep = 0;
    assert!(recorded.len() > 500);
    let before = [client, server].map(|host| world.events(host).len());
    let mut random = fastrand::Rng::with_seed(12);
    for (number, (_, to, datagram)) in recorded.iter().enumerate() {
        // Four ways: unchanged, garbage after the first byte, a random first byte as well, and cut.
        let mut garbled = datagram.clone();
        random.fill(&mut garbled[1..]);
        let mut other = garbled.clone();
        other[0] = random.u8(..);
        let cut = datagram[..random.usize(0..datagram.len())].to_vec();
        for (way, bytes) in [datagram.clone(), garbled, other, cut].into_iter().enumerate() {
            let from = address(1 + number * 4 + way);
            world.inject(from, *to, bytes);
            assert!(world.run(SECOND), "a stranger sets no timer");
            let stranger = world.stranger(from);
            assert!(
                stranger.got <= 1 && stranger.got_bytes <= stranger.sent_bytes,
                "{stranger:?}: {:?}",
                datagram[0]
            );
        }
    }
    assert_eq!([client, server].map(|host| world.events(host).len()), before, "nothing happened");
    assert!(world.mail.len() > 500, "some were answered: {}", world.mail.len());
    for host in [client, server] {
        assert_eq!((world.kept(host), world.endpoint(host).peers()), ((0, 0), 0));
    }
}

/// A stranger that never proves that it receives at its address cannot connect, whatever it sends of other
/// clients' datagrams.
#[test]
fn a_cookie_is_good_for_one_address_only() {
    let (mut world, _, server) = both_ways(13, &LinkSettings::gigabit());
    world.keep = 10;
    world.run(300 * MS);
    let recorded = std::mem::take(&mut world.recording);
    let connect =
        recorded.iter().filter(|(_, to, _)| *to == server).nth(1).expect("the second datagram is a Connect");
    let peers = world.endpoint(server).peers();
    world.inject(([192, 0, 2, 1], 1).into(), server, connect.2.clone());
    world.run(MS);
    assert_eq!(world.endpoint(server).peers(), peers);
    assert_eq!(world.endpoint(server).counters().bad_cookies, 1);
    assert!(world.mail.is_empty());
}

/// Datagrams that are repeated later from the same address, in any order, change nothing, during the
/// connection or after it.
#[test]
fn replays_change_nothing() {
    for seed in 0..5 {
        let (mut world, client, server) = both_ways(20 + seed, &LinkSettings::gigabit());
        world.keep = 1_000;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..200 {
            world.run(Duration::from_micros(100));
            if let Some((from, to, datagram)) = random.choice(&world.recording[..]).cloned() {
                world.inject(from, to, datagram);
            }
        }
        assert_settles(&mut world, 100 * SECOND, &[client, server]);
        let before = [client, server].map(|host| world.events(host).len());
        for (from, to, datagram) in std::mem::take(&mut world.recording) {
            world.inject(from, to, datagram);
            world.run(MS);
        }
        assert!(world.run(100 * SECOND));
        assert_eq!([client, server].map(|host| world.events(host).len()), before, "seed {seed}");
        assert!(world.faults().is_empty(), "{:?}", world.faults());
        for host in [client, server] {
            assert_eq!(world.kept(host), (0, 0));
        }
    }
}

/// Endpoints stay within their limits of memory, however long kills, new connections and forged datagrams go
/// on. A nightly run takes a million steps with a new seed.
#[test]
fn memory_stays_bounded_through_kills_and_forgeries() {
    let is_nightly = std::env::var_os("NOCOPY_TEST_SEED").is_some();
    let steps = if is_nightly { 500_000 } else { 50_000 };
    for seed in [0, 1] {
        let heard = schedule::run_random(first_seed().wrapping_add(seed), steps);
        println!("{heard} messages in {steps} steps");
        assert!(heard > u64::from(steps) / 20, "only {heard} messages in {steps} steps");
    }
}

/// A million messages of all sizes arrive over a path that loses one datagram in a hundred, handled by the
/// general way and by the short ones.
#[test]
fn a_million_messages_arrive() {
    for is_general in [true, false] {
        let link =
            LinkSettings { loss: 0.01, reordering: 0.002, duplication: 0.002, ..LinkSettings::gigabit() };
        let mut host = on(link);
        host.endpoint.max_message_bytes = 16 << 20;
        host.endpoint.window_packets = 16_384;
        host.memory_packets = 40_000;
        host.is_general = Some(is_general);
        let (mut world, client, server) = pair(14, host.clone(), host);
        world.connect(client, server, Some(Traffic::of(1_000_000, Sizes::Mixed { longest: 500_000 })));
        assert_settles(&mut world, 3_600 * SECOND, &[client, server]);
        assert!(world.link_counts(server).lost > 1_000);
    }
}
