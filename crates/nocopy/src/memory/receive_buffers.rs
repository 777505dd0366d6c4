//! Buffers into which one call receives datagrams. The call's arguments for a buffer are written when the
//! buffer is added, not before each call: most calls receive one datagram and leave the other buffers
//! unchanged.

// Passes addresses of buffers to the kernel, and owns the buffers until it returns them.
#![allow(unsafe_code)]

#[cfg(feature = "message")]
mod in_place;

use std::io;
use std::os::fd::BorrowedFd;

use super::pool::BufferMut;
use crate::sys::udp_receive::{Diversion, MessageReport, RecvmmsgArguments};

/// The buffers and the arguments of the call. The buffer at `k` from the bottom has the slot at `k` from the
/// end, so the buffers that the call fills first are on top.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    free: Vec<BufferMut>,
    call: RecvmmsgArguments,
    /// The most buffers a call may fill.
    count_max: usize,
}

impl ReceiveBuffers {
    pub(crate) fn new(count_max: usize) -> Self {
        Self { free: Vec::with_capacity(count_max), call: RecvmmsgArguments::new(count_max), count_max }
    }

    pub(crate) fn count_max(&self) -> usize {
        self.count_max
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.len() >= self.count_max
    }

    /// Adds a buffer, which is filled next, because it was used last and is in the cache. The buffer is
    /// dropped if there are enough.
    #[inline]
    pub(crate) fn push(&mut self, mut buffer: BufferMut) {
        if !self.is_full() {
            buffer.resize(buffer.capacity());
            // No underflow: it is not full.
            self.call.set_slot(self.count_max - self.free.len() - 1, &mut buffer);
            self.free.push(buffer);
        }
    }

    /// Takes the buffer that is filled next; repeated after a call, it takes the filled buffers in order.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<BufferMut> {
        self.free.pop()
    }

    /// Receives a message into each of the buffers, as long as there are messages
    /// ([`RecvmmsgArguments::receive_from`]).
    #[inline]
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, wait: bool) -> io::Result<usize> {
        // Slots before this one are of buffers that were taken: the kernel must not write to those.
        let first = self.count_max - self.free.len();
        // SAFETY: each slot from `first` on was set by `push` to a whole buffer that has been in `free`
        // since, where nothing reads or writes it; a buffer's memory does not move with it.
        unsafe { self.call.receive_from(first, socket, wait) }
    }

    /// As [`receive`](Self::receive), but rows go elsewhere than into the buffers
    /// ([`RecvmmsgArguments::receive_diverted`]).
    pub(crate) fn receive_diverted(
        &mut self,
        socket: BorrowedFd<'_>,
        wait: bool,
        diversion: &mut Diversion<'_>,
    ) -> io::Result<usize> {
        let first = self.count_max - self.free.len();
        // SAFETY: as in `receive`.
        unsafe { self.call.receive_diverted(first, socket, wait, diversion) }
    }

    /// The kernel's report about a message of the last call.
    #[inline]
    pub(crate) fn message(&self, index: usize) -> MessageReport {
        self.call.message_report(index)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::pool::Pool;
    use crate::sys::udp_receive::report_traffic_class;

    fn receive_and_take(buffers: &mut ReceiveBuffers, socket: &UdpSocket) -> Vec<(u8, BufferMut)> {
        let count = buffers.receive(socket.as_fd(), true).unwrap();
        let lengths: Vec<usize> = (0..count).map(|index| buffers.message(index).bytes).collect();
        assert!(lengths.iter().all(|&length| length == 1), "{lengths:?}");
        lengths.iter().map(|_| buffers.pop().unwrap()).map(|buffer| (buffer[0], buffer)).collect()
    }

    #[test]
    fn datagrams_stay_in_order_when_buffers_are_exchanged() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        let pool = Pool::new(6, 64).unwrap();
        let mut buffers = ReceiveBuffers::new(4);
        let (mut sent, mut read) = (0_u8, 0_u8);
        // Number of buffers, of datagrams, and of their buffers that are put back.
        for (free, count, back) in [(2, 3, 2), (2, 0, 1), (4, 4, 3), (3, 1, 1), (4, 9, 4), (4, 1, 4)] {
            while buffers.free.len() < free {
                buffers.push(pool.take().unwrap());
            }
            (0..count).for_each(|_| {
                assert_eq!(socket.send(&[sent]).unwrap(), 1);
                sent += 1;
            });
            while read < sent {
                let datagrams = receive_and_take(&mut buffers, &socket);
                let numbers: Vec<u8> = datagrams.iter().map(|&(number, _)| number).collect();
                assert_eq!(numbers, (read..read + datagrams.len() as u8).collect::<Vec<_>>());
                read += datagrams.len() as u8;
                datagrams.into_iter().take(back).for_each(|(_, buffer)| buffers.push(buffer));
                while buffers.is_empty() {
                    buffers.push(pool.take().unwrap());
                }
            }
        }
        assert_eq!((sent, pool.total()), (18, 6));
    }

    #[test]
    fn an_exchanged_buffer_is_not_received_into_again() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        let pool = Pool::new(4, 64).unwrap();
        let mut buffers = ReceiveBuffers::new(3);
        (0..3).for_each(|_| buffers.push(pool.take().unwrap()));
        let receive = |sent: [u8; 3], buffers: &mut ReceiveBuffers| {
            sent.iter().for_each(|byte| assert_eq!(socket.send(&[*byte]).unwrap(), 1));
            let count = buffers.receive(socket.as_fd(), true).unwrap();
            assert_eq!(count, 3, "loopback delivers at once");
            (0..count)
                .map(|index| buffers.message_bytes(index, &buffers.message(index)).to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(receive([1, 2, 3], &mut buffers), [[1], [2], [3]]);
        let kept = buffers.exchange(1, pool.take().unwrap());
        assert_eq!(receive([4, 5, 6], &mut buffers), [[4], [5], [6]]);
        assert_eq!(kept[0], 2);
    }

    #[test]
    fn both_receive_calls_report_equal_metadata_of_a_datagram() {
        if !nocopy_lab::ipv6_or_skip() {
            return;
        }
        for (at, has_class, is_lone) in
            [("127.0.0.1:0", true, true), ("127.0.0.1:0", false, false), ("[::1]:0", true, false)]
        {
            let socket = UdpSocket::bind(at).unwrap();
            let address = socket.local_addr().unwrap();
            if has_class {
                report_traffic_class(&socket, address.is_ipv6()).unwrap();
            }
            let pool = Pool::with_shared_pages(2, 64).unwrap();
            let mut buffers = ReceiveBuffers::new(2);
            (0..2).for_each(|_| buffers.push(pool.take().unwrap()));
            for bytes in [&[7; 65][..], &[8; 64], &[]] {
                assert_eq!(socket.send_to(bytes, address).unwrap(), bytes.len());
                assert_eq!(buffers.receive(socket.as_fd(), true).unwrap(), 1);
                let message = buffers.message(0);
                let long = (message.from, message.is_congested(), buffers.message_bytes(0, &message));
                assert_eq!((long.0, long.2), (address, &bytes[..bytes.len().min(64)]));
                assert_eq!(buffers.single_message(0), (is_lone && bytes.len() <= 64).then_some(long), "{at}");
            }
        }
    }

    #[test]
    fn surplus_buffers_return_to_the_pool() {
        let pool = Pool::new(3, 64).unwrap();
        let mut buffers = ReceiveBuffers::new(2);
        (0..3).for_each(|_| buffers.push(pool.take().unwrap()));
        assert_eq!((buffers.free.len(), buffers.is_full(), pool.available()), (2, true, 1));
    }
}
