//! A peer of the message protocol that sends the units of its stream slowly, but not so slowly that it is cut
//! (docs/protocol.md §16).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU64;

use nocopy_proto::message::Kind;
use nocopy_proto::message::framing::{packets, put_whole_header, whole_header_bytes};
use nocopy_proto::message::wire::{
    Accept, Attach, Connect, Datagram, Flags, HEADER_BYTES, Header, HeaderKind, Hello, Parameters, Placement,
    Unit, Versions, emit_ack,
};

use super::connect_from_address;
use crate::running::PATIENCE;

const DATAGRAM_BYTES: usize = 1472;
const MESSAGE_BYTES: usize = 240_000;
const CREDIT: u32 = 1024;

pub(super) struct SlowStream {
    datagrams: UdpSocket,
    stream: TcpStream,
    accept: Accept,
    sequence: u32,
    /// The unit, and how much of it is sent.
    unit: Vec<u8>,
    sent: usize,
}

impl SlowStream {
    /// Connects as every client does, and opens a stream; `None` if the server has no room for it.
    pub(super) fn open(from: IpAddr, to: SocketAddr, client_id: u64) -> Option<Self> {
        let datagrams = UdpSocket::bind((from, 0)).unwrap();
        datagrams.connect(to).unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut out, mut room) = (Vec::new(), [0; 2048]);
        Hello { versions: Versions::HERE, client_id }.emit(&mut out);
        datagrams.send(&out).ok()?;
        let bytes = datagrams.recv(&mut room).ok()?;
        let Ok(Datagram::Cookie(cookie)) = Datagram::parse(&room[..bytes]) else { return None };
        let parameters = Parameters {
            datagram_bytes: DATAGRAM_BYTES as u16,
            max_message_bytes: 1 << 20,
            initial_credit: CREDIT,
            first_sequence: 1000,
            crc: false,
            stream_key: None,
            placement: Placement::None,
        };
        Connect { client_id, cookie: cookie.cookie, parameters }.emit(&mut out);
        datagrams.send(&out).ok()?;
        let accept = loop {
            let bytes = datagrams.recv(&mut room).ok()?;
            match Datagram::parse(&room[..bytes]) {
                Ok(Datagram::Accept(accept)) => break accept,
                Ok(Datagram::Abort(_)) => return None,
                _ => {}
            }
        };
        datagrams.set_nonblocking(true).unwrap();
        let stream = connect_from_address(from, to).ok()?;
        let key: NonZeroU64 = accept.parameters.stream_key?;
        let mut opened = Self { datagrams, stream, accept, sequence: 1000, unit: Vec::new(), sent: 0 };
        opened.acknowledge();
        Attach { to: accept.server_id, from: client_id, key }.emit(&mut out);
        opened.stream.write_all(&out).ok()?;
        opened.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        opened.stream.read_exact(&mut room[..16]).ok()?;
        opened.stream.set_nonblocking(true).unwrap();
        opened.start_stream();
        Some(opened)
    }

    fn ack_header(&self) -> Header {
        let expected = self.accept.parameters.first_sequence;
        Header {
            kind: HeaderKind::Ack,
            flags: Flags::NONE,
            marked: 0,
            to: self.accept.server_id,
            sequence: self.sequence,
            expected,
            credit: expected.wrapping_add(CREDIT),
            sent: 0,
            echo: 0,
        }
    }

    /// A sign of life.
    fn acknowledge(&self) {
        let mut out = Vec::new();
        let expected = self.accept.parameters.first_sequence;
        emit_ack(&self.ack_header(), expected.into(), [], &mut out);
        let _ = self.datagrams.send(&out);
    }

    fn start_stream(&mut self) {
        let head = whole_header_bytes(Kind::Plain);
        // As many as the message would take by datagrams.
        let span = packets(Kind::Plain, MESSAGE_BYTES, DATAGRAM_BYTES - HEADER_BYTES) as u32;
        let bytes = (head + MESSAGE_BYTES) as u32;
        let mut unit = [0; HEADER_BYTES];
        Unit { header: Header { to: 0, ..self.ack_header() }, bytes, span }.emit(&mut unit);
        self.unit = unit.to_vec();
        self.unit.resize(HEADER_BYTES + head, 0);
        put_whole_header(Kind::Plain, MESSAGE_BYTES, &mut self.unit[HEADER_BYTES..]);
        self.unit.resize(HEADER_BYTES + bytes as usize, 0);
        (self.sent, self.sequence) = (0, self.sequence.wrapping_add(span));
    }

    /// Sends that much more of its unit, and begins the next one at its end; an error once the server has
    /// ended the stream.
    pub(super) fn continue_stream(&mut self, bytes: usize) -> io::Result<()> {
        let end = self.unit.len().min(self.sent + bytes);
        match self.stream.write(&self.unit[self.sent..end]) {
            Ok(count) => self.sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.sent == self.unit.len() {
            self.start_stream();
        }
        self.acknowledge();
        let mut came = [0; 2048];
        match self.stream.read(&mut came) {
            Ok(0) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        while self.datagrams.recv(&mut came).is_ok() {}
        Ok(())
    }
}
