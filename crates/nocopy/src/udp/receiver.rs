//! The half that receives, by a kernel socket or over a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use either::Either::{self, Left, Right};
use either::for_both;

use super::batch::Batch;
#[cfg(feature = "futures")]
use super::batch::{Datagram, OwnedDatagram};
use super::open_error::OpenError;
use super::placed::{PlacedReceiver, Placing};
use super::rows::RowFiller;
use super::{kernel, over_port};
use crate::engine::half::{blocking_half, receiver_half};
use crate::engine::wait::Wait;
use crate::facts::evidence::Ledger;
use crate::facts::method_explanation::Explanation;
use crate::memory::area::Frame;
use crate::memory::pool::{Buffer, BufferMut};
use crate::stats::Stats;

/// The receiving half of a socket.
///
/// Datagrams of one sender that arrive together share a buffer, if the kernel coalesces them (`UDP_GRO`).
/// That needs buffers of at least 64 KiB; with smaller ones each datagram has its own, and longer ones are
/// truncated and [marked](super::Datagram::is_truncated). Over a port each datagram is in the frame that it
/// arrived in.
///
/// Errors that the network reports for sent datagrams do not end receiving:
/// [`Sender::errors`](super::NonblockingSender::errors) returns them.
///
/// **Waiting**: the descriptor of [`AsFd`] becomes readable; it is not the socket, and can only be waited on.
/// It is also readable while the sending half has unread completions, so wait edge-triggered after
/// [`arm`](NonblockingReceiver::arm), or let [`receive_timeout`](Self::receive_timeout) wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nocopy::udp::Socket;
/// let socket = Socket::bind("127.0.0.1:0")?;
/// let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// client.send_to(b"hello", socket.local_addr()?)?;
/// let (mut receiver, mut sender) = socket.split();
/// for datagram in receiver.receive()? {
///     let from = datagram.source();
///     sender.send_to(datagram.take(), from)?; // the memory that it came in: no byte moves here
/// }
/// sender.flush()?;
/// let mut answer = [0; 10];
/// assert_eq!(client.recv(&mut answer)?, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Receiver(pub(super) NonblockingReceiver);

impl Receiver {
    /// Waits for datagrams and returns those that have arrived, in at most a batch of buffers. The batch may
    /// be empty: a signal ended the wait, or the packets were not datagrams for this socket.
    ///
    /// # Errors
    /// `OutOfMemory`: all buffers of the pool are in use; datagrams wait in the kernel until one returns.
    /// Other errors come from the kernel, or mean that the port's interface is down or was removed.
    pub fn receive(&mut self) -> io::Result<Batch<'_>> {
        self.0.receive_within(None)
    }

    /// Like [`Receiver::receive`], but returns an empty batch if nothing arrives for `timeout`. If the kernel
    /// waits, the time is rounded up to ticks of its clock (1 to 10 ms).
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use std::time::Duration;
    /// assert_eq!(socket.receiver().receive_timeout(Duration::from_millis(1))?.count(), 0);
    /// client.send_to(b"hello", socket.local_addr()?)?;
    /// assert_eq!(socket.receiver().receive_timeout(Duration::from_secs(5))?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Batch<'_>> {
        self.0.receive_within(Some(timeout))
    }

    /// Waits for datagrams, for at most `timeout` if there is one, and receives those that have arrived into
    /// rows of the memory, from the first row on; at most as many as it has rows. Returns the number of rows
    /// that were filled, about which [`RowFiller::filled`] tells more: 0 when the time is over, or if a
    /// signal ended the wait. Rows behind them may have been written, too.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_into(
        &mut self,
        memory: &mut BufferMut,
        rows: &mut RowFiller,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        match &mut self.0.0 {
            Left(kernel) => rows.fill(kernel, memory, timeout),
            Right(port) => {
                rows.begin();
                rows.fill_from(Batch::from_port(port.receive_within(timeout)?), memory);
                Ok(rows.filled().len())
            }
        }
    }

    /// Changes how to wait, from the next wait on; see [`Builder::wait`](super::Builder::wait).
    pub fn set_wait(&mut self, wait: Wait) {
        for_both!(&mut self.0.0, half => half.set_wait(wait));
    }

    /// From now on puts the payload of each datagram into its row of a chunk, by a number in the datagram.
    ///
    /// # Errors
    /// The half comes back. [`OpenError::Placing`]: the settings are impossible, or a datagram with a row is
    /// longer than the buffers to receive into. [`OpenError::Memory`]: there is not enough for the ring.
    pub fn place(self, placing: Placing) -> Result<PlacedReceiver, NotPlaced> {
        PlacedReceiver::new(self.0.0, &placing)
            .map_err(|(source, reason)| NotPlaced { receiver: Self(NonblockingReceiver(source)), reason })
    }

    /// The half for a tokio program, whose waits are futures.
    ///
    /// # Errors
    /// No descriptor is left.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> io::Result<super::AsyncReceiver> {
        if let Left(kernel) = &self.0.0 {
            kernel.open_descriptor()?;
        }
        super::AsyncReceiver::new(self.0)
    }
}

/// A half that [`place`](Receiver::place) refused; it receives as before.
///
/// ```
/// use nocopy::udp::{Field, NotPlaced, Placing, Socket};
/// let (receiver, _) = Socket::bind("127.0.0.1:0")?.split();
/// let without_rows = Placing::by_number(Field::big_endian(0, 8)).shape(0, 1400);
/// let NotPlaced { mut receiver, reason } = receiver.place(without_rows).unwrap_err();
/// assert!(reason.to_string().starts_with("rows of a chunk: 0 is refused"));
/// assert_eq!(receiver.try_receive()?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotPlaced {
    /// The half.
    pub receiver: Receiver,
    /// Why it does not place datagrams.
    pub reason: OpenError,
}

blocking_half!(Receiver, NonblockingReceiver);

/// What never waits of a [`Receiver`]: both it and its asynchronous form deref to this.
#[derive(Debug)]
pub struct NonblockingReceiver(Either<Box<kernel::Receiver>, Box<over_port::Receiver>>);

impl NonblockingReceiver {
    pub(super) fn from_kernel(receiver: kernel::Receiver) -> Self {
        Self(Left(Box::new(receiver)))
    }

    #[cfg(feature = "port")]
    pub(super) fn from_port(receiver: over_port::Receiver) -> Self {
        Self(Right(Box::new(receiver)))
    }

    /// Waits for at most `timeout`, if there is one: for the blocking half.
    fn receive_within(&mut self, timeout: Option<Duration>) -> io::Result<Batch<'_>> {
        match &mut self.0 {
            Left(kernel) => kernel.receive_within(timeout),
            Right(port) => port.receive_within(timeout).map(Batch::from_port),
        }
    }

    /// Returns waiting datagrams, possibly none, without waiting.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    #[inline]
    pub fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        match &mut self.0 {
            Left(kernel) => kernel.try_receive(),
            Right(port) => port.try_receive().map(Batch::from_port),
        }
    }

    /// Returns the next waiting datagram, taken, without waiting.
    #[cfg(feature = "futures")]
    #[inline]
    pub(crate) fn try_take(&mut self) -> Option<io::Result<OwnedDatagram>> {
        match &mut self.0 {
            Left(kernel) => kernel.try_take(),
            Right(port) => {
                let batch = port.try_receive().map(Batch::from_port);
                batch.map(|mut batch| batch.next().map(Datagram::take)).transpose()
            }
        }
    }

    /// Prepares for a wait on the descriptor ([`AsFd`]), and returns true if datagrams are waiting already,
    /// so that no wait is needed.
    ///
    /// ```
    /// # use nocopy::udp::Socket;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut socket = Socket::bind("127.0.0.1:0")?;
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// let to = socket.local_addr()?;
    /// let receiver = socket.receiver();
    /// assert!(!receiver.arm()?); // nothing is there: wait
    /// client.send_to(b"hello", to)?;
    /// poll(&mut [PollFd::new(&receiver, PollFlags::IN)], None)?; // or epoll, with other descriptors
    /// assert_eq!(receiver.try_receive()?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn arm(&mut self) -> io::Result<bool> {
        for_both!(&mut self.0, half => half.arm())
    }

    /// Takes memory back to receive into, more cheaply than dropping it: an [owned
    /// datagram](super::OwnedDatagram), or its buffer.
    pub fn recycle(&mut self, memory: impl Into<Buffer>) {
        let memory = memory.into();
        match &mut self.0 {
            Left(kernel) => kernel.recycle(memory),
            Right(port) => {
                if let Ok(frame) = Frame::try_from(memory) {
                    port.recycle(frame);
                }
            }
        }
    }

    /// The evidence for the received payloads. A kernel socket copies every byte
    /// ([`Cause::SocketCall`](crate::Cause::SocketCall)); over a port it is the port's evidence.
    pub fn ledger(&self) -> Ledger {
        for_both!(&self.0, half => half.ledger())
    }

    /// All counters. `sk_drops` counts packets that the kernel dropped at the socket, because its receive
    /// buffer was full (receive more often, or see
    /// [`Builder::receive_buffer`](super::Builder::receive_buffer)) or a checksum was wrong: each is a
    /// datagram, or several coalesced ones. Over a port it counts drops of the kernel socket behind the port,
    /// which in packet ring mode also drops the datagrams that the port receives; so it is not part of
    /// [`Stats::dropped`] there. Sockets over all queues share this kernel socket, and the first reports its
    /// count. It is absent if the kernel does not report its drops (before Linux 4.12).
    pub fn stats(&self) -> Stats {
        for_both!(&self.0, half => half.stats())
    }

    /// How datagrams are received: by a kernel socket, which copies each, or over a port, with the port's
    /// explanation.
    ///
    /// ```
    /// use nocopy::{Cause, Evidence, udp::Socket};
    /// let mut socket = Socket::bind("127.0.0.1:0")?;
    /// let explanation = socket.receiver().explain();
    /// println!("{explanation}");
    /// assert_eq!(explanation.evidence, Evidence::Copied(Cause::SocketCall));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self) -> Explanation {
        for_both!(&self.0, half => half.explain())
    }

    /// Receives only from that address.
    pub(super) fn set_peer(&mut self, to: std::net::SocketAddr) {
        // At a kernel socket, the kernel sees to it.
        if let Right(port) = &mut self.0 {
            port.set_peer(to);
        }
    }
}

receiver_half!(NonblockingReceiver, Batch<'half>);

impl AsFd for NonblockingReceiver {
    /// A descriptor that is readable while something can be received; nothing can be sent on it.
    ///
    /// # Panics
    /// At the first call, if the process has no descriptor left.
    fn as_fd(&self) -> BorrowedFd<'_> {
        for_both!(&self.0, half => half.as_fd())
    }
}
