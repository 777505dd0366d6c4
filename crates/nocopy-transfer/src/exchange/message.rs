//! Messages by the message protocol, through an endpoint of the library.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::message::{Endpoint, Error, Event, OpenError, Payload, Peer};
use nocopy::tcp::Published;
use nocopy::{Buffer, Cause, Evidence, Ledger, Pool, Port, Reason};

use super::{Exchange, PATIENCE, SEND_MAX, WaitMode, none_while_interface_down};

pub const CONNECT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub struct EndpointSettings<'a> {
    pub at: SocketAddr,
    /// The interface whose port is used; `None`: the kernel's sockets.
    pub interface: Option<&'a str>,
    pub waiting: WaitMode,
    pub message_bytes_max: usize,
    /// The longest datagram; by default the longest for the usual MTU.
    pub datagram_bytes: Option<u16>,
    /// Whether others may connect.
    pub accept: bool,
    /// Whether long messages may be sent over TCP connections instead of datagrams.
    pub streams: bool,
}

impl EndpointSettings<'_> {
    pub fn open(self) -> Result<Endpoint, OpenError> {
        let builder = Endpoint::builder()
            .accept(self.accept)
            .streams(self.streams)
            .max_message_bytes(self.message_bytes_max)
            .wait(self.waiting.port_wait());
        let builder = match self.datagram_bytes {
            Some(bytes) => builder.datagram_bytes(bytes),
            None => builder,
        };
        let builder = match self.interface {
            Some(interface) => builder.port(Port::builder(interface)),
            None => builder,
        };
        builder.bind(self.at)
    }
}

/// An endpoint with one peer.
#[derive(Debug)]
pub struct MessageExchange {
    endpoint: Endpoint,
    /// `None` until one has connected.
    peer: Option<Peer>,
    is_ended: bool,
    publish_mode: PublishMode,
    /// Long messages are received into posted buffers.
    is_posting: bool,
}

/// Whether prepared bytes are published before they are sent, and the published ones.
#[derive(Debug)]
enum PublishMode {
    No,
    Yes(Option<Published>),
}

impl MessageExchange {
    pub fn connect(mut endpoint: Endpoint, to: SocketAddr, within: Duration) -> Result<Self, Error> {
        let peer = endpoint.connect(to, within)?;
        Ok(Self::new(endpoint, Some(peer)))
    }

    /// Two connected endpoints: the first connects to the second.
    pub fn connected_pair(mut one: Endpoint, mut other: Endpoint) -> Result<(Self, Self), Error> {
        let address = other.local_addr();
        let peer = one.start_connect(address)?;
        let start = Instant::now();
        loop {
            other.wait(Duration::ZERO)?;
            one.wait(Duration::ZERO)?;
            while let Some(event) = one.poll_event() {
                match event {
                    Event::Connected(..) => {
                        return Ok((Self::new(one, Some(peer)), Self::new(other, None)));
                    }
                    Event::Lost(_, reason) => return Err(Error::NotConnected { address, reason }),
                    _ => {}
                }
            }
            if start.elapsed() > CONNECT_MAX {
                return Err(Error::ConnectTimedOut { address, timeout: CONNECT_MAX });
            }
        }
    }

    fn new(endpoint: Endpoint, peer: Option<Peer>) -> Self {
        Self { endpoint, peer, is_ended: false, publish_mode: PublishMode::No, is_posting: false }
    }

    /// Publishes the prepared bytes of messages; they are expected to be the same each time.
    pub fn with_published_payload(self) -> Self {
        Self { publish_mode: PublishMode::Yes(None), ..self }
    }

    /// Receives messages of up to so many bytes into buffers that it posts; each is posted again when its
    /// message was read.
    pub fn with_posted_buffers(mut self, buffers: u32, bytes: usize) -> io::Result<Self> {
        let pool = Pool::new(buffers, bytes)?;
        while let Some(buffer) = pool.take() {
            self.endpoint.post(buffer).map_err(|rejected| rejected.reason)?;
        }
        Ok(Self { is_posting: true, ..self })
    }

    fn peer(&self) -> io::Result<Peer> {
        self.peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn handle_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Accepted(peer, _) => self.peer = Some(peer),
                Event::Finished(_) | Event::Closed(_) => self.is_ended = true,
                Event::Lost(_, reason) => return Err(io::Error::other(reason)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Repeats `attempt` until there is room, and drives the connection in between.
    fn retry_until_room(
        &mut self,
        mut attempt: impl FnMut(&mut Endpoint) -> Result<(), Reason>,
    ) -> io::Result<()> {
        let mut stalled: Option<Instant> = None;
        loop {
            match attempt(&mut self.endpoint) {
                Ok(()) => return Ok(()),
                Err(Reason::Full) => {}
                Err(reason) => return Err(reason.into()),
            }
            if stalled.get_or_insert_with(Instant::now).elapsed() > SEND_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            none_while_interface_down(self.endpoint.wait(PATIENCE))?;
            self.handle_events()?;
        }
    }
}

impl Exchange for MessageExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.send_all(std::iter::once(message))
    }

    fn send_all<'m>(&mut self, messages: impl Iterator<Item = &'m [u8]>) -> io::Result<()> {
        let peer = self.peer()?;
        for message in messages {
            // Usually there is room, and this is the short path.
            match self.endpoint.send_copy_to(message, peer) {
                Err(Reason::Full) => {
                    self.retry_until_room(|endpoint| endpoint.send_copy_to(message, peer))?
                }
                sent => sent?,
            }
        }
        self.endpoint.flush()
    }

    /// Sends `ready` by reference: the endpoint keeps it until the other end has received it.
    fn send_with_prepared(&mut self, new: &[u8], ready: &Arc<[u8]>) -> io::Result<()> {
        let peer = self.peer()?;
        let ready = match &mut self.publish_mode {
            PublishMode::No => Buffer::from_owner(Arc::clone(ready)),
            PublishMode::Yes(Some(published)) => Buffer::from_owner(published.clone()),
            PublishMode::Yes(none) => {
                let published = Published::written(ready.len(), |bytes| bytes.copy_from_slice(ready));
                Buffer::from_owner(none.insert(published.map_err(io::Error::other)?).clone())
            }
        };
        let parts = [Buffer::from(new.to_vec()), ready];
        let mut message = Some(Payload::from(parts));
        self.retry_until_room(|endpoint| {
            let rejected =
                endpoint.send_to(message.take().expect("returned by each attempt but the last"), peer);
            rejected.map_err(|rejected| {
                message = Some(rejected.item);
                rejected.reason
            })
        })?;
        self.endpoint.flush()
    }

    fn receive(&mut self, take: impl FnMut(&[u8])) -> io::Result<bool> {
        let received = none_while_interface_down(self.endpoint.receive_timeout(PATIENCE))?.flatten();
        let from = received.map(|message| {
            message.pieces().for_each(take);
            message.peer()
        });
        if from.is_some() {
            self.peer = from;
            return Ok(true);
        }
        self.handle_events()?;
        match self.is_ended {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(false),
        }
    }

    fn receive_several(&mut self, _most: usize, mut take: impl FnMut(Option<&[u8]>)) -> io::Result<usize> {
        let peer = &mut self.peer;
        let at_hand = self.endpoint.try_receive_each(|message| {
            message.pieces().for_each(|piece| take(Some(piece)));
            take(None);
            *peer = Some(message.peer());
        })?;
        if at_hand > 0 {
            return Ok(at_hand);
        }
        let is_any = self.receive(|piece| take(Some(piece)))?;
        if is_any {
            take(None);
        }
        Ok(usize::from(is_any))
    }

    fn ledger(&self) -> Option<Ledger> {
        Some(self.endpoint.ledger())
    }

    fn user_copies(&self) -> Option<f64> {
        self.is_posting.then(|| user_copies_per_byte(&self.endpoint.ledger())).flatten()
    }

    fn do_pending_work(&mut self) -> io::Result<()> {
        none_while_interface_down(self.endpoint.wait(Duration::ZERO))?;
        self.handle_events()
    }

    fn finish(&mut self, patience: Duration) -> io::Result<()> {
        let Some(peer) = self.peer else { return Ok(()) };
        self.retry_until_room(|endpoint| endpoint.finish(peer))?;
        let start = Instant::now();
        // A peer that has left has ended, too, and has received everything.
        while let Some(stats) = self.endpoint.peer_stats(peer) {
            if stats.in_flight + stats.queued == 0 || start.elapsed() > patience {
                break;
            }
            self.endpoint.wait(PATIENCE)?;
            self.handle_events()?;
        }
        Ok(())
    }
}

/// How often each byte that an endpoint received was copied in user space; what it sent has to be little.
pub fn user_copies_per_byte(ledger: &Ledger) -> Option<f64> {
    let of = |cause| ledger.bytes_of(Evidence::Copied(cause));
    let copied = of(Cause::Gathered) + of(Cause::BelowThreshold);
    let received = copied + of(Cause::SocketCall);
    (received > 0).then(|| copied as f64 / received as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoed_messages_arrive_and_the_end_is_reported() {
        for waiting in WaitMode::ALL {
            let setting = EndpointSettings {
                at: "127.0.0.1:0".parse().unwrap(),
                interface: None,
                waiting,
                message_bytes_max: 1 << 20,
                datagram_bytes: None,
                accept: true,
                streams: true,
            };
            let ends = (setting.open().unwrap(), setting.open().unwrap());
            let (mut one, mut other) = MessageExchange::connected_pair(ends.0, ends.1).unwrap();
            let ready: Arc<[u8]> = vec![7; 99_000].into();
            for bytes in [1, 1000] {
                one.send_with_prepared(&vec![7; bytes], &ready).unwrap();
                let mut message = Vec::new();
                while !other.receive(|piece| message.extend_from_slice(piece)).unwrap() {
                    one.do_pending_work().unwrap();
                }
                assert!(message == vec![7; bytes + ready.len()]);
            }
            for bytes in [0, 1, 64, 1400, 100_000] {
                one.send(&vec![7; bytes]).unwrap();
                let mut message = Vec::new();
                while !other.receive(|piece| message.extend_from_slice(piece)).unwrap() {
                    one.do_pending_work().unwrap();
                }
                assert!(message == vec![7; bytes]);
                other.send(&message).unwrap();
                message.clear();
                while !one.receive(|piece| message.extend_from_slice(piece)).unwrap() {
                    other.do_pending_work().unwrap();
                }
                assert!(message == vec![7; bytes]);
            }
            let finished = std::thread::spawn(move || one.finish(CONNECT_MAX).map(|()| one));
            let end = loop {
                match other.receive(|_| unreachable!()) {
                    Ok(_) => {}
                    Err(error) => break error.kind(),
                }
            };
            assert_eq!(end, io::ErrorKind::UnexpectedEof);
            while !finished.is_finished() {
                other.do_pending_work().unwrap();
            }
            finished.join().unwrap().unwrap();
        }
    }
}
