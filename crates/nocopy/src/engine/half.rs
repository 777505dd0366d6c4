//! Traits for code that takes any half, as the asynchronous halves do.
//!
//! They are those of the halves that never wait, to which the blocking and the asynchronous halves deref:
//! give `&mut *receiver` to such code. All halves have more methods in common (`tests/contract` names them).
//! They are inherent methods, so no trait has to be imported.
//!
//! `send` and `send_copy` are in no trait, because a half with one destination takes no address. Other
//! differences have reasons, too. UDP and TCP senders return a `Ticket` from `send`, and `completed` returns
//! the finished tickets. A port's `completed` returns the frames themselves, in the driver's order, and
//! several messages share one packet, so neither has tickets. An endpoint has no `completed`, because peers
//! acknowledge packets, and buffers return by themselves. Only TCP has `wait_buffer`, because its memory
//! returns when the peer acknowledges, and a program without a free buffer has nothing else to wait for. Only
//! an endpoint receives into given buffers (`post`): the length of a message is known before its bytes are
//! read.
//!
//! A half's descriptor becomes readable for everything that `arm` checks. The kernel reports no event for
//! frames that return to their pool, for completed AF_XDP sends, for the protocol's deadlines and for
//! io_uring's completions. For these, a timer or a second descriptor makes the half's descriptor readable
//! (`sys/timed_epoll.rs`, `sys/readiness.rs`, `message/descriptor.rs`).

use std::io;
use std::os::fd::AsFd;

/// A half that receives packets, datagrams, a stream, blocks or messages, and never waits. The halves that
/// also wait, and the asynchronous ones, deref to one.
///
/// One function for every kind of I/O:
///
/// ```
/// use nocopy::ReceiverHalf;
/// use rustix::event::{PollFd, PollFlags, poll};
/// fn wait(half: &mut impl ReceiverHalf) -> std::io::Result<()> {
///     if !half.arm()? {
///         poll(&mut [PollFd::new(half, PollFlags::IN)], None)?;
///     }
///     Ok(())
/// }
/// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
/// # let mut socket = nocopy::udp::Socket::bind("127.0.0.1:0")?;
/// # std::net::UdpSocket::bind("127.0.0.1:0")?.send_to(b"hello", socket.local_addr()?)?;
/// # left.sender().send_copy(b"hello")?;
/// # left.sender().flush()?;
/// wait(&mut **right.receiver())?;
/// wait(&mut **socket.receiver())?;
/// assert_eq!((right.receiver().try_receive()?.count(), socket.receiver().try_receive()?.count()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ReceiverHalf: AsFd {
    /// A batch; or one item, `None` if there was none. Borrowed until the next call, unless taken.
    type Received<'half>
    where
        Self: 'half;

    /// Returns what has arrived, without waiting.
    ///
    /// # Errors
    /// Nothing can be received, now or any more.
    fn try_receive(&mut self) -> io::Result<Self::Received<'_>>;

    /// Prepares for a wait on the descriptor ([`AsFd`]). Returns true if there is something to receive
    /// already, so that no wait is needed. Call it before each wait.
    fn arm(&mut self) -> io::Result<bool>;
}

/// A half that sends, and never waits. The halves that also wait, and the asynchronous ones, deref to one.
///
/// One function for every kind of I/O:
///
/// ```
/// use nocopy::SenderHalf;
/// fn is_idle(half: &mut impl SenderHalf) -> bool {
///     half.reap();
///     half.in_flight() == 0
/// }
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// # let mut socket = nocopy::udp::Socket::bind("127.0.0.1:0")?;
/// assert!(is_idle(&mut **port.sender()) && is_idle(&mut **socket.sender()));
/// port.sender().send_copy(b"hello")?; // queued
/// assert!(!is_idle(&mut **port.sender()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait SenderHalf: AsFd {
    /// Memory to write into and send.
    type Buffer;

    /// An empty buffer; `None` while all are in use.
    fn buffer(&mut self) -> Option<Self::Buffer>;

    /// Hands over as much as there is room for, without waiting. Returns false if something is left.
    ///
    /// # Errors
    /// Nothing more can be sent; or some items were refused for good: they are counted, and the others were
    /// handed over.
    fn try_flush(&mut self) -> io::Result<bool>;

    /// Takes back memory that the kernel no longer reads, and returns how many sends are complete by that.
    fn reap(&mut self) -> usize;

    /// The number of sends whose memory the kernel may still read.
    fn in_flight(&self) -> usize;

    /// Prepares for a wait on the descriptor ([`AsFd`]): it becomes readable when there is room to flush
    /// again, or memory to reap. Returns true if it is readable already. Call it before each wait.
    fn arm(&mut self) -> io::Result<bool>;
}

/// Implements the trait by the half's own methods.
macro_rules! receiver_half {
    ($half:ty, $received:ty) => {
        impl $crate::engine::half::ReceiverHalf for $half {
            type Received<'half> = $received;

            fn try_receive(&mut self) -> std::io::Result<Self::Received<'_>> {
                <$half>::try_receive(self)
            }

            fn arm(&mut self) -> std::io::Result<bool> {
                <$half>::arm(self)
            }
        }
    };
}
pub(crate) use receiver_half;

/// [`receiver_half`] for sending halves.
macro_rules! sender_half {
    ($half:ty, $buffer:ty) => {
        $crate::engine::half::sender_half!($half, $buffer, arm);
    };
    // With another `arm`, for types that also receive.
    ($half:ty, $buffer:ty, $arm:ident) => {
        impl $crate::engine::half::SenderHalf for $half {
            type Buffer = $buffer;

            fn buffer(&mut self) -> Option<Self::Buffer> {
                <$half>::buffer(self)
            }

            fn try_flush(&mut self) -> std::io::Result<bool> {
                <$half>::try_flush(self)
            }

            fn reap(&mut self) -> usize {
                <$half>::reap(self)
            }

            fn in_flight(&self) -> usize {
                <$half>::in_flight(self)
            }

            fn arm(&mut self) -> std::io::Result<bool> {
                <$half>::$arm(self)
            }
        }
    };
}
pub(crate) use sender_half;

/// A half whose methods also wait, around the one whose methods never do: `struct
/// Receiver(NonblockingReceiver)`.
macro_rules! blocking_half {
    ($half:ty, $nonblocking:ty) => {
        impl std::ops::Deref for $half {
            type Target = $nonblocking;

            #[inline]
            fn deref(&self) -> &$nonblocking {
                &self.0
            }
        }

        impl std::ops::DerefMut for $half {
            #[inline]
            fn deref_mut(&mut self) -> &mut $nonblocking {
                &mut self.0
            }
        }

        impl std::os::fd::AsFd for $half {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.0.as_fd()
            }
        }
    };
}
pub(crate) use blocking_half;
