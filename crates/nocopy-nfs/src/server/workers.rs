//! Threads that wait for disks, so that the loops do not: for uncached reads, look-ups of files, and
//! directories.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::core::{Answer, ConnectionId, ListCall, ReadCall};
use super::fair_queue::FairQueue;
use super::long_write::{CopyBuffer, JobOutcome, LongWrite};
use super::read_job::ReadJob;
use super::reply_queue::{OutgoingReply, QueuedMemory};
use super::statistics::ClientCounters;
use super::{SharedState, WORKERS};

#[derive(Debug)]
pub(super) enum JobKind {
    Read(ReadCall),
    List(ListCall),
    /// A call, the bytes copied to assemble it, and its client.
    Call {
        record: Vec<u8>,
        moved: usize,
        address: SocketAddr,
    },
    Write(Box<LongWrite>),
}

impl JobKind {
    fn call_bytes(&self) -> usize {
        if let Self::Call { record, .. } = self { record.len() } else { 0 }
    }
}

/// A task of a connection, and its loop.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) network: IpAddr,
    pub(super) connection_id: ConnectionId,
    pub(super) client: Arc<ClientCounters>,
    pub(super) queued: Arc<QueuedMemory>,
    pub(super) kind: JobKind,
}

/// A result for a connection, and the bytes of its call that are no longer held.
#[derive(Debug)]
pub(super) struct JobResult {
    pub(super) outcome: JobOutcome,
    pub(super) call_bytes: usize,
}

/// Results for the connections of a loop, which is woken for them.
#[derive(Debug)]
pub(super) struct EventLoopInbox {
    results: Mutex<Vec<(u64, JobResult)>>,
    /// How many connections of the loop must end to make room for others.
    evictions: AtomicUsize,
    event: OwnedFd,
}

impl EventLoopInbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { results: Mutex::default(), evictions: AtomicUsize::new(0), event })
    }

    /// Readable while there are results.
    pub(super) fn event_descriptor(&self) -> &OwnedFd {
        &self.event
    }

    pub(super) fn wake(&self) {
        // Fails only after 2^64 wake-ups, when it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Asks the loop to end one of its connections.
    pub(super) fn request_eviction(&self) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn take_evictions(&self) -> usize {
        self.evictions.swap(0, Ordering::Relaxed)
    }

    pub(super) fn take_results(&self) -> Vec<(u64, JobResult)> {
        // No wake-up is lost: the event is cleared first, so a result that comes after the list was taken
        // sets it again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.lock())
    }

    fn push_result(&self, connection: u64, done: JobOutcome, call_bytes: usize) {
        let step = JobResult { outcome: done, call_bytes };
        let is_awake = {
            let mut done = self.lock();
            done.push((connection, step));
            // The first result wakes the loop, which then takes all results.
            done.len() > 1
        };
        if !is_awake {
            self.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, JobResult)>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most threads that work for one network, so that one is left for others.
const WORKERS_OF_NETWORK_MAX: usize = WORKERS - 1;

/// Work to be done: networks take turns, so a client with many connections has no advantage.
#[derive(Debug, Default)]
pub(super) struct WorkerPool {
    queue: Mutex<JobQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JobQueue {
    waiting: FairQueue<Job>,
    /// The network for which each busy thread works.
    running: Vec<IpAddr>,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

impl JobQueue {
    fn pop(&mut self) -> Option<Job> {
        let Self { waiting, running, .. } = self;
        let count = |network| running.iter().filter(|one| **one == network).count();
        let (network, job) = waiting.pop(|network| count(network) < WORKERS_OF_NETWORK_MAX)?;
        running.push(network);
        Some(job)
    }

    fn finish_job(&mut self, network: IpAddr) {
        let index = self.running.iter().position(|one| *one == network);
        self.running.swap_remove(index.expect("a thread works for it"));
    }
}

impl WorkerPool {
    pub(super) fn submit_job(&self, job: Job) {
        let mut queue = self.lock();
        queue.waiting.push(job.network, job);
        // A busy thread looks for jobs, under this lock, before it waits.
        if queue.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Drops the waiting jobs of a closed connection: otherwise clients in succession could fill the memory.
    pub(super) fn cancel_jobs(&self, connection_id: ConnectionId) {
        self.lock().waiting.retain(|job| job.connection_id != connection_id);
    }

    /// Works until [`shut_down`](Self::shut_down).
    pub(super) fn run_jobs(&self, shared: &SharedState) {
        let core = &shared.core;
        let mut buffer = CopyBuffer::default();
        let put = |to: ConnectionId, done, call_bytes| {
            shared.inboxes[to.event_loop].push_result(to.number, done, call_bytes);
        };
        let mut ended = None;
        while let Some(Job { network, connection_id, client, queued, kind: work }) = self.next_job(ended) {
            let call_bytes = work.call_bytes();
            let done = match work {
                JobKind::Read(call) => JobOutcome::Reply(execute_read(&call, shared, &queued)),
                JobKind::List(call) => JobOutcome::Reply(OutgoingReply::from_bytes(core.answer_list(&call))),
                JobKind::Write(writing) => {
                    writing.run_writes(shared, &mut buffer, |done| put(connection_id, done, 0))
                }
                JobKind::Call { record, moved, address } => {
                    match core
                        .answer_on_connection(&record, address, connection_id)
                        .expect("it was parsed before it was given")
                    {
                        Answer::InProgress { superseded } => {
                            superseded.into_iter().for_each(|other| put(other, JobOutcome::Superseded, 0));
                            JobOutcome::InProgress
                        }
                        Answer::Repeated { reply, also } => {
                            put(also, JobOutcome::Reply(OutgoingReply::from_bytes(reply.clone())), 0);
                            JobOutcome::Reply(OutgoingReply::from_bytes(reply))
                        }
                        answer => JobOutcome::Reply(make_reply(answer, moved, (&client, &queued), shared)),
                    }
                }
            };
            put(connection_id, done, call_bytes);
            ended = Some(network);
        }
    }

    pub(super) fn has_waiting_jobs(&self) -> bool {
        let queue = self.lock();
        queue.is_over || !queue.waiting.is_empty()
    }

    pub(super) fn shut_down(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for a job, after the last one of this thread, if any, has `ended`.
    fn next_job(&self, ended: Option<IpAddr>) -> Option<Job> {
        let mut queue = self.lock();
        if let Some(network) = ended {
            queue.finish_job(network);
        }
        loop {
            if queue.is_over {
                return None;
            }
            if let Some(job) = queue.pop() {
                // Jobs of a network at its limit may have been left when other threads looked.
                if queue.idle > 0 && !queue.waiting.is_empty() {
                    self.changed.notify_one();
                }
                return Some(job);
            }
            queue.idle += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_reply(
    answer: Answer,
    moved: usize,
    (client, queued): (&ClientCounters, &QueuedMemory),
    shared: &SharedState,
) -> OutgoingReply {
    match answer {
        Answer::Reply(reply) => OutgoingReply::from_bytes(reply),
        Answer::Written(reply, count) => {
            client.count_write(count, moved, 0);
            OutgoingReply::from_bytes(reply)
        }
        Answer::List(call) => OutgoingReply::from_bytes(shared.core.answer_list(&call)),
        Answer::Read(call) => execute_read(&call, shared, queued),
        Answer::InProgress { .. } | Answer::Repeated { .. } => unreachable!("it was handled before"),
    }
}

fn execute_read(call: &ReadCall, shared: &SharedState, queued: &QueuedMemory) -> OutgoingReply {
    let file = match shared.core.open_for_read(call) {
        Ok(file) => file,
        Err(refused) => return OutgoingReply::from_bytes(refused),
    };
    let reading = ReadJob { call: *call, file };
    if shared.rotation.is_alternating(Instant::now()) {
        reading.prefetch();
    }
    reading.make_reply(shared, queued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Caller;
    use crate::wire::nfs3::FileHandle;

    fn test_read_job(network: [u8; 4], event_loop: usize, connection: u64) -> Job {
        let file = FileHandle::new(&[]).unwrap();
        let work = JobKind::Read(ReadCall { xid: 0, caller: Caller::Server, file, offset: 0, bytes: 0 });
        let connection_id = ConnectionId { event_loop, number: connection };
        Job {
            network: network.into(),
            connection_id,
            client: Arc::default(),
            queued: Arc::default(),
            kind: work,
        }
    }

    #[test]
    fn worker_threads_of_a_network_are_limited() {
        let (greedy, other) = ([10, 0, 0, 0], [10, 0, 1, 0]);
        let mut queue = JobQueue::default();
        (0..1000).for_each(|number| queue.waiting.push(greedy.into(), test_read_job(greedy, 0, number)));
        let busy = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(busy, WORKERS - 1);
        queue.waiting.push(other.into(), test_read_job(other, 0, 5000));
        assert_eq!(queue.pop().unwrap().connection_id.number, 5000);
        assert!(queue.pop().is_none());
        queue.finish_job(other.into());
        assert!(queue.pop().is_none());
        queue.finish_job(greedy.into());
        assert_eq!(queue.pop().unwrap().connection_id.number, WORKERS as u64 - 1);
    }

    #[test]
    fn jobs_of_closed_connections_are_dropped() {
        let workers = WorkerPool::default();
        let forget =
            |event_loop, connection| workers.cancel_jobs(ConnectionId { event_loop, number: connection });
        for connection in 0..1000 {
            workers.submit_job(test_read_job([10, 0, 0, 0], 0, connection));
            workers.submit_job(test_read_job([10, 0, 0, 0], 0, connection));
            forget(0, connection);
        }
        workers.submit_job(test_read_job([10, 0, 0, 0], 0, 7));
        forget(1, 7);
        let left: Vec<u64> =
            std::iter::from_fn(|| workers.lock().pop()).map(|job| job.connection_id.number).collect();
        assert_eq!(left, [7]);
    }
}
