//! Counts the instructions of a call with a datagram, with four short ones from buffers of their own, with 44
//! that the kernel cuts from one, and of a TCP write, from taking the buffers until they are free again.
//! `cargo xtask instructions` runs this under callgrind, collects only inside the functions named
//! `measured_*`, and divides by the calls. The kernel's work is not counted, and nothing is copied into the
//! buffers: how many instructions that takes depends on the processor.
#![allow(missing_docs)]

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use nocopy::{tcp, udp};

const BATCH: u32 = 64;
const DATAGRAM_BYTES: usize = 1400;
const SEGMENTS: usize = 44;
/// Datagrams that are queued one by one and flushed together, and the length of each.
const GROUP: usize = 4;
const SHORT_BYTES: usize = 64;
const WRITE_BYTES: usize = 64 << 10;
/// Room for writes that nobody has read yet.
const ROOM_BYTES: usize = 1 << 20;

/// Longer than any wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    for (name, work) in [
        (
            "datagram-alone",
            (|calls| run_sends(calls, udp::Method::Socket, 1, measured_datagram_send)) as fn(u32),
        ),
        ("datagram-group", |calls| run_sends(calls, udp::Method::Gso, GROUP, measured_group_send)),
        ("datagram-burst", |calls| run_sends(calls, udp::Method::Gso, SEGMENTS, measured_burst_send)),
        ("tcp-write", run_stream_writes),
    ] {
        if which == name || which == "all" {
            work(batches * BATCH);
            println!("{name}: {} calls", batches * BATCH);
        }
    }
}

/// Calls `send` that often, each time for so many datagrams.
fn run_sends(calls: u32, method: udp::Method, datagrams: usize, send: fn(&mut udp::Sender)) {
    let (mut socket, _sink) = open_socket_and_sink(method);
    (0..calls).for_each(|_| send(socket.sender()));
    assert_eq!(socket.sender().stats().moved, u64::from(calls) * datagrams as u64);
}

#[inline(never)]
fn measured_datagram_send(sender: &mut udp::Sender) {
    let mut buffer = sender.buffer().expect("one is free");
    buffer.resize(DATAGRAM_BYTES);
    sender.send(udp::Message::from(buffer)).expect("room");
    sender.flush().expect("a working network");
}

#[inline(never)]
fn measured_group_send(sender: &mut udp::Sender) {
    for _ in 0..GROUP {
        let mut buffer = sender.buffer().expect("one is free");
        buffer.resize(SHORT_BYTES);
        sender.send(buffer).expect("room");
    }
    sender.flush().expect("a working network");
}

#[inline(never)]
fn measured_burst_send(sender: &mut udp::Sender) {
    let mut buffer = sender.buffer().expect("one is free");
    buffer.resize(SEGMENTS * DATAGRAM_BYTES);
    sender.send(udp::Message::segments(buffer, DATAGRAM_BYTES)).expect("room");
    sender.flush().expect("a working network");
}

/// A socket that sends, and the one that gets the datagrams; those that it has no room for are lost.
fn open_socket_and_sink(method: udp::Method) -> (udp::Socket, UdpSocket) {
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("an address of this host");
    let builder = udp::Socket::builder().method(method);
    let mut socket = builder.bind((Ipv4Addr::LOCALHOST, 0)).expect("an address of this host");
    socket.connect(sink.local_addr().expect("bound")).expect("an address of this host");
    (socket, sink)
}

fn run_stream_writes(calls: u32) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("an address of this host");
    let builder = tcp::Stream::builder().method(tcp::Method::Plain).send_buffer(ROOM_BYTES);
    let mut stream = builder.connect(listener.local_addr().expect("bound")).expect("a listener");
    let (mut peer, _) = listener.accept().expect("connected");
    let mut read = vec![0; WRITE_BYTES];
    for _ in 0..calls {
        measured_stream_write(stream.sender());
        peer.read_exact(&mut read).expect("a working network");
    }
    stream.sender().drain(PATIENCE).expect("all is sent");
}

#[inline(never)]
fn measured_stream_write(sender: &mut tcp::Sender) {
    let mut buffer = sender.buffer().expect("one is free");
    buffer.resize(WRITE_BYTES);
    sender.send(buffer).expect("room");
    sender.flush().expect("a working network");
}
