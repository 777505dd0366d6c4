//! Encodes calls and interprets replies, without sockets, clock or randomness.
//!
//! All connections share one numbering of calls, so that a call can be repeated over another connection. For
//! each connection the core says where to receive the next bytes ([`ReceiveBuffers`]): into the posted buffer
//! of the call that the reply names, then into memory for the next header. Lengths in a reply are compared
//! with the call before any data is received, so a server decides neither how much memory is used nor which
//! memory is written to.
//!
//! **When a connection is lost**, its calls are sent again with the same numbers, by which a server can
//! recognise calls that it has already executed.
//!
//! **Writes** are sent as `UNSTABLE`, and kept until the reply to a COMMIT has the same verifier as their
//! replies. Writes with another verifier were lost by a restart of the server, and are sent again. Writes to
//! the same bytes between two commits have no order.

mod bad_reply;
mod call;
pub mod oracle;
mod receive_buffers;
mod replies;
mod reply_parser;
#[cfg(test)]
mod tests;
mod uncommitted;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use nocopy::{Buffer, BufferMut, Pool, Reason, Rejected};

pub use bad_reply::BadReply;
use call::{Call, ReadRequest, Request, WriteRequest};
pub use call::{CallError, Completion, FilePosition, ReadMetadata, StatusText, Ticket};
use receive_buffers::Pieces;
pub use receive_buffers::ReceiveBuffers;
use reply_parser::{ReplyEvent, ReplyParser};
use uncommitted::UncommittedWrites;

use crate::wire::nfs3::{FileHandle, Procedure, ReadArguments, Stability, WRITE_BYTES_MAX};
use crate::wire::rpc::{self, AUTH_SYS, Credential};
use crate::wire::xdr::Xdr;
use crate::wire::{nfs3, record};

/// Queued reads may wait while so many calls per queued read are in flight.
const IN_FLIGHT_PER_QUEUED: usize = 3;

/// The most bytes of consecutive reads that share a call. A server needs about as long for one call as to
/// send 100 KiB; longer replies would leave the processor's cache before they are received.
const JOINED_BYTES_MAX: usize = 512 << 10;

/// How many of the latest calls are searched for the buffer that was posted last; a few of them may be of
/// other kinds.
const LATEST_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcedureNumber {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

impl From<Procedure> for ProcedureNumber {
    fn from(procedure: Procedure) -> Self {
        Self { program: nfs3::PROGRAM, version: nfs3::VERSION, procedure: procedure as u32 }
    }
}

/// The most bytes of one READ and one WRITE, by the server's FSINFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferLimits {
    pub read_bytes_max: usize,
    pub write_bytes_max: usize,
}

impl Default for TransferLimits {
    /// Lengths that every server accepts.
    fn default() -> Self {
        Self { read_bytes_max: 8192, write_bytes_max: 8192 }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreCounts {
    /// Calls, without repetitions.
    pub calls: u64,
    /// Calls sent again because their connection was lost.
    pub retransmitted_calls: u64,
    /// Complete and correct replies.
    pub replies: u64,
    /// Replies that no correct server gives.
    pub bad_replies: u64,
    pub reads: u64,
    /// Bytes of files that were received.
    pub read_bytes: u64,
    /// Those of them that were received with a header, or in a record of several fragments, and copied a
    /// second time.
    pub moved_bytes: u64,
    /// Reads that shared the call of another one.
    pub joined: u64,
    /// Acknowledged writes.
    pub writes: u64,
    /// Bytes of acknowledged writes, repetitions included.
    pub written_bytes: u64,
    /// Bytes sent again because the server lost them.
    pub lost_bytes: u64,
}

/// Calls and their replies, over any number of connections.
#[derive(Debug)]
pub struct Core {
    /// The body of the credential of AUTH_SYS.
    credential: Vec<u8>,
    limits: TransferLimits,
    xid: u32,
    ticket: u64,
    /// By number. Boxed, since a map moves its values at each removal.
    calls: BTreeMap<u32, Box<Call>>,
    /// Numbers of calls to be sent, in this order.
    queue: VecDeque<u32>,
    parsers: Vec<ReplyParser>,
    uncommitted: UncommittedWrites,
    completions: VecDeque<Completion>,
    /// Reads and writes for which the server is not ready.
    delayed: Vec<Request>,
    delays_max: u32,
    /// The current limit of bytes of a shared call.
    joined_bytes_max: usize,
    counts: CoreCounts,
    /// The addresses of the pool whose buffers may be exchanged.
    pool: Range<usize>,
}

impl Core {
    /// A core for this number of connections. `xid`, the number of the first call, should be random, so that
    /// a server does not mistake the calls for those of an earlier client.
    pub fn new(connections: usize, xid: u32, credential: Vec<u8>) -> Self {
        Self {
            credential,
            limits: TransferLimits::default(),
            xid,
            ticket: 0,
            calls: BTreeMap::new(),
            queue: VecDeque::new(),
            parsers: (0..connections).map(|_| ReplyParser::default()).collect(),
            uncommitted: UncommittedWrites::default(),
            completions: VecDeque::new(),
            delayed: Vec::new(),
            delays_max: 0,
            joined_bytes_max: JOINED_BYTES_MAX,
            counts: CoreCounts::default(),
            pool: 0..0,
        }
    }

    /// Names the pool whose buffers may be exchanged among posted reads when a reply arrives. Other memory
    /// receives exactly the read that it was posted for. Buffers of the pool in use now count as other
    /// memory.
    pub fn set_pool(&mut self, pool: &Pool) {
        let buffers: Vec<BufferMut> = std::iter::from_fn(|| pool.take()).collect();
        let first = |buffer: &BufferMut| buffer.as_ptr().addr();
        let begin = buffers.iter().map(first).min().unwrap_or(0);
        let end = buffers.iter().map(|buffer| first(buffer) + buffer.capacity()).max().unwrap_or(0);
        // Returned in reverse, so that the pool has its order again.
        buffers.into_iter().rev().for_each(drop);
        self.pool = begin..end;
    }

    /// Sets the most bytes of later READ and WRITE calls.
    pub fn set_limits(&mut self, limits: TransferLimits) {
        let TransferLimits { read_bytes_max, write_bytes_max } = limits;
        self.limits = TransferLimits {
            read_bytes_max: read_bytes_max.max(1),
            write_bytes_max: write_bytes_max.clamp(1, WRITE_BYTES_MAX),
        };
    }

    /// Sets how often a read or write is [repeated](Self::resume_delayed) while the server is not ready
    /// (NFS3ERR_JUKEBOX), before it fails.
    pub fn set_delays_max(&mut self, times: u32) {
        self.delays_max = times;
    }

    /// The most bytes of one READ and one WRITE call.
    pub fn limits(&self) -> TransferLimits {
        self.limits
    }

    /// Makes a call whose reply has at most `bytes_max` bytes.
    pub fn call<'a>(
        &mut self,
        procedure: ProcedureNumber,
        arguments: &impl Xdr<'a>,
        bytes_max: usize,
    ) -> Ticket {
        let ticket = self.next_ticket();
        self.queue_call(procedure, arguments, Request::Plain { ticket, bytes_max });
        ticket
    }

    /// Starts a read of as many bytes as the buffer holds or, if it is empty, has room for. Fewer are read
    /// only at the end of the file.
    ///
    /// # Errors
    /// The buffer has no capacity.
    pub fn post(
        &mut self,
        mut buffer: BufferMut,
        place: FilePosition,
    ) -> Result<Ticket, Rejected<BufferMut>> {
        if buffer.is_empty() {
            buffer.resize(buffer.capacity());
        }
        if buffer.is_empty() {
            return Err(Rejected { item: buffer, reason: Reason::Empty });
        }
        let ticket = self.next_ticket();
        self.queue_read(ReadRequest::new(ticket, buffer, place));
        Ok(ticket)
    }

    /// Starts a write. The buffer is kept until a [`commit`](Self::commit) confirms that its bytes are on the
    /// server's disk.
    ///
    /// # Errors
    /// The buffer is empty.
    pub fn write(&mut self, data: impl Into<Buffer>, place: FilePosition) -> Result<(), Rejected<Buffer>> {
        let data = data.into();
        if data.is_empty() {
            return Err(Rejected { item: data, reason: Reason::Empty });
        }
        let range = 0..data.len();
        self.begin_write(WriteRequest { buffer: Arc::new(data), range, place, delays: 0 });
        Ok(())
    }

    /// Starts a commit of all earlier writes to the file. `None` while another commit of the file is in
    /// progress.
    pub fn commit(&mut self, file: FileHandle) -> Option<Ticket> {
        if self.uncommitted.is_committing(file) {
            return None;
        }
        let ticket = self.next_ticket();
        self.uncommitted.begin_commit(file, ticket);
        self.advance_commit(file);
        Some(ticket)
    }

    fn next_ticket(&mut self) -> Ticket {
        self.ticket += 1;
        Ticket(self.ticket)
    }

    fn queue_call<'a>(&mut self, procedure: ProcedureNumber, arguments: &impl Xdr<'a>, work: Request) {
        while self.calls.contains_key(&self.xid) {
            self.xid = self.xid.wrapping_add(1);
        }
        let xid = self.xid;
        self.xid = xid.wrapping_add(1);
        let head = self.encode_call(xid, procedure, arguments);
        let mut call = Call { head, request: work, connection: None, times_sent: 0 };
        let [_, data, padding] = call.record_pieces();
        let more = data.len() + padding.len();
        record::end(&mut call.head, more);
        self.calls.insert(xid, Box::new(call));
        self.queue.push_back(xid);
        self.counts.calls += 1;
    }

    fn encode_call<'a>(&self, xid: u32, procedure: ProcedureNumber, arguments: &impl Xdr<'a>) -> Vec<u8> {
        let mut encoded = Vec::new();
        arguments.encode(&mut encoded);
        let ProcedureNumber { program, version, procedure } = procedure;
        let credential = Credential { flavor: AUTH_SYS, body: &self.credential };
        let mut head = record::begin();
        rpc::Call { xid, program, version, procedure, credential, arguments: &encoded }.encode(&mut head);
        head
    }

    fn queue_read(&mut self, mut reading: ReadRequest) {
        let left = reading.buffer.len() - reading.filled;
        reading.asked = left.min(self.limits.read_bytes_max).min(u32::MAX as usize);
        (reading.head, reading.received) = (None, 0);
        let FilePosition { file, offset } = reading.place.advanced_by(reading.filled);
        let asked = ReadArguments { file, offset, bytes: reading.asked as u32 };
        self.queue_call(Procedure::Read.into(), &asked, Request::Read(reading));
    }

    /// In calls that are as long as the server allows.
    fn begin_write(&mut self, mut rest: WriteRequest) {
        while rest.data().len() > self.limits.write_bytes_max {
            let (piece, others) = rest.split_at(self.limits.write_bytes_max);
            self.queue_write_piece(piece);
            rest = others;
        }
        self.queue_write_piece(rest);
    }

    fn queue_write_piece(&mut self, piece: WriteRequest) {
        self.uncommitted.begin_write(piece.place.file);
        self.queue_write_call(piece);
    }

    fn queue_write_call(&mut self, writing: WriteRequest) {
        let FilePosition { file, offset } = writing.place;
        let count = writing.data().len() as u32;
        // `WriteArguments` without the data, which is sent from the buffer.
        let asked = ((file, offset), ((count, Stability::Unstable), count));
        self.queue_call(Procedure::Write.into(), &asked, Request::Write(writing));
    }

    /// Reads and writes to be repeated, since the server was not ready.
    pub fn delayed_count(&self) -> usize {
        self.delayed.len()
    }

    /// Repeats them. The caller, who has a clock, decides when.
    pub fn resume_delayed(&mut self) {
        for work in std::mem::take(&mut self.delayed) {
            match work {
                Request::Read(reading) => self.queue_read(reading),
                Request::Write(writing) => self.queue_write_call(writing),
                Request::Plain { .. } | Request::Commit { .. } => {
                    unreachable!("only reads and writes are delayed")
                }
            }
        }
    }

    /// Moves the next queued call to a connection, and returns its number.
    pub fn assign_next_call(&mut self, connection: usize) -> Option<u32> {
        let xid = self.queue.pop_front()?;
        self.join_reads(xid);
        let call = self.calls.get_mut(&xid).expect("queued calls have no reply");
        call.connection = Some(connection);
        self.counts.retransmitted_calls += u64::from(call.times_sent > 0);
        call.times_sent += 1;
        Some(xid)
    }

    /// Adds queued reads of the following bytes of the file to a read that is about to be sent.
    fn join_reads(&mut self, xid: u32) {
        let Some(mut call) = self.calls.remove(&xid) else { return };
        let max = self.joined_bytes_max.min(self.limits.read_bytes_max);
        while let Some(reading) = call.joinable_unsent_read()
            && let Some(next_xid) = self.queue.front()
            && let Some(next) = self.calls.get(next_xid).and_then(|next| next.joinable_unsent_read())
            && next.place == reading.end_position()
            && next.asked <= max.saturating_sub(reading.asked)
        {
            let next =
                self.queue.pop_front().and_then(|xid| self.calls.remove(&xid)).map(|next| next.request);
            let (Request::Read(reading), Some(Request::Read(next))) = (&mut call.request, next) else {
                unreachable!("both were looked at")
            };
            reading.asked += next.asked;
            reading.joined.push_back(next);
            self.counts.joined += 1;
        }
        if let Request::Read(reading) = &call.request
            && reading.is_joined()
        {
            let FilePosition { file, offset } = reading.place;
            let asked = ReadArguments { file, offset, bytes: reading.asked as u32 };
            call.head = self.encode_call(xid, Procedure::Read.into(), &asked);
            record::end(&mut call.head, 0);
        }
        self.calls.insert(xid, call);
    }

    /// The bytes of a call: the record up to its data, the data, the padding. `None` once it has its reply,
    /// which a correct server does not send before it has received the whole call.
    pub fn call_pieces(&self, xid: u32) -> Option<[&[u8]; 3]> {
        self.calls.get(&xid).map(|call| call.record_pieces())
    }

    /// Handles the loss of a connection: its calls are queued again, before all others. Reads that shared a
    /// call get separate calls at the end of the queue, since some of them may be complete.
    pub fn on_connection_lost(&mut self, connection: usize) {
        self.parsers[connection] = ReplyParser::default();
        let mut joined = Vec::new();
        for (xid, call) in self.calls.iter_mut().rev().filter(|(_, call)| call.connection == Some(connection))
        {
            if matches!(&call.request, Request::Read(reading) if reading.is_joined()) {
                joined.push(*xid);
            } else {
                call.connection = None;
                self.queue.push_front(*xid);
            }
        }
        for xid in joined.into_iter().rev() {
            let Some(Request::Read(reading)) = self.calls.remove(&xid).map(|call| call.request) else {
                continue;
            };
            for reading in reading.into_separate_reads() {
                self.queue_read(reading);
                self.counts.calls -= 1;
                self.counts.retransmitted_calls += 1;
            }
        }
    }

    /// The memory for the next bytes of a connection.
    pub fn receive_buffers(&mut self, connection: usize) -> ReceiveBuffers<'_> {
        let parser = &mut self.parsers[connection];
        let mut pieces = Pieces::new();
        if let Some((xid, left)) = parser.awaited_data() {
            let Some(Request::Read(reading)) = self.calls.get_mut(&xid).map(|call| &mut call.request) else {
                unreachable!("data are received for reads in flight")
            };
            if reading.add_buffers(left, &mut pieces) < left {
                return ReceiveBuffers { pieces };
            }
        }
        pieces.push(IoSliceMut::new(parser.unparsed_buffer()));
        ReceiveBuffers { pieces }
    }

    /// Handles `bytes` bytes that were received into the [buffers](Self::receive_buffers).
    ///
    /// # Errors
    /// A reply is wrong. The caller must close the connection, which counts as
    /// [lost](Self::on_connection_lost): the call of the wrong reply, if known, has failed; the others are
    /// sent again.
    ///
    /// # Panics
    /// `bytes` exceeds the room of the buffers.
    pub fn handle_received(&mut self, connection: usize, bytes: usize) -> Result<(), BadReply> {
        let parser = &mut self.parsers[connection];
        let (xid, data) = parser.awaited_data().map_or((0, 0), |(xid, left)| (xid, left.min(bytes)));
        parser.count_unparsed(bytes - data);
        if data > 0 {
            parser.count_data(data);
            let still = parser.awaited_data().map_or(0, |(_, left)| left);
            self.complete_filled_reads(xid, data, still);
        }
        while let Some(step) = self.next_event(connection)? {
            let is_whole = matches!(step, ReplyEvent::Record { .. } | ReplyEvent::End { .. });
            if let Err(error) = self.handle_event(step) {
                return Err(self.reject_reply(connection, None, error));
            }
            self.counts.replies += u64::from(is_whole);
        }
        Ok(())
    }

    fn next_event(&mut self, connection: usize) -> Result<Option<ReplyEvent>, BadReply> {
        let calls = &self.calls;
        let of_connection = |xid: u32| {
            calls
                .get(&xid)
                .filter(|call| call.connection == Some(connection))
                .map(|call| call.expected_reply())
        };
        let next = self.parsers[connection].next_event(of_connection);
        next.map_err(|(xid, error)| self.reject_reply(connection, xid, error))
    }

    /// Ends a connection after a wrong reply, to call `xid` if known.
    fn reject_reply(&mut self, connection: usize, xid: Option<u32>, error: BadReply) -> BadReply {
        self.counts.bad_replies += 1;
        if let Some(call) = xid.and_then(|xid| self.calls.remove(&xid)) {
            self.fail_call(*call, error.into());
        }
        self.on_connection_lost(connection);
        error
    }

    /// Whether no incomplete reply was received.
    pub fn is_between_replies(&self, connection: usize) -> bool {
        self.parsers[connection].is_between_replies()
    }

    fn handle_event(&mut self, step: ReplyEvent) -> Result<(), BadReply> {
        match step {
            ReplyEvent::Fragment => Ok(()),
            ReplyEvent::Record { xid, record } => {
                let call = self.calls.remove(&xid).expect("it was expected");
                self.finish_record(xid, *call, &record)
            }
            ReplyEvent::Data { xid, head, first } => {
                let Some(Request::Read(reading)) = self.calls.get_mut(&xid).map(|call| &mut call.request)
                else {
                    unreachable!("it was expected")
                };
                (reading.head, reading.received) = (Some(head), 0);
                self.exchange_buffer(xid);
                self.copy_to_buffers(xid, &first, head.count as usize - first.len());
                Ok(())
            }
            ReplyEvent::End { xid } => match self.calls.remove(&xid).map(|call| call.request) {
                Some(Request::Read(reading)) => self.finish_read(reading),
                _ => unreachable!("it was expected"),
            },
        }
    }

    /// Copies bytes of a reply to their buffers; `still` are to follow.
    fn copy_to_buffers(&mut self, xid: u32, bytes: &[u8], still: usize) {
        self.counts.moved_bytes += bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty()
            && let Some(Request::Read(reading)) = self.calls.get_mut(&xid).map(|call| &mut call.request)
        {
            let mut pieces = Pieces::new();
            reading.add_buffers(rest.len(), &mut pieces);
            let filled = ReceiveBuffers { pieces }.fill(rest);
            rest = &rest[filled..];
            self.complete_filled_reads(xid, filled, rest.len() + still);
        }
    }

    /// Notes that so many bytes more of a reply are in their buffers, and ends reads that are complete.
    fn complete_filled_reads(&mut self, xid: u32, bytes: usize, still: usize) {
        let Some(Request::Read(reading)) = self.calls.get_mut(&xid).map(|call| &mut call.request) else {
            return;
        };
        let full = reading.count_received(bytes, still);
        if full.is_empty() {
            return;
        }
        for reading in full {
            let attributes = reading.head.and_then(|head| head.attributes);
            self.counts.read_bytes += reading.filled as u64;
            self.complete_read(reading, Ok(ReadMetadata { is_end: false, attributes }));
        }
        self.exchange_buffer(xid);
    }

    /// Exchanges the buffer of this read for the one posted last, which is most likely still in the
    /// processor's cache. Used in turn, each buffer would have left the cache.
    fn exchange_buffer(&mut self, xid: u32) {
        let Some(mut call) = self.calls.remove(&xid) else { return };
        if let Request::Read(reading) = &mut call.request
            && reading.is_exchangeable(&self.pool)
        {
            let mut others = self.calls.values_mut().rev().take(LATEST_MAX);
            let latest = others.find_map(|other| match &mut other.request {
                Request::Read(other) => other.latest_exchangeable_buffer(reading, &self.pool),
                _ => None,
            });
            if let Some(latest) = latest {
                std::mem::swap(&mut reading.buffer, latest);
            }
        }
        self.calls.insert(xid, call);
    }

    /// The end of the next request; each is returned exactly once.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Fails all requests with this error, and resets all connections. The server may have executed calls
    /// that were sent.
    pub fn give_up(&mut self, error: CallError) {
        // A failure can begin a new call: a commit, after the writes before it.
        loop {
            match self.calls.pop_first() {
                Some((_, call)) => self.fail_call(*call, error),
                None => match self.delayed.pop() {
                    Some(work) => self.fail_request(work, error, false),
                    None => break,
                },
            }
        }
        self.queue.clear();
        self.parsers.iter_mut().for_each(|parser| *parser = ReplyParser::default());
    }

    fn fail_call(&mut self, call: Call, error: CallError) {
        self.fail_request(call.request, error, call.times_sent > 1);
    }

    fn fail_request(&mut self, work: Request, error: CallError, is_repeated: bool) {
        match work {
            Request::Plain { ticket, .. } => {
                self.completions.push_back(Completion::Results { ticket, results: Err(error), is_repeated });
            }
            Request::Read(reading) => self.fail_read(reading, error),
            Request::Write(writing) => self.end_write(writing.place.file, Err(error)),
            Request::Commit { file } => self.end_commit(file, Err(error)),
        }
    }

    fn fail_read(&mut self, reading: ReadRequest, error: CallError) {
        reading.into_separate_reads().for_each(|reading| self.complete_read(reading, Err(error)));
    }

    fn complete_read(&mut self, reading: ReadRequest, outcome: Result<ReadMetadata, CallError>) {
        let ReadRequest { ticket, mut buffer, place, filled, .. } = reading;
        buffer.resize(filled);
        self.counts.reads += 1;
        self.completions.push_back(Completion::Filled { ticket, buffer, place, outcome });
    }

    /// Requests without a result.
    pub fn in_flight(&self) -> usize {
        self.calls.values().map(|call| call.request_count()).sum::<usize>() + self.delayed.len()
    }

    pub fn queued_count(&self) -> usize {
        self.queue.len()
    }

    /// Whether queued calls may wait a little: all are reads that can share one call, which is not full yet,
    /// and the server has three times as many calls to answer. A shared call costs both ends less.
    pub fn may_delay_queued(&self) -> bool {
        let most = self.joined_bytes_max.min(self.limits.read_bytes_max);
        let bytes = self.queue.iter().map(|xid| {
            let read = self.calls.get(xid).and_then(|call| call.joinable_unsent_read());
            read.map_or(most, |reading| reading.asked)
        });
        let sent = self.calls.values().map(|call| call.request_count()).sum::<usize>() - self.queue.len();
        sent >= IN_FLIGHT_PER_QUEUED * self.queue.len() && bytes.sum::<usize>() < most
    }

    /// The number of requests that share a call.
    pub fn request_count(&self, xid: u32) -> usize {
        self.calls.get(&xid).map_or(0, |call| call.request_count())
    }

    /// Whether calls are in flight on a connection.
    pub fn has_calls_in_flight(&self, connection: usize) -> bool {
        self.calls.values().any(|call| call.connection == Some(connection))
    }

    /// Adds the requests in flight on each connection to `connections`.
    pub fn count_in_flight(&self, connections: &mut [usize]) {
        for call in self.calls.values() {
            if let Some(connection) = call.connection {
                connections[connection] += call.request_count();
            }
        }
    }

    pub fn uncommitted_bytes(&self) -> usize {
        self.uncommitted.total_bytes()
    }

    pub fn counts(&self) -> CoreCounts {
        self.counts
    }
}
