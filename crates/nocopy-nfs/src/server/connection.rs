//! One client's connection: calls in, replies out, neither without bound.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy_proto::message::network_of;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv, sockopt};

use super::Shared;
use super::accounts::ClientCounts;
use super::core::{Answer, ReadCall};
use super::output::{Front, Outgoing, Output, Queued};
use super::reading::Reading;
use super::workers::{Inbox, Job, Work};
use super::writing::{Done, LongWrite};
use crate::wire::record::{MARK_BYTES, Records};

/// Calls that are not answered yet, at most; more are not read before.
const CALLS_MAX: usize = 128;

/// Memory of replies that have not gone, at most, before no more are made. (What workers have comes on top.)
const REPLIES_BYTES_MAX: usize = 256 << 10;

/// Calls that wait for workers, at most, before no more are read: two of the longest writes.
const WORK_BYTES_MAX: usize = 2 << 20;

/// Of a connection, with the workers or done by them and holding a pipe, at a time.
const JOBS_MAX: usize = 4;

/// Bytes that go in one turn, before other connections have theirs.
const TURN_BYTES_MAX: usize = 1 << 20;

/// A client that is gone without a word is noticed after a while of silence.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// One that reads nothing of what was sent, and so holds pipes and memory, is given up after that: it can connect again.
const UNREAD_MS_MAX: u32 = 120_000;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client has ended it, or it broke.
    Closed,
    /// What came is no call.
    Malformed,
}

/// Whether a long write is under way.
#[derive(Debug)]
enum Long {
    No,
    /// More of it has to come.
    Waits(Box<LongWrite>),
    /// It is with the workers, or is given to them next, and so is what comes out of the socket.
    GoesOn,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<TcpStream>,
    pub(super) address: IpAddr,
    /// When bytes went one way or the other.
    pub(super) moved: Instant,
    /// What it waits for.
    pub(super) interest: EventFlags,
    id: u64,
    client: Arc<ClientCounts>,
    records: Records,
    output: Output,
    /// For workers, once those have done what they have.
    work: VecDeque<Work>,
    work_bytes: usize,
    jobs: usize,
    /// A call whose data go into a file as they come, before any other call is read.
    long: Long,
    /// The client sends no more.
    is_finished: bool,
    /// The last turn ended before all was done that could be.
    is_cut: bool,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        socket: TcpStream,
        address: IpAddr,
        client: Arc<ClientCounts>,
        queued: Arc<Queued>,
        call_bytes_max: usize,
        now: Instant,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
        sockopt::set_tcp_user_timeout(&socket, UNREAD_MS_MAX)?;
        Ok(Self {
            socket: Arc::new(socket),
            address,
            moved: now,
            interest: EventFlags::IN,
            id,
            client,
            records: Records::new(call_bytes_max),
            output: Output::new(queued),
            work: VecDeque::new(),
            work_bytes: 0,
            jobs: 0,
            long: Long::No,
            is_finished: false,
            is_cut: false,
        })
    }

    /// What it has to wait for now.
    pub(super) fn wanted(&self, shared: &Shared) -> EventFlags {
        let mut wanted = EventFlags::empty();
        let is_taking = match self.long {
            Long::No => !self.is_finished && !self.is_full(shared),
            Long::Waits(_) => true,
            Long::GoesOn => false,
        };
        wanted.set(EventFlags::IN, is_taking);
        // A turn that was cut may have left whole calls in memory, of which the socket knows nothing: being writable ends that wait.
        wanted.set(EventFlags::OUT, !self.output.is_empty() || self.is_cut);
        wanted
    }

    /// Takes from the workers what was done.
    pub(super) fn done(&mut self, done: Done) {
        self.jobs -= usize::from(!matches!(done, Done::ReplyAndMore(_)));
        match done {
            Done::Reply(reply) | Done::ReplyAndMore(reply) => self.output.push(reply),
            Done::OtherCalls(bytes) => {
                self.long = Long::No;
                self.records.push(&bytes);
            }
            Done::WriteWaits(write) => self.long = Long::Waits(write),
            Done::Ended => {
                self.long = Long::No;
                self.is_finished = true;
            }
        }
    }

    /// More has come, which is for the workers if a long write waits for it.
    pub(super) fn go_on_writing(&mut self, now: Instant) {
        match std::mem::replace(&mut self.long, Long::GoesOn) {
            Long::Waits(write) => {
                self.moved = now;
                self.work.push_front(Work::Write(write));
            }
            other => self.long = other,
        }
    }

    /// Whether workers have something of it.
    pub(super) fn is_worked_for(&self) -> bool {
        self.jobs > 0
    }

    /// Reads calls and writes replies, as far as both go at once.
    ///
    /// # Errors
    /// The connection ends.
    pub(super) fn turn(
        &mut self,
        shared: &Shared,
        inbox: &Arc<Inbox>,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), End> {
        let mut moved = 0;
        loop {
            let read = self.receive(shared, buffer)?;
            let calls = self.take_calls(shared)?;
            let written = self.write(shared)?;
            self.give_work(shared, inbox);
            moved += read + written;
            self.is_cut = moved > TURN_BYTES_MAX;
            if read + calls + written == 0 || self.is_cut {
                break;
            }
        }
        if moved > 0 {
            self.moved = now;
        }
        let is_over = self.is_finished && self.output.is_empty() && self.jobs == 0 && self.work.is_empty();
        if is_over { Err(End::Closed) } else { Ok(()) }
    }

    fn is_writing(&self) -> bool {
        !matches!(self.long, Long::No)
    }

    /// No more calls are taken now.
    fn is_full(&self, shared: &Shared) -> bool {
        self.output.len() + self.work.len() + self.jobs >= CALLS_MAX
            || self.work_bytes > WORK_BYTES_MAX
            || self.is_heavy(shared)
    }

    /// No more replies are made now: too much memory waits for the client to read.
    fn is_heavy(&self, shared: &Shared) -> bool {
        self.output.memory_bytes() > if shared.queued.is_much() { 0 } else { REPLIES_BYTES_MAX }
    }

    fn receive(&mut self, shared: &Shared, buffer: &mut [u8]) -> Result<usize, End> {
        // A whole call is held at most, and what came with it.
        let is_held = self.records.held() >= shared.core.call_bytes_max() + MARK_BYTES;
        if self.is_finished || self.is_full(shared) || is_held || self.is_writing() {
            return Ok(0);
        }
        let (socket, flags) = (&*self.socket, RecvFlags::DONTWAIT);
        let received = match self.records.long() {
            Some(long) => retry_on_intr(|| recv(socket, spare_capacity(long), flags)).map(|(count, _)| count),
            None => {
                let received = retry_on_intr(|| recv(socket, &mut *buffer, flags)).map(|(count, _)| count);
                self.records.push(&buffer[..received.unwrap_or(0)]);
                received
            }
        };
        match received {
            Ok(0) => self.is_finished = true,
            Ok(count) => return Ok(count),
            Err(Errno::AGAIN) => {}
            Err(_) => return Err(End::Closed),
        }
        Ok(0)
    }

    fn take_calls(&mut self, shared: &Shared) -> Result<usize, End> {
        let mut calls = 0;
        while !self.is_full(shared) && !self.is_writing() {
            if self.begin_writing(shared) {
                calls += 1;
                break;
            }
            let taken = self.records.take_counted().map_err(|_| End::Malformed)?;
            let Some((record, moved)) = taken else { break };
            calls += 1;
            if !shared.core.is_quick(&record) {
                self.client.note_call();
                self.work_bytes += record.len();
                let moved = moved + if matches!(record, Cow::Borrowed(_)) { record.len() } else { 0 };
                let (record, address) = (record.into_owned(), self.address);
                self.work.push_back(Work::Call { record, moved, address });
                continue;
            }
            let answer = shared.core.answer(&record, self.address).map_err(|_| End::Malformed)?;
            self.client.note_call();
            match answer {
                Answer::Reply(reply) => self.output.push(Outgoing::bytes(reply)),
                Answer::Written(reply, count) => {
                    self.client.note_written(count, moved, 0);
                    self.output.push(Outgoing::bytes(reply));
                }
                Answer::Read(call) => self.output.push(Outgoing::Read(call)),
                Answer::List(call) => self.work.push_back(Work::List(call)),
            }
        }
        Ok(calls)
    }

    /// Gives a long write to the workers as soon as it has begun.
    fn begin_writing(&mut self, shared: &Shared) -> bool {
        let begun = LongWrite::begun(&mut self.records, shared, &self.socket, &self.client);
        let Some(writing) = begun else { return false };
        self.long = Long::GoesOn;
        self.work.push_back(Work::Write(Box::new(writing)));
        true
    }

    fn write(&mut self, shared: &Shared) -> Result<usize, End> {
        let mut written = 0;
        while written < TURN_BYTES_MAX {
            match self.output.front() {
                Front::Empty => break,
                Front::Read(call) => self.read(shared, call),
                Front::Reply => match self.output.write(&*self.socket, &self.client) {
                    Ok(count) => written += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return Err(End::Closed),
                },
            }
        }
        Ok(written)
    }

    /// Reads what is in memory, and leaves to the workers what is not. A hint that is wrong, or not to be had, costs time and nothing
    /// else.
    fn read(&mut self, shared: &Shared, call: ReadCall) {
        if !shared.core.is_at_hand(&call) {
            return self.work.push_back(Work::Read(call));
        }
        let reading = match shared.core.open(&call) {
            Ok(file) => Reading { call, file },
            Err(refused) => return self.output.push_front(Outgoing::bytes(refused)),
        };
        match reading.is_warm() {
            Some(true) => {
                self.output.push_front(reading.read(shared));
            }
            _ => self.work.push_back(Work::Read(call)),
        }
    }

    fn give_work(&mut self, shared: &Shared, inbox: &Arc<Inbox>) {
        let jobs_max = if shared.queued.is_much() { 1 } else { JOBS_MAX };
        while self.jobs + self.output.pipes() < jobs_max
            && !self.is_heavy(shared)
            && let Some(work) = self.work.pop_front()
        {
            if let Work::Call { record, .. } = &work {
                self.work_bytes -= record.len();
            }
            self.jobs += 1;
            let (network, client) = (network_of(self.address), Arc::clone(&self.client));
            shared.workers.give(Job { network, inbox: Arc::clone(inbox), connection: self.id, client, work });
        }
    }
}
