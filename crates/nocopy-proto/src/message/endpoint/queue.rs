//! What the caller queues for a peer, and how much room there is.

use super::{Endpoint, Entry, State};
use crate::message::connection::Connection;
use crate::message::shares::NETWORK_SHARE;
use crate::message::{Gone, Peer, QueueError};

/// The packets of so many connections are added up. Of more that would take too long for each message.
const SUMMED_MAX: usize = 64;

/// What may be sent to a peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outlook {
    /// The longest payload of a packet, without header and CRC.
    pub payload_bytes_max: usize,
    /// The longest message that the peer takes.
    pub message_bytes_max: usize,
    /// Packets that may be queued.
    pub room: usize,
    /// Packets that are not acknowledged, sent or not, without units.
    pub unacknowledged: usize,
    /// Packets that the peer takes at a time, and numbers that a unit may have.
    pub window: usize,
}

/// Places in the queue to a peer; nothing can come between them and the packets that fill them.
#[derive(Debug)]
#[must_use = "the packets are still to be queued"]
pub struct Places<'a, S, R> {
    endpoint: &'a mut Endpoint<S, R>,
    peer: Peer,
    packets: usize,
}

impl<S, R: AsRef<[u8]>> Places<'_, S, R> {
    /// Queues all packets of `packets`, in their order.
    ///
    /// # Panics
    /// There are more of them than places.
    pub fn fill(self, packets: &mut Vec<S>) {
        assert!(packets.len() <= self.packets, "{} packets for {} places", packets.len(), self.packets);
        let connection = self.endpoint.reading_mut(self.peer).expect("there were places in its queue");
        connection.send.extend(packets.drain(..));
        self.endpoint.touch(self.peer.index);
    }
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    /// What may be sent to a peer now; nothing while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn outlook(&self, peer: Peer) -> Result<Outlook, Gone> {
        Ok(self.open(peer)?.map_or(Outlook::default(), |connection| Outlook {
            payload_bytes_max: connection.agreed.payload_bytes_max(),
            message_bytes_max: connection.agreed.message_bytes_max(),
            room: connection.room(),
            unacknowledged: connection.send.packets(),
            window: connection.agreed.credit as usize,
        }))
    }

    /// As [`outlook`](Self::outlook), for a connected peer to which one packet may be queued, and a message
    /// that fits into it: `message_bytes_max` is the peer's limit, whatever it has room for.
    #[inline]
    pub fn outlook_of_short(&self, peer: Peer) -> Option<Outlook> {
        let connection = self.reading(peer)?;
        let (room, agreed) = (connection.room(), &connection.agreed);
        (room > 0 && agreed.holds_packets()).then(|| Outlook {
            payload_bytes_max: agreed.payload_bytes_max(),
            message_bytes_max: agreed.message_bytes_max,
            room,
            unacknowledged: connection.send.packets(),
            window: agreed.credit as usize,
        })
    }

    /// Packets that may be sent to a peer at once: none while anything is unacknowledged, packets or units.
    #[inline]
    pub fn at_once(&self, peer: Peer) -> usize {
        self.open(peer).ok().flatten().map_or(0, Connection::at_once)
    }

    /// Packets that may be queued to a peer: none while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn room(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, Connection::room))
    }

    /// The longest payload of a packet to a peer, without header and CRC; 0 while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn payload_bytes_max(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.agreed.payload_bytes_max()))
    }

    /// The longest message that a peer takes; nothing while it is not connected.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn message_bytes_max(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.agreed.message_bytes_max()))
    }

    /// Packets to a peer that are not acknowledged, sent or not, without units.
    ///
    /// # Errors
    /// The peer is gone.
    #[inline]
    pub fn unacknowledged(&self, peer: Peer) -> Result<usize, Gone> {
        Ok(self.open(peer)?.map_or(0, |connection| connection.send.packets()))
    }

    /// Whether the caller may keep so many packets more for a peer, if it has memory for `free` more, and for
    /// `all` (docs/protocol.md §8.4).
    ///
    /// # Errors
    /// The peer is gone.
    pub fn has_share_of_sent(
        &self,
        peer: Peer,
        packets: usize,
        free: usize,
        all: usize,
    ) -> Result<bool, Gone> {
        let kept = self.unacknowledged(peer)?;
        let is_within = |kept_by: &dyn Fn(&Connection<S, R>) -> usize| {
            free > all / 2 || self.is_within_shares(peer, packets, free, kept_by)
        };
        Ok(kept <= free && packets <= free && is_within(&|connection| connection.send.packets()))
    }

    /// As [`has_share_of_sent`](Self::has_share_of_sent) for units, if at most half of the memory for them is
    /// free; it has room for `free` more numbers.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn has_share_of_units(&self, peer: Peer, numbers: usize, free: usize) -> Result<bool, Gone> {
        let of_units = |connection: &Connection<S, R>| connection.send.len() - connection.send.packets();
        self.open(peer).map(|_| numbers <= free && self.is_within_shares(peer, numbers, free, &of_units))
    }

    /// Whether the address and the network of a peer keep no more than is left for others when `more` is
    /// added for it.
    fn is_within_shares(
        &self,
        peer: Peer,
        more: usize,
        free: usize,
        kept_by: &dyn Fn(&Connection<S, R>) -> usize,
    ) -> bool {
        let (shares, left) = (&self.admission.shares, free.saturating_sub(more));
        let kept = |index: u32| match &self.entries[index as usize].state {
            State::Open(connection) => kept_by(connection),
            _ => 0,
        };
        let own = kept(peer.index);
        let fit = |count: usize, made: &mut dyn Iterator<Item = u32>, left: usize| {
            left >= match count {
                ..=SUMMED_MAX => more + made.map(kept).sum::<usize>().max(own),
                _ => count.saturating_mul(own + more),
            }
        };
        let address = shares.made_by_address(peer.index);
        let network = shares.made_by_network(peer.index);
        address.is_none_or(|(count, mut made)| fit(count, &mut made, left))
            && network
                .is_none_or(|(count, mut made)| fit(count, &mut made, left.saturating_mul(NETWORK_SHARE)))
    }

    /// Asks for an event when there is room for this many packets:
    /// [`Event::Writable`](crate::message::Event::Writable).
    ///
    /// # Errors
    /// The peer is gone.
    pub fn want_room(&mut self, peer: Peer, packets: usize) -> Result<(), Gone> {
        if let Some(connection) = self.open_mut(peer)? {
            connection.refuse(packets);
        }
        Ok(())
    }

    /// Queues a packet: chunks of messages ([`framing`](crate::message::framing)), which stays with the
    /// endpoint until the peer has it.
    ///
    /// # Errors
    /// Gives the packet back: no room, or no peer.
    #[inline]
    pub fn queue(&mut self, peer: Peer, packet: S) -> Result<(), (S, QueueError)> {
        let entry = self.entries.get_mut(peer.index()).filter(|entry| entry.generation == peer.generation);
        let Some(Entry { state: State::Open(connection), is_sending, .. }) = entry else {
            let error = self.open_to_send(peer).err().unwrap_or(QueueError::Full);
            return Err((packet, error));
        };
        if connection.room() == 0 {
            let error = if connection.is_finished() { QueueError::Finished } else { QueueError::Full };
            if error == QueueError::Full {
                connection.refuse(1);
            }
            return Err((packet, error));
        }
        connection.send.push(packet);
        if !std::mem::replace(is_sending, true) {
            self.sending.push_back(peer.index);
        }
        Ok(())
    }

    /// Queues all packets of `packets`, in their order, as [`Endpoint::queue`] does one. More than the window
    /// has places for are never taken.
    ///
    /// # Errors
    /// No room for all of them, or no peer: leaves them where they are.
    pub fn queue_all(&mut self, peer: Peer, packets: &mut Vec<S>) -> Result<(), QueueError> {
        self.places(peer, packets.len())?.fill(packets);
        Ok(())
    }

    /// Reserves places for this many packets to a peer, for packets that cannot be returned once they are
    /// made.
    ///
    /// # Errors
    /// No room for all of them, or no peer.
    pub fn places(&mut self, peer: Peer, packets: usize) -> Result<Places<'_, S, R>, QueueError> {
        let connection = self.open_to_send(peer)?;
        if connection.room() < packets {
            connection.refuse(packets);
            return Err(QueueError::Full);
        }
        Ok(Places { endpoint: self, peer, packets })
    }

    /// Ends this direction after everything queued, by an empty packet.
    ///
    /// # Errors
    /// Gives the packet back: there is no such peer, it is not connected yet, or the direction was ended
    /// before.
    pub fn finish(&mut self, peer: Peer, packet: S) -> Result<(), (S, QueueError)> {
        let connection = match self.open_to_send(peer) {
            Ok(connection) => connection,
            Err(error) => return Err((packet, error)),
        };
        connection.finish(packet);
        self.touch(peer.index);
        Ok(())
    }

    /// The connection to a peer to which more may be sent.
    #[inline]
    pub(super) fn open_to_send(&mut self, peer: Peer) -> Result<&mut Connection<S, R>, QueueError> {
        let connection = self.open_mut(peer)?.ok_or(QueueError::Full)?;
        if connection.is_finished() { Err(QueueError::Finished) } else { Ok(connection) }
    }
}
