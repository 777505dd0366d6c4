//! What every half can do, whatever it moves: the contract that they all keep.
//!
//! The methods have the same names on the halves themselves, so these traits need not be imported to use one. They are for code that takes
//! any half.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::wait::Wait;
use crate::facts::evidence::Ledger;
use crate::stats::Stats;

/// Anything that receives: packets, datagrams, a stream, blocks, messages.
pub trait ReceiverHalf: AsFd {
    /// A batch, or one thing and `None` when nothing came: borrowed until the next call, unless taken.
    type Received<'half>
    where
        Self: 'half;

    /// Waits until something comes, in the way that was set. A signal may end the wait, with nothing.
    ///
    /// # Errors
    /// Nothing more can be received, or not now.
    fn receive(&mut self) -> io::Result<Self::Received<'_>>;

    /// Waits for `timeout` at most.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn receive_timeout(&mut self, timeout: Duration) -> io::Result<Self::Received<'_>>;

    /// Returns what is there, without waiting.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn try_receive(&mut self) -> io::Result<Self::Received<'_>>;

    /// Changes how to wait, from the next wait on.
    fn set_wait(&mut self, wait: Wait);

    /// Prepares for a wait on the descriptor ([`AsFd`]) until it is readable, and returns whether something is there already: then there is
    /// nothing to wait for. Call it before each such wait.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn arm(&mut self) -> io::Result<bool>;

    /// Bytes that were received, by what is known of copies.
    fn ledger(&self) -> Ledger;

    /// Everything that was counted.
    ///
    /// # Errors
    /// The kernel does not tell what it has counted.
    fn stats(&self) -> io::Result<Stats>;
}

/// Anything that sends. `send` and `send_copy` are not among these methods: their arguments are the payload, and where it goes if the
/// half knows more than one destination.
pub trait SenderHalf: AsFd {
    /// Memory to write into and send.
    type Buffer;

    /// An empty buffer; `None` while all are in use.
    fn buffer(&mut self) -> Option<Self::Buffer>;

    /// Takes back a buffer that was not sent, more cheaply than dropping it.
    fn recycle(&mut self, buffer: Self::Buffer);

    /// Hands over everything that is queued, and waits for room where there is none.
    ///
    /// # Errors
    /// Nothing more can be sent, or something was refused for good; it is counted, and the rest was handed over.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands over what there is room for, without waiting. `false`: something is left.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn try_flush(&mut self) -> io::Result<bool>;

    /// Hands over what there is room for within `timeout`. `false`: something is left.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn flush_timeout(&mut self, timeout: Duration) -> io::Result<bool>;

    /// Takes back the memory that the kernel is done with, and returns how many sends that completes.
    fn reap(&mut self) -> usize;

    /// Sends whose memory the kernel still has.
    fn in_flight(&mut self) -> usize;

    /// Hands over everything that is queued, and waits for `timeout` at most until the kernel is done with all memory. `false`: it is not.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn drain(&mut self, timeout: Duration) -> io::Result<bool>;

    /// Prepares for a wait on the descriptor ([`AsFd`]) until it is readable: there is room to flush again, or memory to reap. Returns
    /// whether that is so already. Call it before each such wait.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn arm(&mut self) -> io::Result<bool>;

    /// Bytes that were sent, by what is known of copies.
    fn ledger(&self) -> Ledger;

    /// Everything that was counted.
    ///
    /// # Errors
    /// The kernel does not tell what it has counted.
    fn stats(&self) -> io::Result<Stats>;
}

/// A half keeps the contract by its own methods.
macro_rules! receiver_half {
    ($half:ty, $received:ty) => {
        impl $crate::engine::half::ReceiverHalf for $half {
            type Received<'half> = $received;

            fn receive(&mut self) -> std::io::Result<Self::Received<'_>> {
                <$half>::receive(self)
            }

            fn receive_timeout(
                &mut self,
                timeout: std::time::Duration,
            ) -> std::io::Result<Self::Received<'_>> {
                <$half>::receive_timeout(self, timeout)
            }

            fn try_receive(&mut self) -> std::io::Result<Self::Received<'_>> {
                <$half>::try_receive(self)
            }

            fn set_wait(&mut self, wait: $crate::engine::wait::Wait) {
                <$half>::set_wait(self, wait);
            }

            fn arm(&mut self) -> std::io::Result<bool> {
                <$half>::arm(self)
            }

            fn ledger(&self) -> $crate::facts::evidence::Ledger {
                <$half>::ledger(self)
            }

            fn stats(&self) -> std::io::Result<$crate::stats::Stats> {
                <$half>::stats(self)
            }
        }
    };
}
pub(crate) use receiver_half;

/// The same, for halves that send.
macro_rules! sender_half {
    ($half:ty, $buffer:ty) => {
        $crate::engine::half::sender_half!($half, $buffer, arm);
    };
    // With another `arm`, where the half also receives.
    ($half:ty, $buffer:ty, $arm:ident) => {
        impl $crate::engine::half::SenderHalf for $half {
            type Buffer = $buffer;

            fn buffer(&mut self) -> Option<Self::Buffer> {
                <$half>::buffer(self)
            }

            fn recycle(&mut self, buffer: Self::Buffer) {
                <$half>::recycle(self, buffer);
            }

            fn flush(&mut self) -> std::io::Result<()> {
                <$half>::flush(self)
            }

            fn try_flush(&mut self) -> std::io::Result<bool> {
                <$half>::try_flush(self)
            }

            fn flush_timeout(&mut self, timeout: std::time::Duration) -> std::io::Result<bool> {
                <$half>::flush_timeout(self, timeout)
            }

            fn reap(&mut self) -> usize {
                <$half>::reap(self)
            }

            fn in_flight(&mut self) -> usize {
                <$half>::in_flight(self)
            }

            fn drain(&mut self, timeout: std::time::Duration) -> std::io::Result<bool> {
                <$half>::drain(self, timeout)
            }

            fn arm(&mut self) -> std::io::Result<bool> {
                <$half>::$arm(self)
            }

            fn ledger(&self) -> $crate::facts::evidence::Ledger {
                <$half>::ledger(self)
            }

            fn stats(&self) -> std::io::Result<$crate::stats::Stats> {
                <$half>::stats(self)
            }
        }
    };
}
pub(crate) use sender_half;
