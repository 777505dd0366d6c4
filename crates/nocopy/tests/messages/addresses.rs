//! Endpoints that are bound to all addresses of their host: peers get everything from the address that they
//! asked.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::common::lab;
use crate::common::message::{connect_to, pattern, receive, send};
use nocopy::message::{Endpoint, Event, Peer};
use nocopy::{Port, Reason};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;

/// Longer than any test waits.
const NEVER: Duration = Duration::from_secs(3600);

fn with_streams(address: &str) -> Endpoint {
    Endpoint::builder().streams(true).keep_alive(NEVER).dead_after(NEVER).bind(address).unwrap()
}

/// Endpoints at the wildcard of each family.
fn at_wildcards() -> impl Iterator<Item = Endpoint> {
    let families = ["0.0.0.0:0", "[::]:0"].into_iter();
    let available = families.filter(|family| family.starts_with('0') || nocopy_lab::ipv6_sockets_or_skip());
    available.map(with_streams)
}

fn exchange(left: &mut Endpoint, to_right: Peer, right: &mut Endpoint, to_left: Peer, message: &[u8]) {
    for (from, to, at, sender) in [(0, to_right, 1, to_left), (1, to_left, 0, to_right)] {
        let mut ends = [&mut *left, &mut *right];
        let [first, second] = &mut ends;
        let (from, at) = if (from, at) == (0, 1) { (first, second) } else { (second, first) };
        send(from, at, to, message);
        from.flush().unwrap();
        let (peer, _, bytes) = receive(from, at);
        assert_eq!((peer, bytes.len()), (sender, message.len()));
        assert!(bytes == message);
    }
}

/// Two connections of one endpoint are two of the host that is asked, by datagrams and by streams, and each
/// can be the only one in use.
#[test]
fn one_peer_may_ask_several_addresses() {
    for mut server in at_wildcards() {
        let mut client = with_streams("127.0.0.1:0");
        let port = server.local_addr().port();
        let peers = [2, 3].map(|host| {
            let asked = (Ipv4Addr::new(127, 0, 0, host), port).into();
            connect_to(asked, &mut client, &mut server)
        });
        for number in 0..10 {
            for (to_server, to_client) in peers {
                let message = pattern(number, [10, 4_000, 300_000][number % 3]);
                exchange(&mut client, to_server, &mut server, to_client, &message);
            }
        }
        for (at, (to_server, to_client)) in peers.into_iter().enumerate() {
            // Enough for a socket of its own, which is closed again for the other.
            for number in 0..600 {
                let message = pattern(number, [10, 4_000][number % 2]);
                exchange(&mut client, to_server, &mut server, to_client, &message);
            }
            let explained = server.explain().to_string();
            assert!(at > 0 || explained.contains("one connected to"), "{explained}");
        }
        assert!(client.poll_event().is_none() && server.poll_event().is_none());
    }
}

#[test]
fn a_stream_comes_from_the_address_asked() {
    for mut server in at_wildcards() {
        let mut client = with_streams("127.0.0.1:0");
        let asked = SocketAddr::from(([127, 0, 0, 2], server.local_addr().port()));
        let (_, to_client) = connect_to(asked, &mut client, &mut server);
        let mut number = 0;
        // The first ones may go before it is opened.
        wait_until("units of the server's", || {
            let message = pattern(number, 1 << 20);
            send(&mut server, &mut client, to_client, &message);
            server.flush().unwrap();
            assert!(receive(&mut server, &mut client).2 == message);
            number += 1;
            server.stats().get("units_sent").unwrap() > 10
        });
        assert_eq!(client.stats().get("streams_refused").unwrap(), 0);
    }
}

fn ip(end: &End, arguments: &str) {
    let arguments = format!("{arguments} dev {}", end.interface());
    let output = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Gives the end one more address, to which the other end has a route.
fn add_address(end: &End, other: &End) -> Ipv4Addr {
    let [a, b, c, _] = end.ipv4().octets();
    let address = Ipv4Addr::new(a, b, c, 102);
    ip(end, &format!("addr add {address}/32"));
    ip(other, &format!("route replace {address}/32"));
    address
}

fn bind(end: &End, address: Ipv4Addr) -> Endpoint {
    let builder = Endpoint::builder().streams(false).keep_alive(NEVER).dead_after(NEVER);
    end.namespace().run(|| builder.bind((address, 0)).unwrap())
}

#[test]
fn a_removed_address_concerns_only_its_peers() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let other = add_address(right, left);
    let (mut server, mut client) = (bind(right, Ipv4Addr::UNSPECIFIED), bind(left, left.ipv4()));
    let port = server.local_addr().port();
    let [stays, goes] =
        [right.ipv4(), other].map(|asked| connect_to((asked, port).into(), &mut client, &mut server));
    for (to_server, to_client) in [stays, goes] {
        exchange(&mut client, to_server, &mut server, to_client, b"before");
    }
    ip(right, &format!("addr del {other}/32"));
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut transfer = |until: [usize; 2]| {
        wait_until("messages to each", || {
            for (at, (_, to_client)) in [goes, stays].into_iter().enumerate() {
                while sent[at] < 200 {
                    match server.send_copy_to(&pattern(sent[at], 100), to_client) {
                        Ok(()) => sent[at] += 1,
                        Err(Reason::Full) => break,
                        Err(reason) => panic!("{reason}"),
                    }
                }
            }
            server.flush().unwrap();
            server.wait(Duration::from_millis(1)).unwrap();
            while let Some(message) = client.try_receive().unwrap() {
                let at = usize::from(message.peer() == stays.0);
                assert!(message.to_vec() == pattern(received[at], 100));
                received[at] += 1;
            }
            for end in [&mut server, &mut client] {
                assert!(!matches!(end.poll_event(), Some(Event::Lost(..))));
            }
            received == until
        });
    };
    transfer([0, 200]);
    // The address returns: what was lost is sent again.
    ip(right, &format!("addr add {other}/32"));
    transfer([200, 200]);
    assert!(server.stats().get("datagrams_refused").unwrap() > 0);
}

#[test]
fn an_endpoint_over_a_port_has_any_address_of_its_interface() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let address = add_address(right, left);
    let builder = Endpoint::builder().port(Port::builder(right.interface()));
    let mut server = right.namespace().run(|| builder.bind((address, 0)).unwrap());
    let mut client = bind(left, left.ipv4());
    let (to_server, to_client) = connect_to(server.local_addr(), &mut client, &mut server);
    for number in 0..10 {
        exchange(&mut client, to_server, &mut server, to_client, &pattern(number, 3_000));
    }
}
