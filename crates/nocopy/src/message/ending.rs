//! How connections end.

use nocopy_proto::message::{Kind, Peer, PeerStats};

use super::NonblockingEndpoint;
use super::carrier::Carrier;
use crate::facts::rejected::Reason;

impl NonblockingEndpoint {
    /// Ends the direction to a peer, after everything that was sent; the peer gets
    /// [`Event::Finished`](super::Event::Finished).
    ///
    /// ```
    /// # use nocopy::{Reason, message::{Endpoint, Event}};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// left.send_copy_to(b"the last one", peer)?;
    /// left.finish(peer)?;
    /// assert!(matches!(left.send_copy_to(b"one more", peer), Err(Reason::Finished)));
    /// left.flush()?;
    /// let mut received = 0;
    /// while !matches!(right.poll_event(), Some(Event::Finished(_))) {
    ///     received += right.receive()?.map_or(0, |message| message.len());
    /// }
    /// assert_eq!(received, 12); // everything that was sent before comes before the end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn finish(&mut self, peer: Peer) -> Result<(), Reason> {
        self.plan(peer, Kind::Plain, 0)?;
        let free = self.free_packets();
        let Some(packet) = self.carrier.packet() else { return Err(self.starve(peer, free, usize::MAX)) };
        self.close_packet_of(peer);
        self.carrier.set_payload_bytes(&packet, 0);
        match self.protocol.finish(peer, packet) {
            Ok(()) => {
                self.unsent += 1;
                self.peers.end(peer);
                Ok(())
            }
            Err((packet, _)) => {
                self.carrier.release(packet);
                Err(Reason::Gone)
            }
        }
    }

    /// Ends a connection at once: what is in flight or unread is lost.
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// left.send_copy_to(b"of no interest any more", peer)?;
    /// left.abort(peer);
    /// assert_eq!(left.peer_stats(peer), None); // at once
    /// left.flush()?; // informs the peer
    /// while !matches!(right.poll_event(), Some(Event::Lost(..))) {
    ///     right.wait(Duration::from_secs(1))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort(&mut self, peer: Peer) {
        self.discard_packet_of(peer);
        self.forget_puts(peer);
        self.protocol.abort(peer);
        self.unsent += 1;
    }

    /// Discards the packet that is being filled for a peer.
    fn discard_packet_of(&mut self, peer: Peer) {
        self.discard_unit_of(peer);
        if let Some(open) = self.peers.take(peer) {
            let ends_message = open.ends_message();
            let packet = open.close(&mut self.carrier);
            self.carrier.release(packet);
            if ends_message {
                self.unmake();
            }
        }
    }

    /// Finishes all connections that are not finished yet; returns whether the peers have acknowledged
    /// everything.
    pub(super) fn finish_each(&mut self) -> bool {
        let peers: Vec<Peer> = self.protocol.all_peers().collect();
        let mut all = true;
        for peer in peers {
            let ended = match self.finish(peer) {
                Ok(()) | Err(Reason::Full) => false,
                Err(_) => true,
            };
            let has_arrived = |stats: PeerStats| stats.in_flight + stats.queued == 0;
            all &= ended && self.peer_stats(peer).is_none_or(has_arrived);
        }
        all
    }

    /// Ends all connections; the peers are informed once.
    pub(super) fn leave_all(&mut self) {
        let peers: Vec<Peer> = self.protocol.all_peers().collect();
        for peer in peers {
            self.discard_packet_of(peer);
            self.protocol.leave(peer);
            self.transmit(self.now());
        }
    }
}

impl Drop for NonblockingEndpoint {
    /// Ends all connections; the peers are informed once.
    fn drop(&mut self) {
        self.leave_all();
    }
}
