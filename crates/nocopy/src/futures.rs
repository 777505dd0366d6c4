//! Asynchronous halves as streams and sinks of the crate `futures` (feature `futures`).
//!
//! A stream yields owned items, one at a time: frames, datagrams, chunks, blocks, messages. An error of the
//! half is an item, and the stream can be polled again; only a TCP stream ends. A sink takes datagrams with
//! their destination and messages with their peer; it is ready when there is room, and closed when all memory
//! is free, or acknowledged.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
#[cfg(feature = "message")]
use std::task::ready;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_sink::Sink;

#[cfg(feature = "port")]
use crate::capture::{Block, NonblockingCapture};
use crate::engine::asynchronous::{AsyncReceiver, AsyncSender};
#[cfg(feature = "port")]
use crate::memory::area::{Frame, Packet};
#[cfg(feature = "message")]
use crate::message::{AsyncEndpoint, Message, NonblockingEndpoint, Payload, Peer};
#[cfg(feature = "port")]
use crate::port;
#[cfg(feature = "tcp")]
use crate::tcp;
use crate::udp::{self, OwnedDatagram, PlacedChunk};

/// A stream of what a half receives, made owned by a function.
macro_rules! stream_of {
    ($half:ty, $item:ty, $take:expr) => {
        impl Stream for AsyncReceiver<$half> {
            type Item = io::Result<$item>;

            fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                self.get_mut().poll_item(cx, $take)
            }
        }
    };
}

#[cfg(feature = "port")]
stream_of!(port::NonblockingReceiver, Frame, |half| {
    half.try_receive().map(|mut batch| batch.next().map(Packet::take)).transpose()
});
#[cfg(feature = "port")]
stream_of!(port::NonblockingQueues, Frame, |half| {
    half.try_receive().map(|mut batch| batch.next().map(Packet::take)).transpose()
});
stream_of!(udp::NonblockingPlacedReceiver, PlacedChunk, |half| half.try_receive().transpose());
#[cfg(feature = "port")]
stream_of!(NonblockingCapture, Block, |half| half.try_receive().transpose());
stream_of!(udp::NonblockingReceiver, OwnedDatagram, udp::NonblockingReceiver::try_take);

/// Ends when the peer has ended its stream.
#[cfg(feature = "tcp")]
impl Stream for AsyncReceiver<tcp::NonblockingReceiver> {
    type Item = io::Result<tcp::Chunk>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let take = |half: &mut tcp::NonblockingReceiver| match half.try_receive() {
            Ok(None) if !half.is_finished() => None,
            received => Some(received),
        };
        self.get_mut().poll_item(cx, take).map(|item| item.and_then(Result::transpose))
    }
}

/// Messages; events are left to [`poll_event`](NonblockingEndpoint::poll_event).
#[cfg(feature = "message")]
impl Stream for AsyncEndpoint {
    type Item = io::Result<Message<'static>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let take = |endpoint: &mut NonblockingEndpoint| {
            endpoint.try_receive().map(|message| message.map(Message::take)).transpose()
        };
        self.get_mut().poll_look(cx, take).map(|item| Some(item.and_then(|item| item)))
    }
}

/// Ready when there is room in the queue, and closed when all memory is free.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use futures_util::{SinkExt, StreamExt};
/// use nocopy::udp::Socket;
/// let (receiver, sender) = Socket::bind("127.0.0.1:0")?.split();
/// let (mut receiver, mut sender) = (receiver.into_async()?, sender.into_async()?);
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # let socket = Socket::bind("127.0.0.1:0")?;
/// # let here = socket.local_addr()?;
/// # client.send_to(b"hello", here)?;
/// # let mut receiver = socket.split().0.into_async()?;
/// if let Some(datagram) = receiver.next().await.transpose()? {
///     let to = datagram.source();
///     sender.send((datagram.into(), to)).await?;
/// }
/// # assert_eq!(client.recv(&mut [0; 10])?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
impl Sink<(udp::Message, SocketAddr)> for AsyncSender<udp::NonblockingSender> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sender = self.get_mut();
        if sender.has_queue_room() { Poll::Ready(Ok(())) } else { sender.poll_flush_queue(cx) }
    }

    fn start_send(self: Pin<&mut Self>, (message, to): (udp::Message, SocketAddr)) -> io::Result<()> {
        self.get_mut().send_to(message, to)?;
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush_queue(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_drain(cx)
    }
}

/// One message waits here for room at its peer; those of others wait behind it.
#[cfg(feature = "message")]
impl Sink<(Payload, Peer)> for AsyncEndpoint {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send_waiting(cx)
    }

    fn start_send(self: Pin<&mut Self>, (message, to): (Payload, Peer)) -> io::Result<()> {
        self.get_mut().send_or_wait(message, to)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let endpoint = self.get_mut();
        ready!(endpoint.poll_send_waiting(cx))?;
        endpoint.as_sender().poll_flush_queue(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let endpoint = self.get_mut();
        ready!(endpoint.poll_send_waiting(cx))?;
        endpoint.as_sender().poll_drain(cx)
    }
}
