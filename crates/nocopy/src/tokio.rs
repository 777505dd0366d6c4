//! Any half in a tokio program (feature `tokio`).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use nocopy::tokio::{AsyncReceiver, AsyncSender};
//! use nocopy::udp::Socket;
//! let socket = Socket::bind("127.0.0.1:0")?;
//! # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
//! # client.send_to(b"hello", socket.local_addr()?)?;
//! let (receiver, sender) = socket.split();
//! let (mut receiver, mut sender) = (AsyncReceiver::new(receiver)?, AsyncSender::new(sender)?);
//! for datagram in receiver.receive().await? {
//!     let from = datagram.source();
//!     sender.send_to(datagram.take(), from)?; // the methods of the half itself
//! }
//! let mut buffer = sender.buffer().await?; // waits while all are in use
//! buffer.fill(b"more")?;
//! sender.send_to(buffer, client.local_addr()?)?;
//! sender.flush().await?;
//! assert_eq!((client.recv(&mut [0; 10])?, client.recv(&mut [0; 10])?), (5, 4));
//! sender.drain().await?; // all memory is back
//! assert_eq!(sender.in_flight(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```

use std::io;
use std::ops::{Deref, DerefMut};

use crate::engine::half::{ReceiverHalf, SenderHalf};
use crate::engine::wait::STARVED_INTERVAL;
use crate::sys::timed_epoll::TimedEpoll;
use crate::sys::watch::WatchedDescriptors;

/// A half that receives, in a tokio program. It has all methods of the half, but those that wait would block
/// the runtime's thread.
#[derive(Debug)]
pub struct AsyncReceiver<R> {
    watched: WatchedDescriptors,
    half: R,
}

impl<R: ReceiverHalf> AsyncReceiver<R> {
    /// Takes a half over.
    ///
    /// # Errors
    /// No descriptor is left, or no tokio reactor runs here.
    pub fn new(half: R) -> io::Result<Self> {
        let watched = WatchedDescriptors::new_empty()?;
        watched.add_descriptor(&half)?;
        Ok(Self { watched, half })
    }

    /// Resolves when there is something to receive, and returns it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Errors of the half.
    pub async fn receive(&mut self) -> io::Result<R::Received<'_>> {
        while !self.half.arm()? {
            self.watched.next_event().await?;
        }
        self.half.try_receive()
    }
}

/// A half that sends, in a tokio program. It has all methods of the half, but those that wait would block the
/// runtime's thread.
#[derive(Debug)]
pub struct AsyncSender<S> {
    watched: WatchedDescriptors,
    /// Ends waits for buffers that other tasks hold, because no event reports their return.
    timed_epoll: TimedEpoll,
    half: S,
}

impl<S: SenderHalf> AsyncSender<S> {
    /// Takes a half over.
    ///
    /// # Errors
    /// No descriptor is left, or no tokio reactor runs here.
    pub fn new(half: S) -> io::Result<Self> {
        let watched = WatchedDescriptors::new_empty()?;
        watched.add_descriptor(&half)?;
        let timed_epoll = TimedEpoll::default();
        watched.add_descriptor(timed_epoll.descriptor(None))?;
        Ok(Self { watched, timed_epoll, half })
    }

    /// Resolves when there is an empty buffer. Until then it hands over queued data, since that frees
    /// buffers.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn buffer(&mut self) -> io::Result<S::Buffer> {
        loop {
            if let Some(buffer) = self.half.buffer() {
                return Ok(buffer);
            }
            self.half.try_flush()?;
            // The buffers of copied sends are free at once, and no event reports them.
            if let Some(buffer) = self.half.buffer() {
                return Ok(buffer);
            }
            let are_with_others = self.half.in_flight() == 0;
            self.timed_epoll.set_timer(are_with_others.then_some(STARVED_INTERVAL))?;
            self.wait_for_event().await?;
        }
    }

    /// Resolves when everything that was queued is handed over. If the future is dropped, the rest stays
    /// queued.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.half.try_flush()? {
            self.wait_for_event().await?;
        }
        Ok(())
    }

    /// Resolves when everything is handed over and the kernel no longer reads any of the memory.
    ///
    /// # Errors
    /// Errors of [`SenderHalf::try_flush`].
    pub async fn drain(&mut self) -> io::Result<()> {
        self.flush().await?;
        while self.half.in_flight() > 0 {
            self.wait_for_event().await?;
        }
        self.half.reap(); // what finished after the last event
        Ok(())
    }

    /// Waits for an event (completions, room to send), and handles completions.
    async fn wait_for_event(&mut self) -> io::Result<()> {
        if !self.half.arm()? {
            self.watched.next_event().await?;
        }
        self.half.reap();
        Ok(())
    }
}

impl<R> Deref for AsyncReceiver<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.half
    }
}

impl<R> DerefMut for AsyncReceiver<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.half
    }
}

impl<S> Deref for AsyncSender<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.half
    }
}

impl<S> DerefMut for AsyncSender<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.half
    }
}
