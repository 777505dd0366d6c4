//! The endpoint that threads share, and a stand-in for what it shares: messages without contents, and a count
//! of events.

#[path = "../../nocopy/src/message/shared.rs"]
mod shared;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::wait::Wait;
use crate::sys::poll;

pub(crate) mod endpoint {
    use std::time::{Duration, Instant};

    pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Patience {
        None,
    }

    pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
        assert!(deadline.is_none(), "no time passes in a model");
        false
    }
}

#[derive(Debug)]
pub struct Message<'a>(#[expect(dead_code, reason = "borrowed as the library's")] &'a ());

#[derive(Debug)]
pub struct Descriptor(Arc<OwnedFd>);

#[derive(Debug)]
pub struct Carrier;

#[derive(Debug)]
pub struct Endpoint {
    pub(crate) descriptor: Descriptor,
    pub(crate) carrier: Carrier,
    pub(crate) wait: Wait,
    /// Messages that were taken from the kernel and not read.
    messages: usize,
    /// Events that ended no wait yet.
    events: usize,
}

impl Descriptor {
    pub(crate) fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// A time that is still to come never does in a model.
    pub(crate) fn arm(&self, _: &Carrier, within: Option<Duration>) -> io::Result<()> {
        poll::set_timer(within == Some(Duration::ZERO));
        Ok(())
    }
}

impl Endpoint {
    fn new() -> Self {
        let descriptor = Descriptor(Arc::new(File::open("/dev/null").unwrap().into()));
        Self { descriptor, carrier: Carrier, wait: Wait, messages: 0, events: 0 }
    }

    fn work(&mut self) {
        let (messages, events) = poll::take_arrived();
        self.messages += messages;
        self.events += events;
    }

    pub(crate) fn find_message(&mut self, _: endpoint::Patience) -> io::Result<()> {
        if self.messages == 0 {
            self.work();
        }
        Ok(())
    }

    pub(crate) fn has_message(&self) -> bool {
        self.messages > 0
    }

    pub(crate) fn receive_found(&mut self) -> Option<Message<'_>> {
        self.messages = self.messages.checked_sub(1)?;
        Some(Message(&()))
    }

    /// One event ends all waits there are; others that came with it end no further ones.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.events) > 0
    }

    pub(crate) fn arm_for(&mut self, messages: bool) -> io::Result<bool> {
        self.work();
        if messages && self.messages > 0 || self.events > 0 || poll::has_arrived() {
            return Ok(true);
        }
        self.arm_descriptor(None)?;
        Ok(false)
    }

    pub(crate) fn arm_descriptor(&mut self, due: Option<Duration>) -> io::Result<()> {
        self.descriptor.arm(&self.carrier, due)
    }

    pub(crate) fn next_timeout(&mut self) -> Option<Duration> {
        None
    }

    pub(crate) fn watch_streams(&mut self) {}
}

mod tests {
    use loom::thread;

    use super::shared::Shared;
    use super::*;

    /// Every interleaving with so many changes of the thread where the running one could have gone on.
    fn model(steps: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(steps);
    }

    fn receive(shared: &Shared) {
        while shared.lock().receive().unwrap().is_none() {}
    }

    /// Proves that each of two threads that wait gets its message: a model in which one sleeps for ever
    /// fails.
    #[test]
    fn two_messages_reach_two_threads() {
        model(|| {
            let shared = Shared::from(Endpoint::new());
            let threads = [0, 1].map(|_| {
                let shared = shared.clone();
                thread::spawn(move || receive(&shared))
            });
            poll::simulate_arrival(1, 0);
            poll::simulate_arrival(1, 0);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Proves that a message reaches the thread that waits for it where another thread, which sends, has
    /// taken it from the kernel.
    #[test]
    fn a_message_taken_by_a_thread_that_sends_is_handed_on() {
        model(|| {
            let shared = Shared::from(Endpoint::new());
            let waiting = shared.clone();
            let thread = thread::spawn(move || receive(&waiting));
            poll::simulate_arrival(1, 0);
            shared.lock().work();
            thread.join().unwrap();
        });
    }

    /// Proves that an event ends the waits for an event and for a message, whichever of the threads watches
    /// the descriptor.
    #[test]
    fn an_event_ends_all_waits() {
        model(|| {
            let shared = Shared::from(Endpoint::new());
            let waiting = [shared.clone(), shared];
            let begun = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let [for_message, for_event] = waiting;
            let threads = [
                thread::spawn({
                    let begun = begun.clone();
                    move || {
                        let mut locked = for_message.lock();
                        begun.fetch_add(1, loom::sync::atomic::Ordering::SeqCst);
                        assert!(locked.receive().unwrap().is_none());
                    }
                }),
                thread::spawn({
                    let begun = begun.clone();
                    move || {
                        let mut locked = for_event.lock();
                        begun.fetch_add(1, loom::sync::atomic::Ordering::SeqCst);
                        assert!(locked.wait(Duration::MAX).unwrap());
                    }
                }),
            ];
            // An event that comes before a wait ends another one.
            while begun.load(loom::sync::atomic::Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            poll::simulate_arrival(0, 1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
