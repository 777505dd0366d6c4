//! Hosts that do not exist, or not any more, beside one that is answered.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::time::Duration;

use nocopy_lab::patience::{PATIENCE, wait_until};
use nocopy_lab::{End, Lab};
use nocopy_proto::message::wire::{Hello, Versions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::message::carrier::Received;
use crate::message::{Endpoint, Event, Peer};

/// The kernel doubles it.
const SEND_BUFFER_BYTES: usize = 100 << 10;

fn ip(end: &End, arguments: &str) {
    let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The address of a host in the network of the laboratory.
fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

fn bind(end: &End, address: Ipv4Addr) -> Endpoint {
    end.namespace().run(|| Endpoint::bind((address, 0)).unwrap())
}

/// A server at the right end with little memory in its socket.
fn server(lab: &Lab) -> Endpoint {
    // Peers that are gone are not asked whether they are alive during a test.
    let builder = Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
    let server = lab.right().namespace().run(|| builder.bind((lab.right().ipv4(), 0)).unwrap());
    set_socket_send_buffer_size(server.carrier.sockets().unwrap().socket(), SEND_BUFFER_BYTES).unwrap();
    server
}

fn connect(client: &mut Endpoint, server: &mut Endpoint) -> (Peer, Peer) {
    let to_server = client.start_connect(server.local_addr()).unwrap();
    let mut to_client = None;
    wait_until("a connection", || {
        client.wait(Duration::ZERO).unwrap();
        server.wait(Duration::ZERO).unwrap();
        while let Some(event) = server.poll_event() {
            if let Event::Accepted(peer, _) = event {
                to_client = Some(peer);
            }
        }
        to_client.is_some() && matches!(client.poll_event(), Some(Event::Connected(..)))
    });
    (to_server, to_client.expect("it was accepted"))
}

fn is_half_free(socket: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&Timespec::default())) == Ok(1)
}

/// A message to a server, and one back.
fn ask((client, to_server): (&mut Endpoint, Peer), (server, to_client): (&mut Endpoint, Peer)) {
    client.send_copy_to(b"question", to_server).unwrap();
    client.flush().unwrap();
    wait_until("the question", || server.try_receive().unwrap().is_some());
    server.send_copy_to(b"answer", to_client).unwrap();
    assert!(server.try_flush().unwrap(), "{}", server.stats());
    wait_until("the answer", || {
        server.wait(Duration::ZERO).unwrap();
        client.try_receive().unwrap().is_some()
    });
}

/// The kernel keeps answers to hosts that it waits for, but not so many that others wait.
#[test]
fn answers_to_hosts_that_do_not_exist_leave_room_for_peers() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut client, mut server) = (bind(lab.left(), lab.left().ipv4()), server(&lab));
    lab.right().namespace().run(|| {
        let (to_server, to_client) = connect(&mut client, &mut server);
        let mut hello = Vec::new();
        for round in 0..10 {
            for number in 100..150 {
                let forged = SocketAddr::new(host(number).into(), 9);
                Hello { versions: Versions::HERE, client_id: round }.emit(&mut hello);
                let datagram = Received::Bytes(hello.as_slice().into(), 0);
                let now = server.now();
                server.protocol.handle_datagram(now, forged, false, datagram);
            }
            server.wait(Duration::ZERO).unwrap();
            assert!(is_half_free(server.carrier.sockets().unwrap().socket()), "round {round}");
            ask((&mut client, to_server), (&mut server, to_client));
        }
        let stats = server.stats();
        assert!(
            stats.get("unresolved_dropped").unwrap() > 0 && stats.get("kernel_full").unwrap() == 0,
            "{stats}"
        );
    });
}

/// The same with what a program itself sends to such hosts, all at once, to connect to them.
#[test]
fn connecting_to_hosts_that_do_not_exist_leaves_room_for_peers() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (mut client, mut server) = (bind(lab.left(), lab.left().ipv4()), server(&lab));
    lab.right().namespace().run(|| {
        let (to_server, to_client) = connect(&mut client, &mut server);
        // Less than what the endpoint collects before it calls the kernel.
        set_socket_send_buffer_size(server.carrier.sockets().unwrap().socket(), SEND_BUFFER_BYTES / 6)
            .unwrap();
        for number in 50..250 {
            server.start_connect((host(number), 9)).unwrap();
        }
        server.wait(Duration::ZERO).unwrap();
        ask((&mut client, to_server), (&mut server, to_client));
        let stats = server.stats();
        assert!(
            stats.get("unresolved_dropped").unwrap() > 0 && stats.get("kernel_full").unwrap() == 0,
            "{stats}"
        );
    });
}

/// How many seconds the kernel asks for a neighbour, and keeps what is for it.
fn patience_of_the_kernel(end: &End, seconds: u32) {
    let setting = format!("/proc/sys/net/ipv4/neigh/{}/mcast_solicit", end.interface());
    std::fs::write(setting, seconds.to_string()).unwrap();
}

/// The same with peers that are gone: their addresses are no more, and the kernel has forgotten where they
/// were. Before that each has acknowledged a message, if they `answered`.
fn with_peers_that_are_gone(
    answered: bool,
    test: impl FnOnce(&mut Endpoint, &[Peer], &mut dyn FnMut(&mut Endpoint), &End) + Send,
) {
    const GONE: std::ops::Range<u8> = 100..140;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let (mut client, mut server) = (bind(left, left.ipv4()), server(&lab));
    let of_gone = |number| format!("{}/24 dev {}", host(number), left.interface());
    GONE.for_each(|number| ip(left, &format!("address add {}", of_gone(number))));
    // Few descriptors each: a process may be limited to 256.
    let bind_small = |number| Endpoint::builder().streams(false).bind((host(number), 0)).unwrap();
    let mut gone: Vec<Endpoint> = left.namespace().run(|| GONE.map(bind_small).collect());
    right.namespace().run(|| {
        let peers: Vec<Peer> = gone.iter_mut().map(|gone| connect(gone, &mut server).1).collect();
        for (gone, peer) in gone.iter_mut().zip(&peers).filter(|_| answered) {
            server.send_copy_to(b"a first message", *peer).unwrap();
            wait_until("acknowledged", || {
                let _ = (server.wait(Duration::ZERO).unwrap(), gone.try_receive().unwrap());
                server.in_flight() == 0
            });
        }
        let (to_server, to_client) = connect(&mut client, &mut server);
        GONE.for_each(|number| ip(left, &format!("address del {}", of_gone(number))));
        ip(right, &format!("neighbour flush dev {}", right.interface()));
        let mut ask = |server: &mut Endpoint| ask((&mut client, to_server), (server, to_client));
        patience_of_the_kernel(right, 60);
        test(&mut server, &peers, &mut ask, right);
    });
}

/// What peers do not answer that are gone is sent to them again and again, but others do not wait for that.
#[test]
fn peers_that_are_gone_leave_room_for_others() {
    with_peers_that_are_gone(true, |server, gone, ask, _| {
        for peer in gone {
            server.send_copy_to(&[1; 1000], *peer).unwrap();
        }
        wait_until("many were sent again", || {
            ask(server);
            server.stats().get("unresolved_dropped").unwrap() >= 10
        });
        let stats = server.stats();
        assert_eq!(stats.get("kernel_full").unwrap(), 0, "{stats}");
    });
}

/// Peers that never answered are sent no more than their part of the socket's buffer takes, though it is sent
/// for the first time.
#[test]
fn peers_that_never_answered_leave_room_for_others() {
    with_peers_that_are_gone(false, |server, gone, ask, _| {
        for peer in gone.iter().flat_map(|peer| [peer; 7]) {
            server.send_copy_to(&[1; 1400], *peer).unwrap(); // a packet
        }
        assert!(server.try_flush().unwrap(), "packets wait: {}", server.stats());
        ask(server);
        let stats = server.stats();
        assert!(
            stats.get("kernel_full").unwrap() == 0 && stats.get("unresolved_dropped").unwrap() > 0,
            "{stats}"
        );
    });
}

/// More messages for them than the socket takes do not stay in front of those for others.
#[test]
fn nothing_waits_behind_peers_that_are_gone() {
    with_peers_that_are_gone(true, |server, gone, ask, right| {
        // Full before probes are due, after which packets are looked at one by one.
        set_socket_send_buffer_size(server.carrier.sockets().unwrap().socket(), SEND_BUFFER_BYTES / 16)
            .unwrap();
        for peer in gone.iter().flat_map(|peer| [peer; 7]) {
            server.send_copy_to(&[1; 1400], *peer).unwrap(); // a packet
        }
        // What is for one of them may wait until there is something for another peer.
        let mut others = gone.iter();
        wait_until("nothing waits", || {
            let is_sent = server.try_flush().unwrap();
            if !is_sent {
                server.send_copy_to(b"another", *others.next().unwrap()).unwrap();
            }
            is_sent
        });
        let stats = server.stats();
        assert!(
            stats.get("kernel_full").unwrap() > 0 && stats.get("unresolved_dropped").unwrap() > 0,
            "{stats}"
        );
        patience_of_the_kernel(right, 1);
        set_socket_send_buffer_size(server.carrier.sockets().unwrap().socket(), SEND_BUFFER_BYTES).unwrap();
        wait_until("there is room again", || {
            server.carrier.sockets().is_some_and(|sockets| is_half_free(sockets.socket()))
        });
        ask(server);
    });
}
