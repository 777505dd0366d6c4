//! A stream whose bytes tell where they belong, from a socket of ours at the left end to an ordinary one at the right.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use nocopy::socket::tcp::{Method, Socket};
use nocopy::{Buffer, Evidence, Tally};
use nocopy_lab::Lab;
use serde_json::json;

use super::Guest;
use super::datagrams::Memory;
use super::meter::{Copies, Meter, Way};
use super::traffic::ARRIVAL_MAX;
use crate::registry::Failure;

/// In all.
pub(crate) const BYTES: u64 = 1 << 20;

/// Of a buffer. No whole number of them makes the stream, nor of pages a buffer.
const PIECE_BYTES: usize = 50_000;

/// What is sent how, and what is to come of it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    pub(crate) memory: Memory,
    /// What the sender learns of every buffer.
    pub(crate) evidence: Evidence,
}

/// Sends a stream across, checks that it arrives byte for byte, and that its memory comes back with the evidence, and adds a row to
/// the report. Returns what the sender's ledger says, and what the kernel copied.
pub(crate) fn measure(guest: &Guest, meter: &Meter, case: &Case) -> Result<(Tally, Copies), Failure> {
    let (mut socket, reader) = open(guest.lab(), case.method)?;
    let copies = meter.copies(|| {
        send(&mut socket, case)?;
        arrives(reader)
    })?;
    let (ledger, counters) = (socket.sender().ledger(), socket.sender().counters());
    assert_eq!((counters.no_buffers_bytes, counters.strange_completions), (0, 0));
    guest.record(&json!({
        "method": case.method.name(),
        "case": case.name,
        "stream_bytes": BYTES,
        "ledger": ledger.to_string(),
        "copies_per_byte": copies.bytes(Way::Sent) as f64 / BYTES as f64,
        "copied_by": copies.of(Way::Sent),
    }));
    assert_eq!(ledger.bytes(), BYTES, "{ledger}");
    Ok((ledger, copies))
}

fn open(lab: &Lab, method: Method) -> Result<(Socket, JoinHandle<Result<Vec<u8>, std::io::Error>>), Failure> {
    let (left, right) = (lab.left(), lab.right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let builder = Socket::builder().method(method).return_buffers(true);
    let socket = left.namespace().run(|| builder.connect(to))?;
    let (stream, _) = listener.accept()?;
    Ok((socket, thread::spawn(move || read(stream))))
}

fn read(mut stream: TcpStream) -> Result<Vec<u8>, std::io::Error> {
    stream.set_read_timeout(Some(ARRIVAL_MAX))?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(all)
}

fn arrives(reader: JoinHandle<Result<Vec<u8>, std::io::Error>>) -> Result<(), Failure> {
    let (arrived, sent) = (reader.join().expect("it only reads")?, stream());
    assert_eq!(arrived.len(), sent.len(), "bytes that arrived");
    let wrong = arrived.iter().zip(&sent).position(|(arrived, sent)| arrived != sent);
    assert_eq!(wrong, None, "the first byte that is not what was sent");
    Ok(())
}

fn send(socket: &mut Socket, case: &Case) -> Result<(), Failure> {
    let (sender, mut back_bytes) = (socket.sender(), 0);
    for piece in stream().chunks(PIECE_BYTES) {
        let buffer = match case.memory {
            Memory::Foreign => Buffer::from(piece.to_vec()),
            Memory::Pool => {
                let mut buffer = sender.buffer().expect("more than the stream takes");
                buffer.fill(piece).expect("a piece fits a buffer");
                buffer
            }
        };
        sender.send(buffer)?;
        sender.flush()?;
    }
    sender.finish()?;
    if !sender.drain(ARRIVAL_MAX)? {
        return Err(Failure(format!("{} calls are not completed", sender.in_flight())));
    }
    while let Some(done) = sender.completed() {
        assert_eq!(done.evidence, case.evidence, "{}, {}", case.method, case.name);
        back_bytes += done.buffer.len();
    }
    assert_eq!(back_bytes as u64, BYTES, "all of the memory is back");
    Ok(())
}

fn stream() -> Vec<u8> {
    (0..BYTES as usize).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
