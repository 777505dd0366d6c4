//! Programs that compute for minutes and do not call their endpoint (docs/protocol.md §10.1).

use std::cell::Cell;
use std::time::Duration;

use super::tests::{on, pair, settings};
use super::*;
use crate::message::{Event, LostReason};

const SECOND: Duration = Duration::from_secs(1);
/// Seconds: longer than the limit for a silent peer, and much longer.
const ABSENCES: [u32; 3] = [31, 45, 600];

/// Two hosts that both send. After some messages the server computes for `absence` without calling its
/// endpoint.
fn server_computes(seed: u64, absence: Duration, loss: f64, dead_after: Duration) -> (World, HostId, HostId) {
    let says = Traffic::of(2_000, Sizes::UpTo(2_000));
    let mut host = HostSettings { says: Some(says), ..on(LinkSettings { loss, ..LinkSettings::gigabit() }) };
    host.endpoint.dead_after = dead_after;
    let (mut world, client, server) = pair(seed, host.clone(), host);
    world.connect(client, server, Some(says));
    assert!(world.run_until(20 * SECOND, |world| world.flows().any(|flow| flow.received > 100)));
    world.compute(server, absence);
    (world, client, server)
}

fn assert_all_arrived(world: &mut World, client: HostId, server: HostId) {
    assert!(world.run(900 * SECOND), "something still happens");
    assert!(world.faults().is_empty(), "{:?}", world.faults());
    for host in [client, server] {
        assert_eq!(world.ends(host), [Some(End::Closed)]);
    }
    assert!(world.flows().all(|flow| flow.received == flow.traffic.messages));
}

#[test]
fn a_peer_waits_for_minutes_of_computing_if_it_is_to() {
    for (seed, absence) in (0..).zip(ABSENCES) {
        for loss in [0.0, 0.05] {
            let (mut world, client, server) = server_computes(seed, absence * SECOND, loss, Duration::MAX);
            assert_all_arrived(&mut world, client, server);
        }
    }
}

#[test]
fn otherwise_a_computing_program_is_lost() {
    for (seed, absence) in (0..).zip(ABSENCES) {
        let dead_after = settings().dead_after;
        let (mut world, client, server) = server_computes(seed, absence * SECOND, 0.0, dead_after);
        assert!(world.run(900 * SECOND), "something still happens");
        assert_eq!(world.ends(client), [Some(End::Lost(LostReason::Silent))], "{absence}");
        // Of the datagrams that waited, the client's Abort is handled first.
        assert!(
            matches!(world.ends(server)[..], [Some(End::Lost(LostReason::Aborted { code: 2 }))]),
            "{absence}"
        );
    }
}

/// An end that was stopped with packets in flight finds their acknowledgements waiting: they say nothing
/// about the path.
#[test]
fn an_absence_is_no_round_trip() {
    for (seed, absence) in (0..).zip([1, 10, 29]) {
        let (mut world, client, server) = server_computes(seed, absence * SECOND, 0.0, settings().dead_after);
        let peer = world.events(server).iter().find_map(|(_, event)| match event {
            Event::Accepted(peer, _) => Some(*peer),
            _ => None,
        });
        let longest = Cell::new(Duration::ZERO);
        world.run_until(900 * SECOND, |world| {
            let found = world.endpoint(server).statistics(peer.expect("it was accepted"));
            let round_trip = found.ok().flatten().map_or(Duration::ZERO, |of_peer| of_peer.round_trip);
            longest.set(longest.get().max(round_trip));
            false
        });
        assert!((Duration::from_nanos(1)..SECOND / 10).contains(&longest.get()), "{absence}: {longest:?}");
        assert_all_arrived(&mut world, client, server);
    }
}

/// No end mistakes its own absence for the silence of its peer, when neither sends anything.
#[test]
fn two_programs_that_compute_find_each_other_again() {
    let dead_after = settings().dead_after;
    let absences = [(40, 40, dead_after), (600, 45, Duration::MAX), (45, 600, Duration::MAX)];
    for (seed, (first, second, dead_after)) in (0..).zip(absences) {
        let quiet = Traffic { finish: false, ..Traffic::of(10, Sizes::Bytes(10)) };
        let mut host = HostSettings { says: Some(quiet), ..on(LinkSettings::gigabit()) };
        host.endpoint.dead_after = dead_after;
        let (mut world, client, server) = pair(seed, host.clone(), host);
        world.connect(client, server, Some(quiet));
        world.run(SECOND);
        world.compute(client, first * SECOND);
        world.compute(server, second * SECOND);
        world.run(700 * SECOND);
        assert!(world.faults().is_empty(), "{:?}", world.faults());
        assert_eq!((world.ends(client), world.ends(server)), (vec![None], vec![None]), "{first} {second}");
    }
}
