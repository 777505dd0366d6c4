//! A stream that is read by the code of endpoints: bytes say what its writer does, what is damaged on the
//! way, and in which pieces the rest arrives. Used by the fuzzer and by proptest.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nocopy_proto::message::framing::{Laid, put_whole_header};
use nocopy_proto::message::wire::Unit;
use nocopy_proto::message::{
    Arriving, Event, Kind, PUT_HEADER_BYTES, Peer, Piece, PutHeader, Region, Settings, Time, Transmit,
};
use rustix::io::ioctl_fionread;

use super::Protocol;
use super::memory::Memory;
use super::outgoing::{Limits, Outgoing};
use super::reading::{Look, Reading};
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferMut, Pool};
use crate::message::HEADER_BYTES;
use crate::message::arrivals::{Clock, Lone, Moment};
use crate::message::carrier::{Packet, Received};
use crate::message::placing::{Posted, Registered, gathered, straight};
use crate::tcp::{ReceiveMethod, Stream};

const MESSAGE_BYTES_MAX: usize = 12_000;
const WINDOW_PACKETS: usize = 64;
const REGION_BYTES: usize = 10_000;
const POSTED_BUFFERS: u32 = 2;
/// The number of a packet has this bit, that of a unit has not.
const PACKET: u32 = 1 << 30;
const SPAN: Range<usize> = 8..12;
const BEGIN: Time = Time::from_ns(1_000_000_000);
/// The most streams that are cut: a connection is lost if too many are before a unit is acknowledged.
const CUTS_MAX: u32 = 4;
/// The most steps until everything has come, with time between them.
const STEPS_MAX: u32 = 1000;
/// Bytes of the schedule that say how long pieces are.
const PIECES: usize = 4;

/// Does what the bytes say.
///
/// # Panics
/// When a message is received that was not written, or not in its order; when one is missing although nothing
/// was damaged; when memory is lost.
pub(crate) fn run(schedule: &[u8]) {
    let Some((&[how, pieces @ ..], mut rest)) = schedule.split_first_chunk::<{ 1 + PIECES }>() else {
        return;
    };
    let mut model = Model::new(how & 1 == 1, pieces);
    while let Some((&[what, a, b], behind)) = rest.split_first_chunk() {
        rest = behind;
        match what % 11 {
            0 => model.write_several(usize::from(a % 6), usize::from(b) * (1 + usize::from(a >> 5)), b),
            1 => model.write_one(u16::from_be_bytes([a, b]).into()),
            2 => model.write_packet(usize::from(a), b & 1 == 1),
            3 => {
                model.late_packets_arrive();
                model.time_passes();
            }
            4 => model.read_messages(usize::from(a)),
            5 => {
                let (raw, behind) = rest.split_at(rest.len().min(usize::from(a % 64)));
                rest = behind;
                model.insert(raw);
            }
            6 => model.damage = Some((usize::from(a) % HEADER_BYTES, b)).filter(|_| b != 0),
            7 => model.change_memory(),
            8 => model.offset = u16::from_be_bytes([a, b]).into(),
            9 => model.stall(b & 1 == 1, 8 * usize::from(a)),
            _ => model.cut(),
        }
        model.exchange();
    }
    model.end();
}

/// A TCP connection of this thread, which one run after the other uses.
struct Pipe {
    writer: TcpStream,
    reader: Stream,
    written: u64,
}

thread_local! {
    static PIPE: RefCell<Option<Pipe>> = const { RefCell::new(None) };
}

impl Pipe {
    fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let writer = TcpStream::connect(listener.local_addr()?)?;
        let (reader, _) = listener.accept()?;
        writer.set_nodelay(true)?;
        reader.set_nonblocking(true)?;
        let few = Pool::new(1, 4096)?;
        let builder = Stream::builder().send_pool(&few).receive_pool(&few);
        let builder = builder.receive_method(ReceiveMethod::Recv { bytes: 4096 });
        Ok(Self { writer, reader: builder.wrap(reader)?, written: 0 })
    }

    /// Writes bytes, and waits until they can be read, as everything before them of which `read` bytes were
    /// read.
    fn write(&mut self, bytes: &[u8], read: u64) {
        self.writer.write_all(bytes).expect("it is connected");
        self.written += bytes.len() as u64;
        while ioctl_fionread(self.reader.receiver().kernel_socket()).expect("it is a socket")
            < self.written - read
        {
            std::thread::yield_now();
        }
    }

    fn drain(&mut self) {
        let mut nowhere = [0; 4096];
        while let Ok(Some(1..)) = self.reader.receiver().read_now(&mut nowhere) {}
        self.written = 0;
    }
}

struct Model {
    pipe: Pipe,
    ends: [Protocol; 2],
    /// What each calls the other: on the connection for puts, if it is one.
    peers: [Peer; 2],
    /// What the reader calls the writer on the main connection.
    main: Peer,
    is_of_puts: bool,
    clock: Clock,
    now: Time,
    outgoing: Outgoing,
    packets: Vec<Vec<u8>>,
    /// Bytes of the stream that have not arrived, because it stalls.
    on_way: Vec<u8>,
    is_stalled: bool,
    late: Vec<Vec<u8>>,
    is_next_late: bool,
    reading: Reading,
    memory: Memory,
    pieces: [u8; PIECES],
    piece: usize,
    pool: Pool,
    posted: Arc<Posted>,
    registered: Arc<Registered>,
    region: Option<Region>,
    content: Vec<u8>,
    offset: u64,
    written: VecDeque<(Kind, Vec<u8>)>,
    number: u32,
    /// The byte of the next unit's header that is changed, and by which bits.
    damage: Option<(usize, u8)>,
    is_damaged: bool,
    /// A unit came with another span than its messages have: no message comes after it, unless it comes again
    /// by another stream.
    is_dead: bool,
    /// The stream is of no use any more.
    is_over: bool,
    cuts: u32,
}

impl Model {
    fn new(is_of_puts: bool, pieces: [u8; PIECES]) -> Self {
        let pipe = PIPE.take().unwrap_or_else(|| Pipe::open().expect("a connection over loopback"));
        let (ends, main, peers) = connected(is_of_puts);
        let memory = Memory::scarce(MESSAGE_BYTES_MAX).expect("memory");
        let pool = Pool::new(POSTED_BUFFERS, MESSAGE_BYTES_MAX).expect("memory");
        let (posted, registered) = (Arc::new(Posted::default()), Arc::new(Registered::default()));
        let region = is_of_puts.then(|| register(&registered, buffer_of(&[0; REGION_BYTES]), main[1]));
        let mut model = Self {
            pipe,
            ends,
            peers,
            main: main[1],
            is_of_puts,
            clock: Clock,
            now: BEGIN,
            outgoing: Outgoing::default(),
            packets: Vec::new(),
            on_way: Vec::new(),
            is_stalled: false,
            late: Vec::new(),
            is_next_late: false,
            reading: Reading::new(),
            memory,
            pieces,
            piece: 0,
            pool,
            posted,
            registered,
            region,
            content: vec![0; REGION_BYTES],
            offset: 0,
            written: VecDeque::new(),
            number: 0,
            damage: None,
            is_damaged: false,
            is_dead: false,
            is_over: false,
            cuts: 0,
        };
        model.memory.post_to(&model.posted);
        if is_of_puts {
            model.memory.put_to(&model.registered);
        }
        model
    }

    fn message(&mut self, bytes: usize) -> (Kind, Vec<u8>) {
        let number = self.number;
        self.number += 1;
        let bytes = bytes.min(MESSAGE_BYTES_MAX - PUT_HEADER_BYTES);
        let content = (0..bytes).map(|at| (at.wrapping_mul(31) ^ number as usize) as u8);
        let Some(region) = self.region else {
            let kind = [Kind::Plain, Kind::Request(number), Kind::Response(number)][number as usize % 3];
            return (kind, content.collect());
        };
        let header = PutHeader::new(region, self.offset).bytes();
        (Kind::Request(number), header.into_iter().chain(content).collect())
    }

    fn write_several(&mut self, messages: usize, bytes: usize, step: u8) {
        let messages: Vec<_> =
            (0..messages).map(|at| self.message((bytes + at * usize::from(step)) % 3000)).collect();
        if messages.is_empty() {
            return;
        }
        let limits = Limits {
            payload_bytes_max: self.payload_bytes_max(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            packets_max: WINDOW_PACKETS,
        };
        let mut unit = self.outgoing.open(1024, limits);
        for (kind, message) in &messages {
            unit.put(*kind, message);
        }
        let (load, span) = unit.close();
        let bytes = load.bytes();
        let number = self.outgoing.put(load);
        self.queue(number, span, bytes, messages);
    }

    /// Writes a unit of one message, of which the bytes lie elsewhere.
    fn write_one(&mut self, bytes: usize) {
        let (kind, message) = self.message(bytes);
        let mut laid = Laid::default();
        laid.add(kind, message.len(), self.payload_bytes_max());
        let rest: Buffers = std::iter::once(Buffer::from(message.clone())).collect();
        let load = self.outgoing.owned(kind, message.len(), rest);
        let bytes = load.bytes();
        let number = self.outgoing.put(load);
        self.queue(number, laid.packets() as u32, bytes, vec![(kind, message)]);
    }

    fn queue(&mut self, number: u32, span: u32, bytes: usize, messages: Vec<(Kind, Vec<u8>)>) {
        let [writer, _] = &mut self.ends;
        match writer.queue_unit(self.peers[0], Packet::unit(number), span, bytes as u32) {
            Ok(()) if self.is_damaged => {}
            Ok(()) => self.written.extend(messages),
            Err(_) => self.outgoing.release(number),
        }
    }

    fn write_packet(&mut self, bytes: usize, is_late: bool) {
        let (kind, message) = self.message(bytes);
        let mut payload = vec![0; 8];
        let header_bytes = put_whole_header(kind, message.len(), &mut payload);
        payload.truncate(header_bytes);
        payload.extend_from_slice(&message);
        self.packets.push(payload);
        let [writer, _] = &mut self.ends;
        let packet = Packet::unit(PACKET | (self.packets.len() as u32 - 1));
        if writer.queue(self.peers[0], packet).is_ok() {
            self.is_next_late = is_late;
            if !self.is_damaged {
                self.written.push_back((kind, message));
            }
        }
    }

    fn payload_bytes_max(&self) -> usize {
        self.ends[0].payload_bytes_max(self.peers[0]).unwrap_or(500) // of a peer that is gone
    }

    fn exchange(&mut self) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            self.now = self.now + Duration::from_micros(10);
            let now = self.now;
            let (mut units, mut datagrams) = (Vec::new(), Vec::new());
            let [writer, reader] = &mut self.ends;
            while let Some(transmit) = writer.poll_transmit(now) {
                match transmit {
                    Transmit::Control { datagram, .. } => datagrams.push(datagram.to_vec()),
                    Transmit::Unit { unit, header, .. } => {
                        units.push([&header, &*self.outgoing.get(unit.number()).messages()].concat());
                    }
                    Transmit::Packet { packet, header, .. } => {
                        let payload = &self.packets[(packet.number() & !PACKET) as usize];
                        let datagram = [&header[..], payload].concat();
                        match std::mem::take(&mut self.is_next_late) {
                            true => self.late.push(datagram),
                            false => datagrams.push(datagram),
                        }
                    }
                }
            }
            while let Some(transmit) = reader.poll_transmit(now) {
                let Transmit::Control { datagram, .. } = transmit else {
                    unreachable!("it sends no messages")
                };
                is_quiet = false;
                let datagram = Received::Bytes(datagram.into(), 0);
                writer.handle_datagram(now, ADDRESSES[1], false, datagram);
            }
            while let Some(packet) = writer.acknowledged() {
                if packet.number() & PACKET == 0 {
                    self.outgoing.release(packet.number());
                }
            }
            is_quiet &= units.is_empty() && datagrams.is_empty();
            datagrams.into_iter().for_each(|datagram| self.arrive(datagram));
            units.into_iter().for_each(|unit| self.carry(unit));
        }
    }

    fn arrive(&mut self, datagram: Vec<u8>) {
        let now = self.now;
        let [_, reader] = &mut self.ends;
        reader.handle_datagram(now, ADDRESSES[0], false, Received::Bytes(datagram.into(), 0));
        while reader.released().is_some() {}
    }

    fn time_passes(&mut self) {
        let due = self.ends.iter().filter_map(Protocol::poll_timeout).min();
        self.now = due.map_or(self.now, |due| due.max(self.now));
        let now = self.now;
        self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }

    fn late_packets_arrive(&mut self) {
        for datagram in std::mem::take(&mut self.late) {
            self.arrive(datagram);
        }
    }

    /// The stream is cut, and what has not been read of it is lost. The next one brings units that are not
    /// acknowledged again.
    fn cut(&mut self) {
        if self.cuts == CUTS_MAX {
            return;
        }
        self.cuts += 1;
        self.is_dead = false;
        self.on_way.clear();
        self.pipe.drain();
        self.reading = Reading::new();
        let [writer, _] = &mut self.ends;
        writer.stream_cut(self.now, self.peers[0]);
        let _ = writer.stream_opened(self.now, self.peers[0]); // it may be gone
    }

    fn carry(&mut self, mut unit: Vec<u8>) {
        if let Some((at, bits)) = self.damage.take() {
            let was_damaged = self.is_damaged;
            self.damage_begins();
            let written = unit.first_chunk().map(Unit::parse).and_then(Result::ok).expect("it is a unit");
            let is_next = self.ends[1].arriving(self.peers[1], &written) == Arriving::Next;
            self.is_dead |= !was_damaged && SPAN.contains(&at) && is_next && self.on_way.is_empty();
            unit[at] ^= bits;
        }
        self.on_way.extend_from_slice(&unit);
        self.flow(0);
    }

    fn insert(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.damage_begins();
            self.on_way.extend_from_slice(bytes);
            self.flow(0);
        }
    }

    /// What has come until now is as it was written; of what comes from here on nothing is known.
    fn damage_begins(&mut self) {
        self.read_everything();
        self.is_damaged = true;
        self.written.clear();
    }

    /// From here on the stream stalls or not; so many bytes arrive all the same.
    fn stall(&mut self, is_stalled: bool, bytes: usize) {
        self.is_stalled = is_stalled;
        self.flow(bytes);
    }

    fn flow(&mut self, most: usize) {
        let most = if self.is_stalled { most.min(self.on_way.len()) } else { self.on_way.len() };
        let mut bytes = std::mem::take(&mut self.on_way);
        self.on_way = bytes.split_off(most);
        let mut rest = &bytes[..];
        while !rest.is_empty() && !self.is_over {
            let long = usize::from(self.pieces[self.piece % PIECES]);
            self.piece += 1;
            // Where there are headers, each boundary is one that matters.
            let piece = if bytes.len() - rest.len() < 2 * HEADER_BYTES { 1 + long } else { 64 * (1 + long) };
            let (piece, behind) = rest.split_at(piece.min(rest.len()));
            rest = behind;
            self.pipe.write(piece, self.reading.counts.bytes);
            self.read_stream();
        }
    }

    fn read_stream(&mut self) {
        let Self { ends: [_, reader], clock, reading, memory, pipe, .. } = self;
        let mut moment = Moment::at(clock, self.now);
        reader.set_free(WINDOW_PACKETS);
        memory.read_in_place(true);
        // While others have their turn, few bytes are read at a time.
        let most = if self.pieces[0].is_multiple_of(2) { usize::MAX } else { 700 };
        while !self.is_over {
            let receiver = pipe.reader.receiver();
            match reading.read(most, receiver, memory, &mut moment, self.peers[1], reader) {
                Ok(Look::More) => {}
                Ok(Look::Empty | Look::Full) => break,
                Err(useless) => {
                    assert!(self.is_damaged || !reader.has_peer(self.peers[1]), "{useless}");
                    self.is_over = true;
                }
            }
        }
        while reader.released().is_some() {}
        if let Some(Lone { kind, place, .. }) = memory.take_lone() {
            let message = memory.held().take().expect("it holds the message").as_ref()[place.only()].to_vec();
            self.check(kind, &message);
        }
    }

    /// Reads so many messages at most, and what has come meanwhile.
    fn read_messages(&mut self, most: usize) {
        for _ in 0..most {
            let is_any = if self.is_of_puts { self.read_put() } else { self.read_message() };
            if !is_any {
                break;
            }
        }
        self.read_stream();
    }

    /// Reads until nothing comes any more: what waited for memory comes when others were read.
    fn read_everything(&mut self) {
        let state = |model: &Self| (model.written.len(), model.reading.counts.bytes);
        let mut before = None;
        while before.replace(state(self)) != Some(state(self)) {
            self.read_stream();
            self.read_messages(usize::MAX);
        }
    }

    fn read_message(&mut self) -> bool {
        let Self { ends: [_, reader], posted, .. } = self;
        let Some(next) = reader.peek() else { return false };
        let (is_placed, length) = (next.is_placed(), next.bytes());
        let (_, kind) = next.is_of();
        let (message, mut bytes) = (reader.receive_next(next), Vec::new());
        if is_placed {
            message.take(|piece| {
                let Piece::Datagram(Received::Placed(placed), _) = piece else {
                    unreachable!("nothing else is placed")
                };
                let buffer = placed.into_buffer();
                bytes.extend_from_slice(&buffer);
                posted.post(buffer.try_into_mut().expect("it was posted before"));
            });
        } else {
            message.pieces().for_each(|piece| bytes.extend_from_slice(piece));
            drop(message);
        }
        assert_eq!(bytes.len(), length);
        self.check(kind, &bytes);
        true
    }

    fn read_put(&mut self) -> bool {
        let [_, reader] = &mut self.ends;
        let Some(next) = reader.peek_beside(|_| true) else { return false };
        let ((peer, kind), is_straight) = (next.is_of(), next.is_placed());
        let main = reader.main_of(peer).expect("a connection for puts");
        let message = reader.receive_next(next);
        let Kind::Request(_) = kind else {
            assert!(self.is_damaged);
            return true;
        };
        let result = match is_straight {
            true => straight(message, main, &self.registered),
            false => gathered(&message, main, &self.registered),
        };
        let Some((kind_written, message)) = self.written.pop_front() else {
            assert!(self.is_damaged && !self.is_dead, "a put that was not written");
            return true;
        };
        assert_eq!(kind, kind_written);
        let (header, bytes) = message.split_first_chunk().expect("it has a header");
        if let Ok((region, offset, length)) = result {
            assert_eq!((*header, length), (PutHeader::new(region, offset).bytes(), bytes.len()));
            self.content[offset as usize..][..length].copy_from_slice(bytes);
        }
        true
    }

    fn check(&mut self, kind: Kind, bytes: &[u8]) {
        match self.written.pop_front() {
            Some(written) => assert!((kind, bytes) == (written.0, &written.1), "another message: {kind:?}"),
            None => assert!(self.is_damaged && !self.is_dead, "a message that was not written: {kind:?}"),
        }
    }

    fn change_memory(&mut self) {
        if let Some(region) = self.region.take() {
            let buffer = withdraw(&self.registered, region);
            self.content = buffer.to_vec();
            self.region = Some(register(&self.registered, buffer, self.main));
        } else if let Some(mut buffer) = self.pool.take() {
            buffer.resize(MESSAGE_BYTES_MAX);
            self.posted.post(buffer);
        }
    }

    fn end(mut self) {
        self.stall(false, 0);
        for _ in 0..STEPS_MAX {
            self.late_packets_arrive();
            self.read_everything();
            self.exchange();
            if self.written.is_empty() {
                break;
            }
            self.time_passes();
        }
        // A reader without memory ends a connection whose unit stalls: others may wait for that memory.
        let is_evicted = self.ends[1].counters().evicted > 0;
        if !self.is_damaged && !is_evicted {
            assert!(self.written.is_empty(), "{} messages did not come", self.written.len());
            if let Some(region) = self.region {
                let buffer = withdraw(&self.registered, region);
                assert!(buffer[..] == self.content[..], "the region holds something else");
            }
        }
        let Self { mut pipe, ends, reading, memory, pool, posted, .. } = self;
        drop((ends, reading, memory, posted));
        assert_eq!(pool.available(), POSTED_BUFFERS as usize, "a posted buffer is lost");
        pipe.drain();
        PIPE.set(Some(pipe));
    }
}

const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 1),
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 2),
];

/// Two connected ends with a stream from the first to the second; what each calls the other on the main
/// connection, and on that of the stream.
fn connected(is_of_puts: bool) -> ([Protocol; 2], [Peer; 2], [Peer; 2]) {
    let mut settings = Settings::default();
    (settings.datagram_bytes, settings.max_message_bytes) = (600, MESSAGE_BYTES_MAX as u32);
    (settings.window_packets, settings.streams, settings.placement) = (WINDOW_PACKETS, true, true);
    let mut ends = [1, 2].map(|seed| Protocol::new(settings.clone(), [seed; 32]));
    let to_reader = ends[0].connect(BEGIN, ADDRESSES[1]).expect("it is the first peer");
    settle(&mut ends);
    let Some(Event::Accepted(to_writer, _)) = ends[1].poll_event() else { unreachable!("nothing was lost") };
    let main = [to_reader, to_writer];
    let mut peers = main;
    if is_of_puts {
        ends[1].take_puts_of(to_writer);
        peers[0] = ends[0].connect_beside(BEGIN, to_reader).expect("the reader takes puts");
        settle(&mut ends);
        peers[1] = ends[1].poll_event_beside().expect("nothing was lost").peer();
    }
    ends[0].stream_opened(BEGIN, peers[0]).expect("it is connected");
    (ends, main, peers)
}

fn settle(ends: &mut [Protocol; 2]) {
    let mut is_quiet = false;
    while !std::mem::replace(&mut is_quiet, true) {
        for from in [0, 1] {
            let mut datagrams: Vec<Vec<u8>> = Vec::new();
            while let Some(transmit) = ends[from].poll_transmit(BEGIN) {
                let Transmit::Control { datagram, .. } = transmit else { unreachable!("nothing was queued") };
                datagrams.push(datagram.to_vec());
            }
            for datagram in datagrams {
                is_quiet = false;
                let datagram = Received::Bytes(datagram.into(), 0);
                ends[1 - from].handle_datagram(BEGIN, ADDRESSES[from], false, datagram);
            }
        }
    }
}

fn register(registered: &Registered, buffer: BufferMut, writer: Peer) -> Region {
    let bytes = buffer.len() as u64;
    registered.with(|regions| regions.register(writer, buffer, bytes))
}

fn withdraw(registered: &Registered, region: Region) -> BufferMut {
    registered.with(|regions| regions.withdraw(region)).expect("it is registered")
}

fn buffer_of(bytes: &[u8]) -> BufferMut {
    let mut buffer = Pool::new(1, bytes.len()).expect("memory").take().expect("it is the first");
    buffer.fill(bytes).expect("it has room");
    buffer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// A reader without memory ends the connection whose unit stalls, and then the rest of its stream belongs
    /// to nobody (found by the fuzzer).
    #[test]
    fn a_stream_of_an_evicted_peer_is_given_up() {
        const SCHEDULE: &str = "ffffffff2c4aff000000ffffffff9d9d9d9d9d9d409d9d9d9d3a9d9d9d9d9d9d9dbebebebebebebebebebe0100000002\
            f5d3eeff00000049ffff0000000000ff06000000000000f9ffdfffffffffffffffff000000000000ffffffffffffffff\
            ffffff00000000033bffffdfff28ffffffffffffffffff9d9d9d9d9d9d9d9d9d009d9d9d9d9d9d9d9d9d9d9d9d9d9d9d\
            28ffffffff9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d9d\
            9d9d9d9d9d9d9d9d9dffffff01009d9d9d9d9d9d9d9d9d010000009d9d9d9d9d9dff9d9d9d9d9d9d9d9d9d9d9d9d9d9d\
            9d9d9d9d9d9d9d9d9dffffff01009d9d9d9d9d9d9d9d9d9d9d9d9d9d010000009d9d9d9d9d02f5d3eeff9d9d9d9d9d9d\
            9d9d9d9d010000009d9d9d9d9d9dffffffff0100000002f5d3eeff";
        let hex = SCHEDULE.as_bytes().chunks(2).map(|digits| std::str::from_utf8(digits).unwrap());
        let schedule: Vec<u8> = hex.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect();
        super::run(&schedule);
    }

    proptest! {
        #[test]
        fn any_stream_is_survived(schedule in prop::collection::vec(any::<u8>(), 0..300)) {
            super::run(&schedule);
        }

        /// Nothing is damaged: all messages arrive, in whatever pieces.
        #[test]
        fn messages_in_any_pieces_arrive(
            how in 0u8..2,
            pieces: [u8; 4],
            steps in prop::collection::vec((0usize..9, any::<u8>(), any::<u8>()), 0..60),
        ) {
            let steps = steps.into_iter().flat_map(|(what, a, b)| [[0, 1, 2, 3, 4, 7, 8, 9, 10][what], a, b]);
            let schedule: Vec<u8> = [how].into_iter().chain(pieces).chain(steps).collect();
            super::run(&schedule);
        }
    }
}
