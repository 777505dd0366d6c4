//! Every half, by name: this does not compile if a half lacks a method, or has another type for it.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use nocopy::message::{Endpoint, Peer};
use nocopy::{
    Buffer, Capture, Completed, Explanation, Frame, Ledger, Port, Reason, Rejected, Stats, Wait, port, tcp,
    udp,
};

const TIME: Duration = Duration::from_secs(1);

receives! {
    packets: port::Receiver,
    packets_of_queues: port::Queues,
    packets_captured: Capture,
    datagrams: udp::Receiver,
    rows_of_chunks: udp::PlacedReceiver,
    stream: tcp::Receiver,
    messages: Endpoint,
}

sends! {
    packets_sent: port::Sender, send, send_copy;
    datagrams_sent: udp::Sender, send, send_copy;
    datagrams_sent_to: udp::Sender, send_to, send_copy_to, to to: SocketAddr;
    stream_sent: tcp::Sender, send, send_copy;
    messages_sent: Endpoint, send_to, send_copy_to, to to: Peer;
}

/// One completion: with a ticket if `send` returned one, or the frame itself.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn take_one_completion(
    packets: &mut port::Sender,
    datagrams: &mut udp::Sender,
    stream: &mut tcp::Sender,
) -> (Option<Frame>, Option<Completed<udp::Message>>, Option<Completed<Buffer>>) {
    (packets.completed(), datagrams.completed(), stream.completed())
}

/// A port returns the same explanation as its halves.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn explain_port(port: &Port) -> Explanation {
    port.explain()
}
