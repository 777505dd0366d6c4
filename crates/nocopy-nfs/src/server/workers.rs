//! Threads that wait for disks, so that the loops do not: for uncached reads, look-ups of files, and directories.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::Shared;
use super::accounts::ClientCounts;
use super::core::{Answer, ListCall, ReadCall};
use super::output::Outgoing;
use super::reading::Reading;
use super::writing::{Buffer, Done, LongWrite};

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
    pub(super) inbox: Arc<Inbox>,
    pub(super) connection: u64,
    pub(super) client: Arc<ClientCounts>,
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
    event: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { done: Mutex::default(), event })
    }

    /// Readable while there are results.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(super) fn wake(&self) {
        // Fails only after 2^64 wake-ups, when it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<(u64, Step)> {
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

/// Work to be done: networks take turns, so a client with many connections has no advantage.
#[derive(Debug, Default)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The network whose turn is next is at the front; each has its tasks in order of arrival, and at least one.
    networks: VecDeque<(IpAddr, VecDeque<Job>)>,
    is_over: bool,
}

impl Queue {
    fn push(&mut self, job: Job) {
        match self.networks.iter_mut().find(|(network, _)| *network == job.network) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.networks.push_back((job.network, VecDeque::from([job]))),
        }
    }

    fn pop(&mut self) -> Option<Job> {
        let (network, mut jobs) = self.networks.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.networks.push_back((network, jobs));
        }
        job
    }

    fn forget(&mut self, inbox: &Arc<Inbox>, connection: u64) {
        for (_, jobs) in &mut self.networks {
            jobs.retain(|job| job.connection != connection || !Arc::ptr_eq(&job.inbox, inbox));
        }
        self.networks.retain(|(_, jobs)| !jobs.is_empty());
    }
}

impl Workers {
    pub(super) fn give(&self, job: Job) {
        self.lock().push(job);
        self.changed.notify_one();
    }

    /// Drops the waiting jobs of a closed connection: otherwise clients in succession could fill the memory.
    pub(super) fn forget(&self, inbox: &Arc<Inbox>, connection: u64) {
        self.lock().forget(inbox, connection);
    }

    /// Works until [`end`](Self::end).
    pub(super) fn work(&self, shared: &Shared) {
        let core = &shared.core;
        let mut buffer = Buffer::default();
        while let Some(Job { inbox, connection, client, work, .. }) = self.next() {
            let call_bytes = work.call_bytes();
            let done = match work {
                Work::Read(call) => Done::Reply(read(&call, shared)),
                Work::List(call) => Done::Reply(Outgoing::bytes(core.list(&call))),
                Work::Write(writing) => {
                    writing.go_on(shared, &mut buffer, |done| inbox.put(connection, done, 0))
                }
                Work::Call { record, moved, address } => {
                    let answer = core.answer(&record, address).expect("it was parsed before it was given");
                    Done::Reply(reply(answer, moved, &client, shared))
                }
            };
            inbox.put(connection, done, call_bytes);
        }
    }

    pub(super) fn are_wanted(&self) -> bool {
        let queue = self.lock();
        queue.is_over || !queue.networks.is_empty()
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let is_waiting = |queue: &mut Queue| queue.networks.is_empty() && !queue.is_over;
        let queue = self.changed.wait_while(self.lock(), is_waiting);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        if queue.is_over { None } else { queue.pop() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reply(answer: Answer, moved: usize, client: &ClientCounts, shared: &Shared) -> Outgoing {
    match answer {
        Answer::Reply(reply) => Outgoing::bytes(reply),
        Answer::Written(reply, count) => {
            client.note_written(count, moved, 0);
            Outgoing::bytes(reply)
        }
        Answer::List(call) => Outgoing::bytes(shared.core.list(&call)),
        Answer::Read(call) => read(&call, shared),
    }
}

fn read(call: &ReadCall, shared: &Shared) -> Outgoing {
    let file = match shared.core.open(call) {
        Ok(file) => file,
        Err(refused) => return Outgoing::bytes(refused),
    };
    let reading = Reading { call: *call, file };
    if shared.turns.alternate(Instant::now()) {
        reading.fetch();
    }
    reading.read(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Caller;
    use crate::wire::nfs3::FileHandle;

    fn job(network: [u8; 4], inbox: &Arc<Inbox>, connection: u64) -> Job {
        let file = FileHandle::new(&[]).unwrap();
        let work = Work::Read(ReadCall { xid: 0, caller: Caller::Server, file, offset: 0, bytes: 0 });
        let (inbox, client) = (Arc::clone(inbox), Arc::default());
        Job { network: network.into(), inbox, connection, client, work }
    }

    #[test]
    fn networks_take_turns() {
        let (inbox, mut queue) = (Arc::new(Inbox::new().unwrap()), Queue::default());
        (0..1000).for_each(|connection| queue.push(job([10, 0, 0, 0], &inbox, connection)));
        (5000..5003).for_each(|connection| queue.push(job([10, 0, 1, 0], &inbox, connection)));
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|job| job.connection).collect();
        assert_eq!(order[..7], [0, 5000, 1, 5001, 2, 5002, 3]);
        assert_eq!(order.len(), 1003);
    }

    #[test]
    fn work_of_connections_that_ended_is_dropped() {
        let inboxes = [(); 2].map(|()| Arc::new(Inbox::new().unwrap()));
        let workers = Workers::default();
        for connection in 0..1000 {
            workers.give(job([10, 0, 0, 0], &inboxes[0], connection));
            workers.give(job([10, 0, 0, 0], &inboxes[0], connection));
            workers.forget(&inboxes[0], connection);
        }
        workers.give(job([10, 0, 0, 0], &inboxes[0], 7));
        workers.forget(&inboxes[1], 7);
        let left: Vec<u64> = std::iter::from_fn(|| workers.lock().pop()).map(|job| job.connection).collect();
        assert_eq!(left, [7]);
    }
}
