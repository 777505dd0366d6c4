//! Streams whose bytes depend on their position, from one end of a lab to the other, and a link that can lose
//! everything.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nocopy::Stats;
use nocopy::integration::tc::CountingDrop;
use nocopy::tcp::{Builder, Sender, Stream};
use nocopy_lab::Lab;
use nocopy_lab::patience::{uninterrupted, wait_until};

pub(crate) use super::PATIENCE;

/// Bytes that depend on their position in the stream.
pub(crate) fn stream_pattern(first: usize, bytes: usize) -> Vec<u8> {
    (first..first + bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Compares without printing the bytes.
pub(crate) fn assert_same(received: &[u8], sent: &[u8], what: impl std::fmt::Display) {
    assert_eq!(received.len(), sent.len(), "{what}: bytes received");
    let wrong = received.iter().zip(sent).position(|(one, other)| one != other);
    assert_eq!(wrong, None, "{what}: the first wrong byte");
}

/// Our socket at the left end, and an ordinary one at the right. The congestion control is one that every
/// kernel has.
pub(crate) fn connected_over_lab(lab: &Lab, builder: Builder) -> (Stream, TcpStream) {
    let listener = listener_in_lab(lab);
    connect_over_lab(lab, builder, &listener)
}

pub(crate) fn listener_in_lab(lab: &Lab) -> TcpListener {
    let address = SocketAddr::new(lab.right().ipv4().into(), 0);
    lab.right().namespace().run(|| TcpListener::bind(address)).unwrap()
}

pub(crate) fn connect_over_lab(lab: &Lab, builder: Builder, listener: &TcpListener) -> (Stream, TcpStream) {
    let to = listener.local_addr().unwrap();
    let connect = || {
        // Where this may not be set, the machine's own serves as well.
        let _ = std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
        builder.connect(to)
    };
    let socket = lab.left().namespace().run(connect).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, peer)
}

pub(crate) fn read_some(mut from: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    uninterrupted(|| from.read(buffer))
}

/// Closes the sending half, and returns whether everything was acknowledged, and the counters.
pub(crate) fn close_sender(socket: Stream, timeout: Duration) -> (bool, Stats) {
    let mut sender = socket.split().1;
    let is_all = sender.close(timeout).expect("the connection stands");
    (is_all, sender.stats())
}

pub(crate) fn read_all(mut peer: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("read to the end");
    all
}

/// As [`read_all`], on a thread.
pub(crate) fn read_all_in_thread(peer: TcpStream) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || read_all(&peer))
}

pub(crate) fn count_free_buffers(sender: &mut Sender) -> usize {
    let buffers: Vec<_> = std::iter::from_fn(|| sender.buffer()).collect();
    let count = buffers.len();
    buffers.into_iter().for_each(|buffer| sender.recycle(buffer));
    count
}

/// Loses all packets to the right end, until the result is dropped. `None`: skipped.
pub(crate) fn drop_all_packets(lab: &Lab) -> Option<CountingDrop> {
    if !CountingDrop::is_supported() {
        nocopy_lab::skip(&nocopy_lab::Missing::Kernel("tcx links (Linux 6.6)"));
        return None;
    }
    let right = lab.right();
    Some(right.namespace().run(|| CountingDrop::attach(right.interface()).unwrap()))
}

/// Waits until more packets are lost than before.
pub(crate) fn wait_for_retransmission(loss: &CountingDrop) {
    let before = loss.packets().unwrap();
    wait_until("a retransmission", || loss.packets().unwrap() > before);
}
