//! One endpoint for several threads.
//!
//! Threads share the endpoint by a lock, which they release while they wait. One waiting thread, the
//! *watcher*, polls the endpoint's descriptor without the lock. The others sleep until a message or event is
//! there for them, or until they are to become the watcher. A thread that releases the lock
//!
//! * wakes a sleeping thread if there is something for it;
//! * makes the descriptor readable if there is something for the watcher, or if the protocol has an earlier
//!   deadline now;
//! * wakes a sleeping thread as the new watcher if there is none.
//!
//! A thread that was woken in vain, because another was faster, waits again in the same way.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::endpoint::{LOOK_INTERVAL, Patience, is_over};
use super::{Endpoint, Message};
use crate::engine::wait::{self, WaitSource, WakeupCoalescer};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::poll::{Wakeup, wait_readable};

/// An [`Endpoint`] that several threads use: a cloneable handle, made by `Shared::from(endpoint)`.
///
/// [`lock`](Self::lock) gives the endpoint to one thread at a time, with all its methods. The lock is given
/// up while a thread [waits for a message](Locked::receive) or [for an event](Locked::wait): any number of
/// threads can wait, and others can send meanwhile. Each message goes to one of them; an event ends all
/// waits, and [`poll_event`](super::NonblockingEndpoint::poll_event) returns it to the first that asks.
///
/// ```
/// use nocopy::message::{Endpoint, Event, Message, Shared};
/// use std::time::Duration;
/// # let mut client = Endpoint::bind("127.0.0.1:0")?;
/// # let to_server = {
/// let server = Endpoint::bind("127.0.0.1:0")?;
/// # let to_server = client.start_connect(server.local_addr())?;
/// let server = Shared::from(server);
/// for _ in 0..2 {
///     let server = server.clone();
///     std::thread::spawn(move || loop {
///         let message = server.lock().receive()?.map(Message::take); // owned, so the lock is free
///         let Some(message) = message else { continue }; // an event
///         let (answer, from) = (message.to_vec().to_ascii_uppercase(), message.peer());
///         let mut endpoint = server.lock();
///         endpoint.send_to(answer, from)?;
///         endpoint.flush()?;
/// #       if false { return Ok::<(), std::io::Error>(()); }
///     });
/// }
/// # to_server };
/// # while !matches!(client.poll_event(), Some(Event::Connected(..))) {
/// #     client.wait(Duration::from_millis(1))?;
/// # }
/// client.send_copy_to(b"hello", to_server)?;
/// let answer = loop {
///     if let Some(answer) = client.receive()? {
///         break answer.to_vec();
///     }
/// };
/// assert_eq!(answer, b"HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Wakes threads that wait for a message or an event.
    message: Condvar,
    /// Wakes threads that wait for an event.
    event: Condvar,
    /// The descriptor of the endpoint, to be watched without the lock.
    descriptor: Arc<OwnedFd>,
}

struct State {
    endpoint: Endpoint,
    /// What the thread that watches the descriptor waits for, if there is one.
    watcher: Option<Wish>,
    /// Sleeping threads, by what they wait for.
    messages: usize,
    events: usize,
    /// The descriptor was made readable for the thread that watches it, which has not noticed yet.
    is_rung: bool,
    /// How often events have ended all waits.
    news: u64,
}

/// What ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Message,
    Event,
}

/// An endpoint for one thread, until this is dropped; see [`Shared`].
///
/// It has the methods of [`Endpoint`]. Those of its own give the lock up while they wait. Others that wait
/// keep it: [`connect`](Endpoint::connect) (use
/// [`start_connect`](super::NonblockingEndpoint::start_connect)), [`call`](Endpoint::call),
/// [`drain`](Endpoint::drain) and [`close`](Endpoint::close).
#[must_use = "dropping it gives the lock up"]
pub struct Locked<'a> {
    shared: &'a Inner,
    /// `None` only within a wait.
    state: Option<MutexGuard<'a, State>>,
}

impl From<Endpoint> for Shared {
    fn from(endpoint: Endpoint) -> Self {
        let descriptor = endpoint.descriptor.shared();
        let state = State { endpoint, watcher: None, messages: 0, events: 0, is_rung: false, news: 0 };
        let (message, event) = (Condvar::new(), Condvar::new());
        Self(Arc::new(Inner { state: Mutex::new(state), message, event, descriptor }))
    }
}

impl Shared {
    /// Waits until no other thread has the endpoint, and takes it.
    pub fn lock(&self) -> Locked<'_> {
        Locked { shared: &self.0, state: Some(self.0.lock()) }
    }
}

impl Locked<'_> {
    /// Waits for the next message, as [`Endpoint::receive`] does; others can use the endpoint meanwhile.
    /// `None` if an event ended the wait.
    ///
    /// # Errors
    /// As [`Endpoint::receive`].
    pub fn receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.receive_until(None)
    }

    /// Waits for the next message for `timeout` at most. `None` if none came, or an event ended the wait.
    ///
    /// # Errors
    /// As [`Endpoint::receive`].
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Option<Message<'_>>> {
        self.receive_until(Instant::now().checked_add(timeout))
    }

    fn receive_until(&mut self, deadline: Option<Instant>) -> io::Result<Option<Message<'_>>> {
        self.wait_until(Wish::Message, deadline)?;
        Ok(self.state().endpoint.receive_found())
    }

    /// Waits until there is an event, but not longer than `timeout`; returns whether there was one. Messages
    /// end no such wait: they are for threads that [receive](Self::receive). What a thread waits with whose
    /// message was refused as [`Full`](crate::Reason::Full): from then until the wait no other thread can
    /// take [`Event::Writable`](super::Event::Writable), so none is missed.
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event, Peer, Shared};
    /// use nocopy::Reason;
    /// use std::time::Duration;
    /// fn send(endpoint: &Shared, message: &[u8], to: Peer) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut endpoint = endpoint.lock();
    ///     while let Err(reason) = endpoint.send_copy_to(message, to) {
    ///         let Reason::Full = reason else { return Err(reason.into()) };
    ///         endpoint.wait(Duration::from_secs(10))?; // room may have been made for another message
    ///     }
    ///     Ok(endpoint.flush()?)
    /// }
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let left = Shared::from(Endpoint::bind("127.0.0.1:0")?);
    /// # let peer = left.lock().start_connect(right.local_addr())?;
    /// # std::thread::scope(|threads| {
    /// #     threads.spawn(|| while right.receive().unwrap().is_none() {});
    /// #     send(&left, b"hello", peer)
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Endpoint::receive`].
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.wait_until(Wish::Event, Instant::now().checked_add(timeout))
    }

    /// Waits; returns whether an event ended it.
    fn wait_until(&mut self, wish: Wish, deadline: Option<Instant>) -> io::Result<bool> {
        let seen = self.state().news;
        loop {
            let shared = self.shared;
            let state = self.state();
            state.endpoint.find_message(Patience::None)?;
            if wish == Wish::Message && state.endpoint.has_message() {
                return Ok(false);
            }
            state.take_news(shared);
            if state.news != seen {
                return Ok(true);
            }
            if is_over(deadline) {
                return Ok(false);
            }
            match state.watcher {
                Some(_) => self.sleep(wish, deadline, seen),
                None => self.watch(wish, deadline, seen)?,
            }
        }
    }

    /// Sleeps until a wake-up or the deadline, unless there was an event meanwhile.
    fn sleep(&mut self, wish: Wish, deadline: Option<Instant>, seen: u64) {
        let shared = self.shared;
        let state = self.state();
        state.hand_on(shared);
        if state.news != seen {
            return;
        }
        let Some(mut state) = self.state.take() else { return };
        *state.sleepers(wish) += 1;
        let bell = shared.bell(wish);
        state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => bell.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
        };
        *state.sleepers(wish) -= 1;
        self.state = Some(state);
    }

    /// Watches the descriptor until it is readable, or the deadline.
    fn watch(&mut self, wish: Wish, deadline: Option<Instant>, seen: u64) -> io::Result<()> {
        let state = self.state();
        if state.endpoint.arm_for(wish == Wish::Message)? {
            if wish == Wish::Event && state.endpoint.has_message() {
                // The message is for another thread; until it is read, there may be no memory for datagrams
                // that make it readable.
                let look = Instant::now() + LOOK_INTERVAL;
                self.sleep(wish, Some(deadline.map_or(look, |deadline| deadline.min(look))), seen);
            }
            return Ok(());
        }
        let Some(mut state) = self.state.take() else { return Ok(()) };
        state.watcher = Some(wish);
        state.hand_on(self.shared);
        let how = state.endpoint.wait;
        drop(state);
        let mut descriptor =
            Watched { fd: self.shared.descriptor.as_fd(), coalescer: WakeupCoalescer::default() };
        let waited = wait::wait(&mut descriptor, how, deadline);
        let mut state = self.shared.lock();
        (state.watcher, state.is_rung) = (None, false);
        self.state = Some(state);
        waited
    }

    fn state(&mut self) -> &mut State {
        self.state.as_mut().expect("no wait is on")
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked with the lock left an endpoint between two of its methods.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bell(&self, wish: Wish) -> &Condvar {
        match wish {
            Wish::Message => &self.message,
            Wish::Event => &self.event,
        }
    }
}

impl State {
    fn sleepers(&mut self, wish: Wish) -> &mut usize {
        match wish {
            Wish::Message => &mut self.messages,
            Wish::Event => &mut self.events,
        }
    }

    /// Ends all waits if there is an event that ended no wait yet.
    fn take_news(&mut self, shared: &Inner) {
        if self.endpoint.take_news() {
            self.news += 1;
            shared.message.notify_all();
            shared.event.notify_all();
            self.wake_watcher();
        }
    }

    /// Makes sure, when the lock is released, that remaining messages and events reach the threads that wait
    /// for them.
    fn hand_on(&mut self, shared: &Inner) {
        if self.watcher.is_none() && self.messages + self.events == 0 {
            return;
        }
        self.take_news(shared);
        if self.endpoint.has_message() {
            match self.watcher {
                _ if self.messages > 0 => shared.message.notify_one(),
                Some(Wish::Message) => self.wake_watcher(),
                _ => {}
            }
        }
        if self.watcher.is_some() {
            self.endpoint.watch_streams(); // looks by others may have ended that
        }
        match self.watcher {
            // Again, since the program may have armed the endpoint meanwhile.
            Some(_) if self.is_rung => self.ring(Some(Duration::ZERO)),
            Some(_) => {
                let due = self.endpoint.next_timeout();
                self.ring(due);
            }
            None if self.messages > 0 => shared.message.notify_one(),
            None => shared.event.notify_one(),
        }
    }

    /// Makes the descriptor readable within this time.
    fn ring(&mut self, within: Option<Duration>) {
        let _ = self.endpoint.arm_descriptor(within); // the timer takes any time
    }

    fn wake_watcher(&mut self) {
        if self.watcher.is_some() {
            self.is_rung = true;
            self.ring(Some(Duration::ZERO));
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.state.as_ref().expect("no wait is on").endpoint
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Endpoint {
        &mut self.state().endpoint
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(state) = &mut self.state {
            state.hand_on(self.shared);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locked").field(&**self).finish()
    }
}

/// The descriptor, as waits use it.
struct Watched<'a> {
    fd: BorrowedFd<'a>,
    coalescer: WakeupCoalescer,
}

impl WaitSource for Watched<'_> {
    /// Compared with a system call, reading the clock costs nothing.
    fn polls_per_clock_read(&self) -> u32 {
        1
    }

    fn is_ready(&mut self) -> bool {
        !matches!(wait_readable(self.fd, Duration::ZERO), Ok(Wakeup::TimedOut | Wakeup::Interrupted))
    }

    /// It is armed already.
    fn arm(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        wait_readable(self.fd, timeout)
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        (0, u32::MAX)
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        &mut self.coalescer
    }
}
