//! One client's connection: calls are read and replies sent, with bounded memory for both.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;

use super::SharedState;
use super::call_receiver::{CallReceiver, ReceiveResult};
use super::core::{Answer, ConnectionId, ReadCall};
use super::long_write::{JobOutcome, LongWrite};
use super::networks::NetworkShare;
use super::read_job::ReadJob;
use super::reply_queue::{OutgoingReply, QueueHead, QueuedMemory, ReplyQueue};
use super::statistics::ClientCounters;
use super::workers::{Job, JobKind, JobResult};
use crate::export::run_without_blocking;
use crate::wire::record::RecordAssembler;

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
pub(super) enum CloseReason {
    /// The client has closed it, or it broke.
    Closed,
    Malformed,
}

#[derive(Debug)]
enum WriteState {
    Idle,
    /// More of the write must arrive.
    Waiting(Box<LongWrite>),
    /// A worker has the connection, or will have it next, with everything that arrives on the socket.
    Running,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<TcpStream>,
    pub(super) address: SocketAddr,
    /// When bytes were last received or sent.
    pub(super) last_transfer: Instant,
    pub(super) interest: EventFlags,
    id: ConnectionId,
    client: Arc<ClientCounters>,
    receiver: CallReceiver,
    replies: ReplyQueue,
    /// For the workers, after their present jobs.
    waiting_jobs: VecDeque<JobKind>,
    /// Bytes of calls in `waiting_jobs` and in the present jobs.
    job_bytes: usize,
    jobs: usize,
    /// A call whose data are written into a file as they arrive, before any other call is read.
    write_state: WriteState,
    is_finished: bool,
    /// The last turn ended before everything possible was done.
    has_more_work: bool,
    pub(super) ready: ReadyState,
}

/// Whether a connection waits for its turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReadyState {
    pub(super) is_queued: bool,
    pub(super) is_readable: bool,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        socket: TcpStream,
        address: SocketAddr,
        client: Arc<ClientCounters>,
        incoming: (RecordAssembler, NetworkShare),
        queued: Arc<QueuedMemory>,
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
            last_transfer: now,
            interest: EventFlags::IN,
            id,
            client,
            receiver: CallReceiver::new(incoming.0, incoming.1),
            replies: ReplyQueue::new(queued),
            waiting_jobs: VecDeque::new(),
            job_bytes: 0,
            jobs: 0,
            write_state: WriteState::Idle,
            is_finished: false,
            has_more_work: false,
            ready: ReadyState::default(),
        })
    }

    pub(super) fn wanted_events(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        let is_taking = match self.write_state {
            WriteState::Idle => !self.is_finished && !self.is_at_limit() && !self.receiver.is_starved(),
            WriteState::Waiting(_) => true,
            WriteState::Running => false,
        };
        wanted.set(EventFlags::IN, is_taking);
        wanted.set(EventFlags::OUT, !self.replies.is_empty());
        wanted
    }

    pub(super) fn apply_job_result(&mut self, JobResult { outcome: done, call_bytes }: JobResult) {
        // No underflow: the bytes of a call were added when it was taken, and come back with one step only.
        self.job_bytes -= call_bytes;
        // A call in progress keeps its job: its reply, or that it was superseded, comes as another step.
        self.jobs -= usize::from(!matches!(done, JobOutcome::ReplyAndMore(_) | JobOutcome::InProgress));
        match done {
            JobOutcome::Reply(reply) | JobOutcome::ReplyAndMore(reply) => self.replies.push(reply),
            JobOutcome::OtherCalls(bytes) => {
                self.write_state = WriteState::Idle;
                self.receiver.records.push(&bytes);
            }
            JobOutcome::InProgress | JobOutcome::Superseded => {}
            JobOutcome::WriteWaits(write) => self.write_state = WriteState::Waiting(write),
            JobOutcome::Ended => {
                self.write_state = WriteState::Idle;
                self.is_finished = true;
            }
        }
    }

    /// More has arrived, which is for the workers if a long write waits for it.
    pub(super) fn resume_write(&mut self, now: Instant) {
        match std::mem::replace(&mut self.write_state, WriteState::Running) {
            WriteState::Waiting(write) => {
                self.last_transfer = now;
                self.waiting_jobs.push_front(JobKind::Write(write));
            }
            other => self.write_state = other,
        }
    }

    pub(super) fn has_jobs(&self) -> bool {
        self.jobs > 0
    }

    pub(super) fn network(&self) -> IpAddr {
        self.receiver.share.network
    }

    /// Whether it waits only for memory, of which it is not told when some is free.
    pub(super) fn is_starved(&self) -> bool {
        self.receiver.is_starved()
    }

    /// Whether the rest of a call has not arrived for too long.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.receiver.is_overdue(now)
    }

    /// Whether the last turn ended early, possibly with whole calls in memory, which the socket does not
    /// report.
    pub(super) fn has_more_work(&self) -> bool {
        self.has_more_work
    }

    /// Reads calls and writes replies, as far as possible without waiting. Returns the cost, in bytes moved.
    /// Errors: the connection ends.
    pub(super) fn run_turn(
        &mut self,
        shared: &SharedState,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<usize, CloseReason> {
        let (mut moved, mut all_calls) = (0, 0);
        // Ends: each round moves bytes or takes calls, and both are limited (`has_more_work`).
        loop {
            let read = self.receive_calls(shared, buffer)?;
            let calls = self.answer_or_queue_calls(shared)?;
            let written = self.write_replies(shared)?;
            self.submit_jobs(shared);
            moved += read + written;
            all_calls += calls;
            self.has_more_work = moved > TURN_BYTES_MAX || all_calls >= TURN_CALLS_MAX;
            if read + calls + written == 0 || self.has_more_work {
                break;
            }
        }
        if moved > 0 {
            self.last_transfer = now;
        }
        let is_asked = !self.is_finished && !self.is_receiving_write() && !self.is_at_limit();
        self.receiver.release_unused(self.job_bytes, is_asked, now);
        let is_over =
            self.is_finished && self.replies.is_empty() && self.jobs == 0 && self.waiting_jobs.is_empty();
        if is_over { Err(CloseReason::Closed) } else { Ok(moved + all_calls * CALL_COST_BYTES) }
    }

    fn is_receiving_write(&self) -> bool {
        !matches!(self.write_state, WriteState::Idle)
    }

    fn is_at_limit(&self) -> bool {
        self.replies.len() + self.waiting_jobs.len() + self.jobs >= CALLS_MAX
            || self.job_bytes > WORK_BYTES_MAX
            || self.is_over_memory_limit()
    }

    /// Whether no more replies are made now: too much memory waits for the client to read.
    fn is_over_memory_limit(&self) -> bool {
        self.replies.memory_bytes()
            > if self.replies.queued_memory().is_over_share() { 0 } else { REPLIES_BYTES_MAX }
    }

    fn receive_calls(&mut self, shared: &SharedState, buffer: &mut [u8]) -> Result<usize, CloseReason> {
        if self.is_finished || self.is_at_limit() || self.is_receiving_write() {
            return Ok(0);
        }
        match self.receiver.receive(shared, &self.socket, self.job_bytes, buffer) {
            ReceiveResult::Bytes(count) => return Ok(count),
            ReceiveResult::Nothing => {}
            ReceiveResult::End => self.is_finished = true,
            ReceiveResult::Broken => return Err(CloseReason::Closed),
        }
        Ok(0)
    }

    fn answer_or_queue_calls(&mut self, shared: &SharedState) -> Result<usize, CloseReason> {
        let mut calls = 0;
        while !self.is_at_limit() && !self.is_receiving_write() {
            if self.begin_long_write(shared) {
                calls += 1;
                break;
            }
            let taken = self.receiver.records.take_with_copied().map_err(|_| CloseReason::Malformed)?;
            let Some((record, moved)) = taken else { break };
            self.receiver.partial_since = None;
            calls += 1;
            // What cannot be parsed counts as cached, so the workers get only calls that can.
            let answer = match shared.core.is_answered_without_waiting(&record) {
                true => {
                    run_without_blocking(|| shared.core.answer_on_connection(&record, self.address, self.id))
                }
                false => None,
            };
            let answer = answer.transpose().map_err(|_| CloseReason::Malformed)?;
            self.client.count_call();
            let Some(answer) = answer else {
                self.job_bytes += record.len();
                let moved = moved + if matches!(record, Cow::Borrowed(_)) { record.len() } else { 0 };
                let (record, address) = (record.into_owned(), self.address);
                self.waiting_jobs.push_back(JobKind::Call { record, moved, address });
                continue;
            };
            match answer {
                Answer::Reply(reply) => self.replies.push(OutgoingReply::from_bytes(reply)),
                Answer::Written(reply, count) => {
                    self.client.count_write(count, moved, 0);
                    self.replies.push(OutgoingReply::from_bytes(reply));
                }
                Answer::Read(call) => self.replies.push(OutgoingReply::Read(call)),
                Answer::List(call) => self.waiting_jobs.push_back(JobKind::List(call)),
                Answer::InProgress { .. } | Answer::Repeated { .. } => {
                    unreachable!("changes are made by workers")
                }
            }
        }
        Ok(calls)
    }

    /// Gives a long write to the workers as soon as it has begun.
    fn begin_long_write(&mut self, shared: &SharedState) -> bool {
        let begun = LongWrite::from_incomplete_record(
            &mut self.receiver.records,
            shared,
            &self.socket,
            self.address,
            &self.client,
        );
        let Some(writing) = begun else { return false };
        self.write_state = WriteState::Running;
        self.waiting_jobs.push_back(JobKind::Write(Box::new(writing)));
        true
    }

    fn write_replies(&mut self, shared: &SharedState) -> Result<usize, CloseReason> {
        let mut written = 0;
        while written < TURN_BYTES_MAX {
            match self.replies.take_front_read() {
                QueueHead::Empty => break,
                QueueHead::Read(call) => self.read_or_submit(shared, call),
                QueueHead::Reply => match self.replies.write_front(&*self.socket, &self.client) {
                    Ok(count) => written += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => return Err(CloseReason::Closed),
                },
            }
        }
        Ok(written)
    }

    /// Reads cached data itself, and leaves other reads to the workers. A wrong or missing hint costs only
    /// time.
    fn read_or_submit(&mut self, shared: &SharedState, call: ReadCall) {
        if !shared.core.is_read_cached(&call) {
            return self.waiting_jobs.push_back(JobKind::Read(call));
        }
        let reading = match run_without_blocking(|| shared.core.open_for_read(&call)) {
            Some(Ok(file)) => ReadJob { call, file },
            Some(Err(refused)) => return self.replies.push_front(OutgoingReply::from_bytes(refused)),
            None => return self.waiting_jobs.push_back(JobKind::Read(call)),
        };
        match reading.is_cached() {
            Some(true) => {
                self.replies.push_front(reading.make_reply(shared, self.replies.queued_memory()));
            }
            _ => self.waiting_jobs.push_back(JobKind::Read(call)),
        }
    }

    fn submit_jobs(&mut self, shared: &SharedState) {
        let jobs_max = if self.replies.queued_memory().is_over_share() { 1 } else { JOBS_MAX };
        while self.jobs + self.replies.pipe_count() < jobs_max
            && !self.is_over_memory_limit()
            && let Some(work) = self.waiting_jobs.pop_front()
        {
            self.jobs += 1;
            let (network, client) = (self.network(), Arc::clone(&self.client));
            let queued = Arc::clone(self.replies.queued_memory());
            shared.workers.submit_job(Job { network, connection_id: self.id, client, queued, kind: work });
        }
    }
}
