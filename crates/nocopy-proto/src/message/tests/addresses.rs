//! A host with several addresses: all that it sends comes from the address that the peer has asked.

use std::net::IpAddr;

use super::*;
use crate::message::wire::{Hello, Versions};

/// A client, and a server that has the addresses of hosts 1 and 2.
struct Network {
    now: Time,
    client: Host,
    server: Host,
    /// The addresses of the server from which something came, in this order.
    from: Vec<SocketAddr>,
}

fn local(address: SocketAddr) -> Local {
    Local { address: address.ip(), interface: 0 }
}

impl Network {
    fn new(of_server: Settings) -> Self {
        let [client, server] = [(1, Settings::default()), (2, of_server)]
            .map(|(seed, settings)| Endpoint::new(settings, [seed; 32]));
        Self { now: Time::from_ns(1_000_000), client, server, from: Vec::new() }
    }

    /// Hands a datagram to the server as one that went to that of its addresses.
    fn ask(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.server.set_asked(Some(local(to)));
        self.server.handle_datagram(self.now, address(0), false, datagram);
    }

    fn settle(&mut self) {
        loop {
            self.now = self.now + Duration::from_micros(2);
            if let Some(transmit) = self.client.poll_transmit(self.now) {
                let (to, datagram) = (to(&transmit), whole(transmit));
                assert_eq!(to.local, None, "the client was asked at no address");
                self.ask(to.remote, datagram);
            } else if let Some(transmit) = self.server.poll_transmit(self.now) {
                let (to, datagram) = (to(&transmit), whole(transmit));
                assert_eq!(to.remote, address(0));
                let from = to.local.expect("from the address asked").at(address(0).port());
                self.from.push(from);
                self.client.handle_datagram(self.now, from, false, datagram);
            } else {
                return;
            }
        }
    }

    /// The addresses from which something came since this was asked last.
    fn senders(&mut self) -> Vec<SocketAddr> {
        self.settle();
        let mut from = std::mem::take(&mut self.from);
        from.dedup();
        from
    }

    /// Connects to an address of the server; returns both ends' peers.
    fn connect(&mut self, to: SocketAddr) -> (Peer, Peer) {
        let server = self.client.connect(self.now, to).unwrap();
        self.settle();
        assert_eq!(self.client.poll_event(), Some(Event::Connected(server, to)));
        let Some(Event::Accepted(client, _)) = self.server.poll_event() else { panic!("not accepted") };
        (server, client)
    }
}

fn to(transmit: &Transmit<'_, Vec<u8>>) -> Path {
    match transmit {
        Transmit::Packet { to, .. } | Transmit::Control { to, .. } => *to,
        Transmit::Unit { .. } => unreachable!("no unit was queued"),
    }
}

fn plain(text: &[u8]) -> Vec<u8> {
    let mut header = [0; framing::CHUNK_HEADER_BYTES_MAX];
    let header_bytes = framing::put_whole_header(Kind::Plain, text.len(), &mut header);
    [&header[..header_bytes], text].concat()
}

#[test]
fn two_connections_of_one_peer_have_an_address_each() {
    let mut network = Network::new(Settings::default());
    let peers = [1, 2].map(|host| network.connect(address(host)));
    assert_eq!(network.senders(), [address(1), address(2)]);
    for round in 0..3 {
        for (host, (server, client)) in [1, 2].into_iter().zip(peers) {
            network.server.queue(client, plain(b"to")).unwrap();
            assert_eq!(network.senders(), [address(host)], "round {round}");
            assert_eq!(network.client.receive().unwrap().peer(), server);
            network.client.queue(server, plain(b"from")).unwrap();
            network.settle();
            assert_eq!(network.server.receive().unwrap().peer(), client);
        }
        network.senders();
    }
    network.server.abort(peers[0].1);
    assert_eq!(network.senders(), [address(1)]);
    assert!(matches!(network.client.poll_event(), Some(Event::Lost(peer, _)) if peer == peers[0].0));
}

#[test]
fn connections_for_puts_have_the_address_of_their_main_one() {
    let settings = Settings { placement: true, ..Settings::default() };
    let mut network = Network::new(settings.clone());
    network.client = Endpoint::new(settings, [1; 32]);
    let (server, client) = network.connect(address(2));
    network.client.take_puts_of(server);
    network.senders();
    network.server.connect_beside(network.now, client).unwrap();
    network.server.set_asked(Some(local(address(1))));
    assert_eq!(network.senders(), [address(2)]);
}

#[test]
fn answers_to_strangers_come_from_the_address_asked() {
    let mut network = Network::new(Settings { accept: false, ..Settings::default() });
    let hello = |versions| {
        let mut datagram = Vec::new();
        Hello { versions, client_id: 7 }.emit(&mut datagram);
        datagram
    };
    let mut unknown = vec![0; HEADER_BYTES];
    unknown[0] = 1;
    let questions = [unknown, hello(Versions::HERE), hello(Versions { first: 200, last: 200 })];
    for question in questions {
        for host in [2, 1] {
            network.ask(address(host), question.clone());
            network.server.set_asked(Some(local(address(3))));
            assert_eq!(network.senders(), [address(host)], "{question:?}");
        }
    }
}

#[test]
fn a_cookie_is_for_the_address_that_was_asked() {
    let mut network = Network::new(Settings::default());
    network.client.connect(network.now, address(1)).unwrap();
    let hello = whole(network.client.poll_transmit(network.now).unwrap());
    network.ask(address(1), hello);
    let cookie = whole(network.server.poll_transmit(network.now).unwrap());
    network.client.handle_datagram(network.now, address(1), false, cookie);
    let connect = whole(network.client.poll_transmit(network.now).unwrap());
    network.ask(address(2), connect.clone());
    assert_eq!((network.server.counters().bad_cookies, network.server.peers()), (1, 0));
    network.ask(address(1), connect);
    assert_eq!((network.server.counters().bad_cookies, network.server.peers()), (1, 1));
}

#[test]
fn an_address_of_a_link_has_its_interface() {
    let of = |address: &str, interface| Local { address: address.parse::<IpAddr>().unwrap(), interface };
    assert_eq!(of("fe80::1", 3).at(7), "[fe80::1%3]:7".parse().unwrap());
    assert_eq!(of("::1", 0).at(7), "[::1]:7".parse().unwrap());
    assert_eq!(of("10.0.0.1", 0).at(7), "10.0.0.1:7".parse().unwrap());
}
