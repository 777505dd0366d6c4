//! Threads that wait for disks, so that the loops do not: reads of cold files, and directories.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::Shared;
use super::core::{ListCall, ReadCall};
use super::output::Outgoing;
use super::reading::Reading;

/// What there is to do.
#[derive(Debug)]
pub(super) enum Work {
    Read(ReadCall),
    List(ListCall),
}

/// Work of a connection, and which loop has it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) inbox: Arc<Inbox>,
    pub(super) connection: u64,
    pub(super) work: Work,
}

/// Where a loop finds what was done for its connections; it is woken for that.
#[derive(Debug)]
pub(super) struct Inbox {
    done: Mutex<Vec<(u64, Outgoing)>>,
    event: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { done: Mutex::default(), event })
    }

    /// Readable while something is there.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(super) fn wake(&self) {
        // It fails only where it is awake already, 2^64 times.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Everything that was done for which connections.
    pub(super) fn take(&self) -> Vec<(u64, Outgoing)> {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.lock())
    }

    fn put(&self, connection: u64, reply: Outgoing) {
        self.lock().push((connection, reply));
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Outgoing)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work in the order it came. Each connection has only a few jobs here at a time, so none waits behind all of another's.
#[derive(Debug, Default)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_over: bool,
}

impl Workers {
    pub(super) fn give(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.changed.notify_one();
    }

    /// Works until [`end`](Self::end).
    pub(super) fn work(&self, shared: &Shared) {
        let core = &shared.core;
        while let Some(Job { inbox, connection, work }) = self.next() {
            let reply = match work {
                Work::Read(call) => match core.open(&call) {
                    Ok(file) => Reading { call, file }.read(shared),
                    Err(refused) => Outgoing::bytes(refused),
                },
                Work::List(call) => Outgoing::bytes(core.list(&call)),
            };
            inbox.put(connection, reply);
        }
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let is_waiting = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_over;
        let queue = self.changed.wait_while(self.lock(), is_waiting);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        if queue.is_over { None } else { queue.jobs.pop_front() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
