//! Threads that wait for disks, so that the loops do not: for uncached reads, look-ups of files, and
//! directories.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::accounts::ClientCounts;
use super::core::{Answer, Asker, ListCall, ReadCall};
use super::fair::FairQueue;
use super::output::{Outgoing, Queued};
use super::reading::Reading;
use super::writing::{Buffer, Done, LongWrite};
use super::{Shared, WORKERS};

#[derive(Debug)]
pub(super) enum Work {
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

impl Work {
    fn call_bytes(&self) -> usize {
        if let Self::Call { record, .. } = self { record.len() } else { 0 }
    }
}

/// A task of a connection, and its loop.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) network: IpAddr,
    pub(super) asker: Asker,
    pub(super) client: Arc<ClientCounts>,
    pub(super) queued: Arc<Queued>,
    pub(super) work: Work,
}

/// A result for a connection, and the bytes of its call that are no longer held.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) done: Done,
    pub(super) call_bytes: usize,
}

/// Results for the connections of a loop, which is woken for them.
#[derive(Debug)]
pub(super) struct Inbox {
    done: Mutex<Vec<(u64, Step)>>,
    /// How many connections of the loop must end to make place for others.
    places: AtomicUsize,
    event: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { done: Mutex::default(), places: AtomicUsize::new(0), event })
    }

    /// Readable while there are results.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(super) fn wake(&self) {
        // Fails only after 2^64 wake-ups, when it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Asks the loop to end one of its connections.
    pub(super) fn ask_for_place(&self) {
        self.places.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn take_places(&self) -> usize {
        self.places.swap(0, Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<(u64, Step)> {
        // No wake-up is lost: the event is cleared first, so a result that comes after the list was taken
        // sets it again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.lock())
    }

    fn put(&self, connection: u64, done: Done, call_bytes: usize) {
        let step = Step { done, call_bytes };
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

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Step)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most threads that work for one network, so that one is left for others.
const WORKERS_OF_NETWORK_MAX: usize = WORKERS - 1;

/// Work to be done: networks take turns, so a client with many connections has no advantage.
#[derive(Debug, Default)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: FairQueue<Job>,
    /// The network for which each busy thread works.
    running: Vec<IpAddr>,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

impl Queue {
    fn pop(&mut self) -> Option<Job> {
        let Self { waiting, running, .. } = self;
        let count = |network| running.iter().filter(|one| **one == network).count();
        let (network, job) = waiting.pop(|network| count(network) < WORKERS_OF_NETWORK_MAX)?;
        running.push(network);
        Some(job)
    }

    fn end(&mut self, network: IpAddr) {
        let place = self.running.iter().position(|one| *one == network);
        self.running.swap_remove(place.expect("a thread works for it"));
    }
}

impl Workers {
    pub(super) fn give(&self, job: Job) {
        let mut queue = self.lock();
        queue.waiting.push(job.network, job);
        // A busy thread looks for jobs, under this lock, before it waits.
        if queue.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Drops the waiting jobs of a closed connection: otherwise clients in succession could fill the memory.
    pub(super) fn forget(&self, asker: Asker) {
        self.lock().waiting.retain(|job| job.asker != asker);
    }

    /// Works until [`end`](Self::end).
    pub(super) fn work(&self, shared: &Shared) {
        let core = &shared.core;
        let mut buffer = Buffer::default();
        let put = |to: Asker, done, call_bytes| {
            shared.inboxes[to.event_loop].put(to.connection, done, call_bytes);
        };
        let mut ended = None;
        while let Some(Job { network, asker, client, queued, work }) = self.next(ended) {
            let call_bytes = work.call_bytes();
            let done = match work {
                Work::Read(call) => Done::Reply(read(&call, shared, &queued)),
                Work::List(call) => Done::Reply(Outgoing::bytes(core.list(&call))),
                Work::Write(writing) => writing.go_on(shared, &mut buffer, |done| put(asker, done, 0)),
                Work::Call { record, moved, address } => {
                    match core.answer_to(&record, address, asker).expect("it was parsed before it was given")
                    {
                        Answer::InProgress { superseded } => {
                            superseded.into_iter().for_each(|other| put(other, Done::Superseded, 0));
                            Done::InProgress
                        }
                        Answer::Repeated { reply, also } => {
                            put(also, Done::Reply(Outgoing::bytes(reply.clone())), 0);
                            Done::Reply(Outgoing::bytes(reply))
                        }
                        answer => Done::Reply(reply(answer, moved, (&client, &queued), shared)),
                    }
                }
            };
            put(asker, done, call_bytes);
            ended = Some(network);
        }
    }

    pub(super) fn are_wanted(&self) -> bool {
        let queue = self.lock();
        queue.is_over || !queue.waiting.is_empty()
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for a job, after the last one of this thread, if any, has `ended`.
    fn next(&self, ended: Option<IpAddr>) -> Option<Job> {
        let mut queue = self.lock();
        if let Some(network) = ended {
            queue.end(network);
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

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reply(
    answer: Answer,
    moved: usize,
    (client, queued): (&ClientCounts, &Queued),
    shared: &Shared,
) -> Outgoing {
    match answer {
        Answer::Reply(reply) => Outgoing::bytes(reply),
        Answer::Written(reply, count) => {
            client.note_written(count, moved, 0);
            Outgoing::bytes(reply)
        }
        Answer::List(call) => Outgoing::bytes(shared.core.list(&call)),
        Answer::Read(call) => read(&call, shared, queued),
        Answer::InProgress { .. } | Answer::Repeated { .. } => unreachable!("it was handled before"),
    }
}

fn read(call: &ReadCall, shared: &Shared, queued: &Queued) -> Outgoing {
    let file = match shared.core.open(call) {
        Ok(file) => file,
        Err(refused) => return Outgoing::bytes(refused),
    };
    let reading = Reading { call: *call, file };
    if shared.turns.alternate(Instant::now()) {
        reading.fetch();
    }
    reading.read(shared, queued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Caller;
    use crate::wire::nfs3::FileHandle;

    fn job(network: [u8; 4], event_loop: usize, connection: u64) -> Job {
        let file = FileHandle::new(&[]).unwrap();
        let work = Work::Read(ReadCall { xid: 0, caller: Caller::Server, file, offset: 0, bytes: 0 });
        let asker = Asker { event_loop, connection };
        Job { network: network.into(), asker, client: Arc::default(), queued: Arc::default(), work }
    }

    #[test]
    fn one_network_leaves_a_thread_to_others() {
        let (greedy, other) = ([10, 0, 0, 0], [10, 0, 1, 0]);
        let mut queue = Queue::default();
        (0..1000).for_each(|number| queue.waiting.push(greedy.into(), job(greedy, 0, number)));
        let busy = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(busy, WORKERS - 1);
        queue.waiting.push(other.into(), job(other, 0, 5000));
        assert_eq!(queue.pop().unwrap().asker.connection, 5000);
        assert!(queue.pop().is_none());
        queue.end(other.into());
        assert!(queue.pop().is_none());
        queue.end(greedy.into());
        assert_eq!(queue.pop().unwrap().asker.connection, WORKERS as u64 - 1);
    }

    #[test]
    fn work_of_connections_that_ended_is_dropped() {
        let workers = Workers::default();
        let forget = |event_loop, connection| workers.forget(Asker { event_loop, connection });
        for connection in 0..1000 {
            workers.give(job([10, 0, 0, 0], 0, connection));
            workers.give(job([10, 0, 0, 0], 0, connection));
            forget(0, connection);
        }
        workers.give(job([10, 0, 0, 0], 0, 7));
        forget(1, 7);
        let left: Vec<u64> =
            std::iter::from_fn(|| workers.lock().pop()).map(|job| job.asker.connection).collect();
        assert_eq!(left, [7]);
    }
}
