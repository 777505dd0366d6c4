//! One program of five lines over every kind of I/O: it sends back everything that it receives.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use nocopy::message::{Endpoint, Event};
use nocopy::tcp::Listener;
use nocopy::udp::Socket;
use nocopy::{Mode, Port};
use nocopy_lab::patience::PATIENCE;

const TEXT: &[u8] = b"the same program for every kind";

/// The program, with a destination, and for halves with only one.
macro_rules! send_back {
    ($receiver:expr, $sender:expr, to $source:ident) => {
        let came: Vec<_> = $receiver.receive()?.into_iter().map(|item| item.take()).collect();
        for item in came {
            let to = item.$source();
            $sender.send_to(item, to).map_err(|rejected| rejected.reason)?;
        }
        $sender.flush()?;
    };
    ($receiver:expr, $sender:expr) => {
        let came: Vec<_> = $receiver.receive()?.into_iter().map(|item| item.take()).collect();
        for item in came {
            $sender.send(item).map_err(|rejected| rejected.reason)?;
        }
        $sender.flush()?;
    };
}

#[test]
fn packets_are_sent_back() -> Result<(), Box<dyn Error>> {
    let (port, mut peer) = Port::memory_pair()?;
    peer.sender().send_copy(TEXT)?;
    peer.sender().flush()?;
    let (mut receiver, mut sender) = port.split();
    send_back!(receiver, sender);
    let packet = peer.receiver().receive()?.next().ok_or("nothing came back")?;
    assert_eq!(*packet, *TEXT);
    Ok(())
}

/// One round with a client of the standard library.
fn send_back_datagrams(socket: Socket, client: &UdpSocket) -> Result<(), Box<dyn Error>> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.send_to(TEXT, socket.local_addr()?)?;
    let (mut receiver, mut sender) = socket.split();
    send_back!(receiver, sender, to source);
    let mut room = [0; 64];
    let (bytes, _) = client.recv_from(&mut room)?;
    assert_eq!(room[..bytes], *TEXT);
    Ok(())
}

#[test]
fn datagrams_are_sent_back_by_the_kernel() -> Result<(), Box<dyn Error>> {
    let any: SocketAddr = "127.0.0.1:0".parse()?;
    send_back_datagrams(Socket::bind(any)?, &UdpSocket::bind(any)?)
}

#[test]
fn datagrams_are_sent_back_over_a_port() -> Result<(), Box<dyn Error>> {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return Ok(()) };
    let (local, remote) = (lab.left().ipv4(), lab.right().ipv4());
    let port = Port::builder(lab.left().interface()).mode(Mode::XdpCopyNative);
    let bind = || Socket::builder().port(port).bind((local, 7001));
    let client = lab.right().namespace().run(|| UdpSocket::bind((remote, 7002)))?;
    send_back_datagrams(lab.left().namespace().run(bind)?, &client)
}

#[test]
fn a_stream_is_sent_back() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(TEXT)?;
    let (stream, _) = listener.accept()?;
    let (mut receiver, mut sender) = stream.split();
    send_back!(receiver, sender);
    let mut room = [0; TEXT.len()];
    client.read_exact(&mut room)?;
    assert_eq!(room, *TEXT);
    Ok(())
}

#[test]
fn messages_are_sent_back() -> Result<(), Box<dyn Error>> {
    let mut endpoint = Endpoint::bind("127.0.0.1:0")?;
    let to = endpoint.local_addr();
    let client = std::thread::spawn(move || {
        let mut client = Endpoint::bind("127.0.0.1:0").expect("bound");
        let peer = client.connect(to, PATIENCE).expect("connected");
        client.send_copy_to(TEXT, peer).expect("room");
        client.flush().expect("sent");
        loop {
            if let Some(message) = client.receive().expect("received") {
                return message.to_vec();
            }
            assert!(!matches!(client.poll_event(), Some(Event::Lost(..))), "the connection was lost");
        }
    });
    while !client.is_finished() {
        // An event also ends a wait, without anything received.
        while endpoint.poll_event().is_some() {}
        if !endpoint.arm()? {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        send_back!(endpoint, endpoint, to peer);
    }
    assert_eq!(client.join().expect("no panic"), TEXT);
    Ok(())
}
