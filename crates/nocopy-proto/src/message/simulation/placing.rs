//! Simulations of puts: they are done in order, and only where they may be, whatever happens to datagrams and
//! streams.

use std::time::Duration;

use super::tests::{disturbances, on, pair};
use super::*;
use crate::message::{BesideError, Event, Peer, PutHeader, PutRefusal, Region};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const REGION_BYTES: usize = 50_000;

fn host(link: &LinkSettings, streams: Option<StreamSettings>) -> HostSettings {
    let mut host = HostSettings { streams, ..on(link.clone()) };
    host.endpoint.placement = true;
    host
}

fn streams(cut_after: Option<Duration>, stall: Duration) -> StreamSettings {
    StreamSettings { from_bytes: 4_000, memory_units: 16, cut_after, stall, opens_at_once: true }
}

/// Two connected hosts, with the handle that each has of the other.
fn connected(seed: u64, settings: [HostSettings; 2], says: Traffic) -> (World, [HostId; 2], [Peer; 2]) {
    let [client, server] = settings;
    let (mut world, client, server) = pair(seed, client, server);
    let to_server = world.connect(client, server, Some(Traffic { finish: false, ..says }));
    let is_accepted = |world: &World| world.events(server).iter().any(|(_, event)| is_accepted(event));
    assert!(world.run_until(60 * SECOND, is_accepted), "{:?}", world.faults());
    let to_client = world.events(server)[0].1.peer();
    (world, [client, server], [to_server, to_client])
}

fn is_accepted(event: &Event) -> bool {
    matches!(event, Event::Accepted(..))
}

/// Puts bytes that depend on `number`; puts may overlap.
fn put(world: &mut World, host: HostId, to: Peer, region: Region, number: usize) -> (usize, Vec<u8>) {
    let length = [10, 100, 1_500, 4_000, 9_000, 20_000][number % 6] + number;
    let offset = number * 7_919 % (REGION_BYTES - length);
    let bytes = vec![number as u8 + 1; length];
    put_at(world, host, to, PutHeader::new(region, offset as u64), bytes.clone());
    (offset, bytes)
}

fn put_at(world: &mut World, host: HostId, to: Peer, put: PutHeader, bytes: Vec<u8>) {
    world.host_mut(host).puts.to_put.push_back((to, put, bytes));
}

fn results(world: &World, host: HostId) -> Vec<Result<(), PutRefusal>> {
    world.puts(host).results.iter().map(|(_, result)| *result).collect()
}

#[track_caller]
fn run_until_answered(world: &mut World, host: HostId, count: usize) {
    let done = world.run_until(600 * SECOND, |world| world.puts(host).results.len() == count);
    assert!(world.faults().is_empty(), "{:#?}", world.faults());
    assert!(done, "{} of {count} are answered: {:?}", world.puts(host).results.len(), world.counts(host));
}

/// Ends the connection from one side, and checks that neither side keeps anything of it or of its connection
/// for puts.
#[track_caller]
fn assert_leaves_nothing(world: &mut World, [client, server]: [HostId; 2], peer: Peer) {
    world.abort(client, peer);
    world.run(60 * SECOND);
    for host in [client, server] {
        assert_eq!((world.endpoint(host).peers(), world.kept(host)), (0, (0, 0)));
    }
}

/// Proves that puts are done in their order, each once and whole, over datagrams and over streams that stall
/// and are cut, while messages go both ways.
#[test]
fn puts_are_done_in_order() {
    let (mut straight, mut placed, mut cut) = (0, 0, 0);
    let cuts = Some(streams(Some(20 * MS), 5 * MS));
    for (name, link) in disturbances() {
        for (seed, ways) in [None, Some(streams(None, 5 * MS)), cuts.clone()].into_iter().enumerate() {
            println!("{name}, seed {seed}");
            let settings = [host(&link, ways.clone()), host(&link, ways)];
            let says = Traffic::of(100, Sizes::UpTo(3_000));
            let (mut world, hosts, [to_server, to_client]) = connected(seed as u64, settings, says);
            let [client, server] = hosts;
            let region = world.host_mut(server).register(to_client, REGION_BYTES);
            let mut expected = vec![0; REGION_BYTES];
            for number in 0..60 {
                if number == 5 {
                    run_until_answered(&mut world, client, number); // a stream, if there are streams, is open by then
                }
                let (offset, bytes) = put(&mut world, client, to_server, region, number);
                expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            run_until_answered(&mut world, client, 60);
            assert_eq!(results(&world, client), [Ok(()); 60]);
            let there = world.puts(server);
            assert!(there.regions.memory(region) == Some(&expected), "{name}, seed {seed}");
            (straight, placed) = (straight + there.straight, placed + there.placed.len());
            cut += world.endpoint(client).counters().units_sent_again;
            let heard = |world: &World| world.flows().all(|flow| flow.received == flow.traffic.messages);
            assert!(world.run_until(600 * SECOND, heard), "{:?}", world.faults());
            assert_leaves_nothing(&mut world, hosts, to_server);
        }
    }
    assert!(straight > 100 && placed > straight + 100 && cut > 20, "{straight} of {placed}, {cut} cut");
}

/// Proves that a region withdrawn during puts is not changed any more, also when its index is used again.
#[test]
fn a_withdrawn_region_refuses_what_comes() {
    let mut refused = 0;
    for (seed, (name, link)) in disturbances().into_iter().enumerate() {
        println!("{name}");
        let ways = Some(streams(Some(50 * MS), 5 * MS));
        let settings = [host(&link, ways.clone()), host(&link, ways)];
        let (mut world, hosts, [to_server, to_client]) =
            connected(seed as u64, settings, Traffic::of(1, Sizes::Bytes(10)));
        let [client, server] = hosts;
        let region = world.host_mut(server).register(to_client, REGION_BYTES);
        for number in 0..60 {
            put(&mut world, client, to_server, region, number);
        }
        world.run_until(600 * SECOND, |world| world.puts(server).placed.len() >= 20);
        let placed = world.puts(server).placed.len();
        let memory = world.host_mut(server).puts.regions.withdraw(region).expect("it was registered");
        let again = world.host_mut(server).register(to_client, REGION_BYTES);
        let (mut expected, mut sent) = (vec![0; REGION_BYTES], 0);
        for (_, put, bytes) in &world.puts(server).placed {
            expected[put.offset as usize..][..*bytes].fill(sent as u8 + 1);
            sent += 1;
        }
        run_until_answered(&mut world, client, 60);
        let results = results(&world, client);
        let done = results.iter().take_while(|result| result.is_ok()).count();
        assert_eq!(done, placed, "what was placed before, and no more");
        assert!(results[done..].iter().all(|result| *result == Err(PutRefusal::NoRegion)));
        refused += results.len() - done;
        let there = world.puts(server);
        assert!(there.regions.memory(again) == Some(&vec![0; REGION_BYTES]), "nothing is in its successor");
        assert_eq!(there.regions.memory(region), None);
        // The bytes of a put that was read but not answered may have been written, although it was refused.
        assert!(there.straight > placed || memory == expected, "what was placed is there");
        assert_leaves_nothing(&mut world, hosts, to_server);
    }
    assert!(refused > 100, "{refused}");
}

/// Proves that a put outside its region, to the region of another peer, or to a withdrawn region is refused,
/// and the next one is done.
#[test]
fn puts_elsewhere_are_refused() {
    for ways in [None, Some(streams(None, Duration::ZERO))] {
        let link = LinkSettings::gigabit();
        let settings = || host(&link, ways.clone());
        let quiet = Traffic::of(1, Sizes::Bytes(10));
        let (mut world, [client, server], [to_server, to_client]) =
            connected(1, [settings(), settings()], quiet);
        let other = world.host(settings());
        let other_to_server = world.connect(other, server, Some(Traffic { finish: false, ..quiet }));
        let both =
            |world: &World| world.events(server).iter().filter(|(_, event)| is_accepted(event)).count() == 2;
        assert!(world.run_until(60 * SECOND, both));
        let to_other = world.events(server).last().unwrap().1.peer();
        let theirs = world.host_mut(server).register(to_other, 10_000);
        let former = world.host_mut(server).register(to_client, 10_000);
        world.host_mut(server).puts.regions.withdraw(former);
        let region = world.host_mut(server).register(to_client, 10_000);
        let (no_region, out_of_range) = (Err(PutRefusal::NoRegion), Err(PutRefusal::OutOfRange));
        let mut expected = Vec::new();
        for (region, offset, bytes, result) in [
            (region, 0, 10_000, Ok(())),
            (region, 1, 10_000, out_of_range),
            (region, 10_000, 1, out_of_range),
            (region, u64::MAX, 10, out_of_range),
            (region, 10_000, 0, Ok(())),
            (former, 0, 10, no_region),
            (theirs, 0, 9_000, no_region),
            (Region::from([255; 16]), 0, 10, no_region),
            (region, 9_999, 1, Ok(())),
        ] {
            put_at(&mut world, client, to_server, PutHeader::new(region, offset), vec![1; bytes]);
            expected.push(result);
        }
        put_at(&mut world, other, other_to_server, PutHeader::new(theirs, 0), vec![2; 10]);
        run_until_answered(&mut world, client, expected.len());
        run_until_answered(&mut world, other, 1);
        assert_eq!((results(&world, client), results(&world, other)), (expected, vec![Ok(())]));
    }
}

/// Proves that a message does not wait for puts that were begun before it.
#[test]
fn a_message_does_not_wait_for_puts() {
    for ways in [None, Some(streams(None, Duration::ZERO))] {
        let link = LinkSettings::gigabit();
        let settings = [host(&link, ways.clone()), host(&link, ways)];
        let one_later = Traffic { burst: Some((1, 30 * MS)), ..Traffic::of(2, Sizes::Bytes(64)) };
        let (mut world, [client, server], [to_server, to_client]) = connected(1, settings, one_later);
        let region = world.host_mut(server).register(to_client, 200_000);
        for _ in 0..60 {
            put_at(&mut world, client, to_server, PutHeader::new(region, 0), vec![1; 200_000]);
        }
        assert!(world.run_until(60 * SECOND, |world| world.puts(client).results.len() == 5));
        let first = world.counts(server).read_bytes;
        assert!(world.run_until(60 * SECOND, |world| world.counts(server).read_bytes > first));
        let answered = world.puts(client).results.len();
        assert!(answered < 40, "it came when {answered} of 60 puts were done");
        run_until_answered(&mut world, client, 60);
    }
}

/// Proves that no put is sent to a peer that does not know puts or has registered no memory, and that only
/// this is reported.
#[test]
fn puts_need_a_peer_that_takes_them() {
    let link = LinkSettings::gigabit();
    let quiet = Traffic::of(1, Sizes::Bytes(10));
    for knows in [[true, false], [false, true]] {
        let settings = knows.map(|knows| {
            let mut host = host(&link, None);
            host.endpoint.placement = knows;
            host
        });
        let (mut world, [client, _], [to_server, _]) = connected(1, settings, quiet);
        put_at(&mut world, client, to_server, PutHeader::new(Region::from([1; 16]), 0), vec![1; 10]);
        world.run(5 * SECOND);
        assert_eq!(world.puts(client).refused, Some(BesideError::Unknown));
        assert_eq!(world.endpoint(client).peers(), 1);
    }
    let (mut world, [client, server], [to_server, _]) =
        connected(1, [host(&link, None), host(&link, None)], quiet);
    let now = world.now();
    let beside = world.endpoint_mut(client).connect_beside(now, to_server).unwrap();
    world.host_mut(client);
    world.run(SECOND);
    assert!(!world.endpoint(client).has_peer(beside), "it was refused");
    assert_eq!((world.endpoint(client).peers(), world.endpoint(server).peers()), (1, 1));
    assert!(world.events(client).len() == 1 && world.events(server).len() == 1);
    assert!(world.faults().is_empty(), "{:?}", world.faults());
}
