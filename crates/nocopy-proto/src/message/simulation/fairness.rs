//! Peers that keep memory that others need, beside correct peers (docs/protocol.md §8).

use std::net::SocketAddr;
use std::time::Duration;

use super::hostile::Hostile;
use super::tests::on;
use super::{End, Flow, HostId, HostSettings, LinkSettings, Sizes, Traffic, World};
use crate::message::wire::{Abort, AbortReason, Unknown};
use crate::message::{Event, Kind, framing};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Packets that the server keeps of one peer.
const WINDOW: usize = 256;
/// Packets that the server keeps in total: the least possible, and the default.
const MEMORIES: [usize; 2] = [2 * WINDOW, 8 * WINDOW];

/// A server with this much memory, and honest clients.
fn server_and_clients(seed: u64, memory_packets: usize, count: usize) -> (World, HostId, Vec<HostId>) {
    let mut world = World::new(seed);
    let server = world.host(HostSettings { memory_packets, ..on(LinkSettings::gigabit()) });
    let clients = (0..count).map(|_| world.host(on(LinkSettings::gigabit()))).collect();
    (world, server, clients)
}

fn hostile_address(number: usize) -> SocketAddr {
    ([192, 0, 2, number as u8 + 1], 9).into()
}

/// Fills the window of a connection except its first packet.
fn leave_a_gap(world: &mut World, server: HostId, address: SocketAddr, id: u64) -> Option<Hostile> {
    let hostile = Hostile::connect(world, server, address, id)?;
    hostile.send_packets(world, 1..WINDOW as u32, &[]);
    Some(hostile)
}

/// Sends a long message without its last packets.
fn begin_a_message(world: &mut World, server: HostId, address: SocketAddr, id: u64) -> Option<Hostile> {
    const BYTES: usize = 100_000;
    let hostile = Hostile::connect(world, server, address, id)?;
    let message = vec![0; BYTES];
    let chunks = framing::chunks(Kind::Plain, BYTES, 0, Hostile::PAYLOAD_BYTES);
    for (number, chunk) in (0..200).zip(chunks) {
        let payload = [chunk.header(), &message[chunk.range.clone()]].concat();
        hostile.send_packets(world, number..number + 1, &payload);
    }
    Some(hostile)
}

/// Sends datagrams as an attacker would that does not see the connections and forges the clients' addresses.
fn forge(world: &mut World, random: &mut fastrand::Rng, server: HostId, clients: &[HostId]) {
    for &client in clients {
        let (from, to) = (world.address(client), random.u64(..));
        let mut datagram = Vec::new();
        match random.u8(..3) {
            0 => Abort { to, reason: AbortReason::ABORTED }.emit(&mut datagram),
            1 => Unknown { to }.emit(&mut datagram),
            _ => {
                datagram.resize(random.usize(32..200), 0);
                random.fill(&mut datagram);
                datagram[0] = random.u8(1..10);
            }
        }
        world.inject(from, server, datagram);
    }
}

#[track_caller]
fn assert_all_heard(world: &World, clients: &[HostId]) {
    assert!(world.faults().is_empty(), "{:?}", world.faults());
    for flow in world.flows() {
        assert!(flow.finished && flow.received == flow.traffic.messages, "{flow:?} at {:?}", world.now());
    }
    for &client in clients {
        assert!(world.ends(client).iter().all(|end| *end == Some(End::Closed)), "{:?}", world.ends(client));
    }
}

/// Repeats the attack once a second until everything from the clients has arrived, or the time is over.
#[track_caller]
fn assert_heard_within(
    seconds: usize,
    world: &mut World,
    server: HostId,
    clients: &[HostId],
    mut attack: impl FnMut(&mut World, usize),
) {
    for second in 0..seconds {
        attack(world, second);
        if world.run_until(SECOND, all_heard) {
            break;
        }
    }
    println!("{:?}: {:?}", world.now(), world.endpoint(server).counters());
    world.run(4 * SECOND);
    assert_all_heard(world, clients);
}

fn all_heard(world: &World) -> bool {
    world.flows().all(|flow: &Flow| flow.finished)
}

/// Peers that fill the memory with parts of messages and send signs of life do not stop others: from one
/// address or many, and while datagrams are forged.
#[test]
fn parts_of_messages_stop_no_other_peer() {
    for (memory, addresses) in MEMORIES.into_iter().flat_map(|memory| [1, 2, 8].map(|count| (memory, count)))
    {
        let (mut world, server, clients) = server_and_clients(1, memory, 4);
        let mut random = fastrand::Rng::with_seed(2);
        let mut hostile = Vec::new();
        for number in 0..8 {
            let (address, id) = (hostile_address(number % addresses), number as u64 + 1);
            let attack = if number < 7 { leave_a_gap } else { begin_a_message };
            hostile.extend(attack(&mut world, server, address, id));
        }
        assert_eq!(hostile.len(), 8);
        assert!(world.kept(server).0 >= memory / 2 - 1, "{:?}", world.kept(server));
        for &client in &clients {
            world.connect(client, server, Some(Traffic::of(50, Sizes::UpTo(100_000))));
        }
        println!("{memory} packets, {addresses} addresses");
        assert_heard_within(30, &mut world, server, &clients, |world, _| {
            hostile.iter().for_each(|hostile| hostile.speak(world));
            forge(world, &mut random, server, &clients);
        });
    }
}

/// The same for peers that connect again each time they are ended, and fill the memory each time.
#[test]
fn who_comes_again_stops_no_other_peer() {
    for (memory, addresses) in MEMORIES.into_iter().flat_map(|memory| [1, 4].map(|count| (memory, count))) {
        let (mut world, server, clients) = server_and_clients(3, memory, 3);
        let mut id = 0;
        let mut fill = |world: &mut World, round: usize| {
            for number in 0..6 {
                id += 1;
                let address = hostile_address((round + number) % addresses);
                let attack = if number % 3 < 2 { leave_a_gap } else { begin_a_message };
                attack(world, server, address, id);
            }
        };
        fill(&mut world, 0);
        for &client in &clients {
            world.connect(client, server, Some(Traffic::of(5, Sizes::UpTo(100_000))));
        }
        println!("{memory} packets, {addresses} addresses");
        // Within 12 s no peer counts as lost for its silence.
        assert_heard_within(12, &mut world, server, &clients, fill);
    }
}

/// No correct peer is ended when memory is short only because all send much at the same time, even if the
/// program reads slowly.
#[test]
fn who_goes_on_is_not_sent_away() {
    for (memory_packets, reading) in [(300, None), (600, None), (600, Some((3, 400 * MS)))] {
        let link = LinkSettings { loss: 0.02, queue_packets: 512, ..LinkSettings::gigabit() };
        let mut world = World::new(4);
        let server = world.host(HostSettings { memory_packets, reading, ..on(link.clone()) });
        let clients: Vec<_> = (0..20).map(|_| world.host(on(link.clone()))).collect();
        for &client in &clients {
            world.connect(client, server, Some(Traffic::of(8, Sizes::UpTo(1 << 18))));
        }
        world.run_until(600 * SECOND, all_heard);
        world.run(10 * SECOND);
        println!("{memory_packets} packets, {:?}", world.endpoint(server).counters());
        assert_eq!(world.endpoint(server).counters().evicted, 0, "{memory_packets} packets");
        assert_all_heard(&world, &clients);
    }
}

/// A server with memory for one turn, and hosts that send without end.
fn flooded_server(seed: u64, flooding: usize) -> (World, HostId) {
    let (mut world, server, hosts) = server_and_clients(seed, WINDOW, flooding);
    let endless = Traffic { finish: false, ..Traffic::of(1_000_000, Sizes::UpTo(1 << 18)) };
    for host in hosts {
        world.connect(host, server, Some(endless));
    }
    world.run(SECOND);
    (world, server)
}

/// Connects one more host, and runs until everything it sends was read.
#[track_caller]
fn assert_heard_from(world: &mut World, server: HostId, says: Traffic, link: LinkSettings, most: Duration) {
    let client = world.host(on(link));
    world.connect(client, server, Some(says));
    let is_heard = |world: &World| world.flows().any(|flow| flow.traffic.finish && flow.finished);
    let heard = world.run_until(most, is_heard);
    println!("{:?}: {:?}", world.now(), world.endpoint(server).counters());
    assert!(heard, "{:?}: {:?}", world.ends(client), world.flows().find(|flow| flow.traffic.finish));
    assert_eq!(world.endpoint(server).counters().evicted, 0);
    assert!(world.faults().is_empty(), "{:?}", world.faults());
}

/// Two peers that send without end do not pass the memory to each other while a third waits that asks less
/// often.
#[test]
fn two_that_flood_leave_turns_to_a_third() {
    const BYTES: usize = Hostile::PAYLOAD_BYTES;
    let message = vec![0; BYTES];
    let parts: Vec<Vec<u8>> = framing::chunks(Kind::Plain, BYTES, 0, Hostile::PAYLOAD_BYTES)
        .map(|chunk| [chunk.header(), &message[chunk.range.clone()]].concat())
        .collect();
    assert_eq!(parts.len(), 2, "the first packet begins a message, the second one ends it");
    let (mut world, server, clients) = server_and_clients(6, WINDOW, 1);
    let mut hostile = [1, 2].map(|number| {
        Hostile::connect(&mut world, server, hostile_address(number), number as u64).expect("connected")
    });
    let mut flood = |world: &mut World| {
        let mut numbers = hostile.map(|hostile| hostile.next_number(world));
        world.mail.clear();
        // The first one is in the middle of a message, if any is.
        if numbers[1] % 2 == 1 {
            hostile.swap(0, 1);
            numbers.swap(0, 1);
        }
        for which in [1, 0, 1] {
            let number = numbers[which];
            hostile[which].send_packet(world, number, &parts[number as usize % 2]);
        }
        world.run(2 * MS);
    };
    flood(&mut world);
    world.connect(clients[0], server, Some(Traffic::of(20, Sizes::UpTo(100_000))));
    for _ in 0..30_000 {
        flood(&mut world);
        if all_heard(&world) {
            break;
        }
    }
    println!("{:?}: {:?}", world.now(), world.endpoint(server).counters());
    assert!(all_heard(&world), "{:?}", world.flows().collect::<Vec<_>>());
}

/// A message that takes longer than ten seconds arrives, since it makes progress, although others wait for
/// the end of its turn.
#[test]
fn a_message_on_a_slow_path_is_not_sent_away() {
    for seed in 0..5 {
        let (mut world, server) = flooded_server(seed, 1);
        let slow = LinkSettings { bytes_per_s: 15_000, queue_packets: 64, ..LinkSettings::gigabit() };
        let says = Traffic::of(1, Sizes::Bytes(250_000));
        assert_heard_from(&mut world, server, says, slow, 120 * SECOND);
    }
}

/// An address that takes all places leaves one to each other address that wants one, and peers that were
/// there before stay.
#[test]
fn one_address_cannot_have_all_places() {
    const PLACES: usize = 20;
    let (mut world, _, clients) = server_and_clients(5, MEMORIES[1], 6);
    let mut few = on(LinkSettings::gigabit());
    few.endpoint.peers_max = PLACES;
    let server = world.host(few);
    let much = Traffic { burst: Some((10, SECOND)), ..Traffic::of(100, Sizes::UpTo(10_000)) };
    world.connect(clients[0], server, Some(much));
    world.run(10 * MS);
    for id in 0..100 {
        Hostile::connect(&mut world, server, hostile_address(0), id + 1);
    }
    assert_eq!(world.endpoint(server).peers(), PLACES);
    for &client in &clients[1..] {
        world.connect(client, server, Some(Traffic::of(10, Sizes::UpTo(10_000))));
        world.run(10 * MS);
        let id = world.now().ns();
        Hostile::connect(&mut world, server, hostile_address(0), id);
    }
    let accepted = |world: &World| {
        let events = world.events(server).iter();
        events.filter(|(_, event)| matches!(event, Event::Accepted(..))).count()
    };
    world.run_until(20 * SECOND, all_heard);
    world.run(4 * SECOND);
    assert!(accepted(&world) > PLACES);
    assert_all_heard(&world, &clients);
}
