//! One client's connection: calls are read and replies sent, with bounded memory for both.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;

use super::Shared;
use super::accounts::ClientCounts;
use super::core::{Answer, Asker, ReadCall};
use super::incoming::{Incoming, Received};
use super::networks::Member;
use super::output::{Front, Outgoing, Output, Queued};
use super::reading::Reading;
use super::workers::{Job, Step, Work};
use super::writing::{Done, LongWrite};
use crate::export::without_waiting;
use crate::wire::record::Records;

/// The most calls without an answer; with so many, no more are read.
const CALLS_MAX: usize = 128;

/// The most memory of unsent replies; with so much, no more are made. (Results of workers are not included.)
const REPLIES_BYTES_MAX: usize = 256 << 10;

/// The most memory of a connection's calls with or waiting for workers, two of the longest writes; with so
/// much, no more are read.
const WORK_BYTES_MAX: usize = 2 << 20;

/// The most jobs of a connection with the workers, or finished and holding a pipe, at a time.
const JOBS_MAX: usize = 4;

/// The most bytes and calls in one turn, before other connections have theirs.
const TURN_BYTES_MAX: usize = 1 << 20;
const TURN_CALLS_MAX: usize = 128;

/// A call takes as long as moving so many bytes.
const CALL_COST_BYTES: usize = 8 << 10;

/// After this much silence, a vanished client is noticed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A client that reads nothing, and so holds pipes and memory, is disconnected after this; it can connect
/// again.
const UNREAD_MS_MAX: u32 = 120_000;

#[derive(Debug)]
pub(super) enum End {
    /// The client has closed it, or it broke.
    Closed,
    Malformed,
}

#[derive(Debug)]
enum Long {
    No,
    /// More of the write must arrive.
    Waits(Box<LongWrite>),
    /// A worker has the connection, or will have it next, with everything that arrives on the socket.
    GoesOn,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<TcpStream>,
    pub(super) address: SocketAddr,
    /// When bytes were last received or sent.
    pub(super) moved: Instant,
    pub(super) interest: EventFlags,
    asker: Asker,
    client: Arc<ClientCounts>,
    incoming: Incoming,
    output: Output,
    /// For the workers, after their present jobs.
    work: VecDeque<Work>,
    /// Bytes of calls in `work` and in the present jobs.
    work_bytes: usize,
    jobs: usize,
    /// A call whose data are written into a file as they arrive, before any other call is read.
    long: Long,
    is_finished: bool,
    /// The last turn ended before everything possible was done.
    is_cut: bool,
    pub(super) ready: Ready,
}

/// Whether a connection waits for its turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ready {
    pub(super) is_queued: bool,
    pub(super) is_readable: bool,
}

impl Connection {
    pub(super) fn new(
        asker: Asker,
        socket: TcpStream,
        address: SocketAddr,
        client: Arc<ClientCounts>,
        incoming: (Records, Member),
        queued: Arc<Queued>,
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
            asker,
            client,
            incoming: Incoming::new(incoming.0, incoming.1),
            output: Output::new(queued),
            work: VecDeque::new(),
            work_bytes: 0,
            jobs: 0,
            long: Long::No,
            is_finished: false,
            is_cut: false,
            ready: Ready::default(),
        })
    }

    pub(super) fn wanted(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        let is_taking = match self.long {
            Long::No => !self.is_finished && !self.is_full() && !self.incoming.is_starved(),
            Long::Waits(_) => true,
            Long::GoesOn => false,
        };
        wanted.set(EventFlags::IN, is_taking);
        wanted.set(EventFlags::OUT, !self.output.is_empty());
        wanted
    }

    pub(super) fn done(&mut self, Step { done, call_bytes }: Step) {
        // No underflow: the bytes of a call were added when it was taken, and come back with one step only.
        self.work_bytes -= call_bytes;
        // A call in progress keeps its job: its reply, or that it was superseded, comes as another step.
        self.jobs -= usize::from(!matches!(done, Done::ReplyAndMore(_) | Done::InProgress));
        match done {
            Done::Reply(reply) | Done::ReplyAndMore(reply) => self.output.push(reply),
            Done::OtherCalls(bytes) => {
                self.long = Long::No;
                self.incoming.records.push(&bytes);
            }
            Done::InProgress | Done::Superseded => {}
            Done::WriteWaits(write) => self.long = Long::Waits(write),
            Done::Ended => {
                self.long = Long::No;
                self.is_finished = true;
            }
        }
    }

    /// More has arrived, which is for the workers if a long write waits for it.
    pub(super) fn go_on_writing(&mut self, now: Instant) {
        match std::mem::replace(&mut self.long, Long::GoesOn) {
            Long::Waits(write) => {
                self.moved = now;
                self.work.push_front(Work::Write(write));
            }
            other => self.long = other,
        }
    }

    pub(super) fn is_worked_for(&self) -> bool {
        self.jobs > 0
    }

    pub(super) fn network(&self) -> IpAddr {
        self.incoming.member.network
    }

    /// Whether it waits only for memory, of which it is not told when some is free.
    pub(super) fn is_starved(&self) -> bool {
        self.incoming.is_starved()
    }

    /// Whether the rest of a call has not arrived for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.incoming.is_overdue(now)
    }

    /// Whether the last turn ended early, possibly with whole calls in memory, which the socket does not
    /// report.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reads calls and writes replies, as far as possible without waiting. Returns the cost, in bytes moved.
    /// Errors: the connection ends.
    pub(super) fn turn(&mut self, shared: &Shared, buffer: &mut [u8], now: Instant) -> Result<usize, End> {
        let (mut moved, mut all_calls) = (0, 0);
        // Ends: each round moves bytes or takes calls, and both are limited (`is_cut`).
        loop {
            let read = self.receive(shared, buffer)?;
            let calls = self.take_calls(shared)?;
            let written = self.write(shared)?;
            self.give_work(shared);
            moved += read + written;
            all_calls += calls;
            self.is_cut = moved > TURN_BYTES_MAX || all_calls >= TURN_CALLS_MAX;
            if read + calls + written == 0 || self.is_cut {
                break;
            }
        }
        if moved > 0 {
            self.moved = now;
        }
        let is_asked = !self.is_finished && !self.is_writing() && !self.is_full();
        self.incoming.settle(self.work_bytes, is_asked, now);
        let is_over = self.is_finished && self.output.is_empty() && self.jobs == 0 && self.work.is_empty();
        if is_over { Err(End::Closed) } else { Ok(moved + all_calls * CALL_COST_BYTES) }
    }

    fn is_writing(&self) -> bool {
        !matches!(self.long, Long::No)
    }

    fn is_full(&self) -> bool {
        self.output.len() + self.work.len() + self.jobs >= CALLS_MAX
            || self.work_bytes > WORK_BYTES_MAX
            || self.is_heavy()
    }

    /// Whether no more replies are made now: too much memory waits for the client to read.
    fn is_heavy(&self) -> bool {
        self.output.memory_bytes() > if self.output.queued().is_much() { 0 } else { REPLIES_BYTES_MAX }
    }

    fn receive(&mut self, shared: &Shared, buffer: &mut [u8]) -> Result<usize, End> {
        if self.is_finished || self.is_full() || self.is_writing() {
            return Ok(0);
        }
        match self.incoming.receive(shared, &self.socket, self.work_bytes, buffer) {
            Received::Bytes(count) => return Ok(count),
            Received::Nothing => {}
            Received::End => self.is_finished = true,
            Received::Broken => return Err(End::Closed),
        }
        Ok(0)
    }

    fn take_calls(&mut self, shared: &Shared) -> Result<usize, End> {
        let mut calls = 0;
        while !self.is_full() && !self.is_writing() {
            if self.begin_writing(shared) {
                calls += 1;
                break;
            }
            let taken = self.incoming.records.take_counted().map_err(|_| End::Malformed)?;
            let Some((record, moved)) = taken else { break };
            self.incoming.partial = None;
            calls += 1;
            // What cannot be parsed counts as quick, so the workers get only calls that can.
            let answer = match shared.core.is_quick(&record) {
                true => without_waiting(|| shared.core.answer_to(&record, self.address, self.asker)),
                false => None,
            };
            let answer = answer.transpose().map_err(|_| End::Malformed)?;
            self.client.note_call();
            let Some(answer) = answer else {
                self.work_bytes += record.len();
                let moved = moved + if matches!(record, Cow::Borrowed(_)) { record.len() } else { 0 };
                let (record, address) = (record.into_owned(), self.address);
                self.work.push_back(Work::Call { record, moved, address });
                continue;
            };
            match answer {
                Answer::Reply(reply) => self.output.push(Outgoing::bytes(reply)),
                Answer::Written(reply, count) => {
                    self.client.note_written(count, moved, 0);
                    self.output.push(Outgoing::bytes(reply));
                }
                Answer::Read(call) => self.output.push(Outgoing::Read(call)),
                Answer::List(call) => self.work.push_back(Work::List(call)),
                Answer::InProgress { .. } | Answer::Repeated { .. } => {
                    unreachable!("changes are made by workers")
                }
            }
        }
        Ok(calls)
    }

    /// Gives a long write to the workers as soon as it has begun.
    fn begin_writing(&mut self, shared: &Shared) -> bool {
        let begun =
            LongWrite::begun(&mut self.incoming.records, shared, &self.socket, self.address, &self.client);
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

    /// Reads cached data itself, and leaves other reads to the workers. A wrong or missing hint costs only
    /// time.
    fn read(&mut self, shared: &Shared, call: ReadCall) {
        if !shared.core.is_at_hand(&call) {
            return self.work.push_back(Work::Read(call));
        }
        let reading = match without_waiting(|| shared.core.open(&call)) {
            Some(Ok(file)) => Reading { call, file },
            Some(Err(refused)) => return self.output.push_front(Outgoing::bytes(refused)),
            None => return self.work.push_back(Work::Read(call)),
        };
        match reading.is_warm() {
            Some(true) => {
                self.output.push_front(reading.read(shared, self.output.queued()));
            }
            _ => self.work.push_back(Work::Read(call)),
        }
    }

    fn give_work(&mut self, shared: &Shared) {
        let jobs_max = if self.output.queued().is_much() { 1 } else { JOBS_MAX };
        while self.jobs + self.output.pipes() < jobs_max
            && !self.is_heavy()
            && let Some(work) = self.work.pop_front()
        {
            self.jobs += 1;
            let (network, client) = (self.network(), Arc::clone(&self.client));
            let queued = Arc::clone(self.output.queued());
            shared.workers.give(Job { network, asker: self.asker, client, queued, work });
        }
    }
}
