//! Packets that are being filled with short messages, at most one for each peer; or the last packet of a long
//! message that is to be sent at once, with the others, by the flush.

use nocopy_proto::message::framing::{self, whole_header_bytes};
use nocopy_proto::message::{Kind, Peer};

use super::carrier::{AnyCarrier, Carrier, Packet};

#[derive(Debug)]
pub(super) struct OpenPacket {
    packet: Packet,
    used: usize,
    payload_bytes_max: usize,
    /// How many packets of the same message were made before this one, and are not queued either.
    before: usize,
}

impl OpenPacket {
    pub(super) fn new(packet: Packet, payload_bytes_max: usize) -> Self {
        Self { packet, used: 0, payload_bytes_max, before: 0 }
    }

    /// The last packet of a message, to which nothing is added; so many others were made before.
    pub(super) fn last_of_message(packet: Packet, payload_bytes: usize, before: usize) -> Self {
        Self { packet, used: payload_bytes, payload_bytes_max: payload_bytes, before }
    }

    /// Whether it is the last packet of a long message.
    #[inline]
    pub(super) fn ends_message(&self) -> bool {
        self.before > 0
    }

    /// Whether a message of this length fits.
    #[inline]
    pub(super) fn takes(&self, kind: Kind, bytes: usize) -> bool {
        whole_header_bytes(kind) + bytes <= self.payload_bytes_max - self.used
    }

    /// Adds a message after the others.
    #[inline]
    pub(super) fn put<'m>(
        &mut self,
        kind: Kind,
        bytes: usize,
        parts: impl Iterator<Item = &'m [u8]>,
        carrier: &mut AnyCarrier,
    ) {
        let room = &mut carrier.payload_mut(&self.packet)[self.used..];
        let mut at = framing::put_whole_header(kind, bytes, room);
        for part in parts {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.used += at;
    }

    /// Adds a message that lies in one piece after the others.
    #[inline(always)] // for each message
    pub(super) fn put_one(&mut self, kind: Kind, message: &[u8], carrier: &mut AnyCarrier) {
        let end = self.used + whole_header_bytes(kind) + message.len();
        let room = &mut carrier.payload_mut(&self.packet)[self.used..end];
        let header_bytes = framing::put_whole_header(kind, message.len(), room);
        room[header_bytes..].copy_from_slice(message);
        self.used = end;
    }

    /// Ends the packet at its current length.
    #[inline]
    pub(super) fn close(self, carrier: &mut AnyCarrier) -> Packet {
        carrier.set_payload_bytes(&self.packet, self.used);
        self.packet
    }
}

/// The endpoint's own state of each peer, beside the protocol's.
#[derive(Debug, Default)]
pub(super) struct Peers {
    of: Vec<PeerState>,
    open: Vec<Peer>,
}

#[derive(Debug, Default)]
struct PeerState {
    peer: Option<Peer>,
    open: Option<OpenPacket>,
    /// Its index among the peers with an open packet.
    place: usize,
    /// Nothing more is sent to the peer.
    ended: bool,
    /// A message to it was refused because there was no memory for packets.
    starved: bool,
}

/// The part of a peer's state that is read before a message to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// A packet is being filled for it.
    pub(super) has_open: bool,
    /// Nothing more is sent to it.
    pub(super) is_ended: bool,
}

impl Peers {
    #[inline]
    fn state(&mut self, peer: Peer) -> Option<&mut PeerState> {
        self.of.get_mut(peer.index()).filter(|state| state.peer == Some(peer))
    }

    /// The packet being filled for a peer.
    #[inline]
    pub(super) fn open(&mut self, peer: Peer) -> Option<&mut OpenPacket> {
        self.state(peer)?.open.as_mut()
    }

    /// What a peer has, if it has anything.
    #[inline]
    pub(super) fn standing(&self, peer: Peer) -> Standing {
        match self.of.get(peer.index()).filter(|state| state.peer == Some(peer)) {
            Some(state) => Standing { has_open: state.open.is_some(), is_ended: state.ended },
            None => Standing { has_open: false, is_ended: false },
        }
    }

    /// How many packets are being filled for a peer: none, one, or those of a message.
    #[inline]
    pub(super) fn open_packets(&self, peer: Peer) -> usize {
        let state = self.of.get(peer.index()).filter(|state| state.peer == Some(peer));
        state.and_then(|state| state.open.as_ref()).map_or(0, |open| 1 + open.before)
    }

    pub(super) fn end(&mut self, peer: Peer) {
        self.known(peer).ended = true;
    }

    /// Notes that there was no memory for packets to a peer, and returns whether that is new.
    pub(super) fn starve(&mut self, peer: Peer) -> bool {
        !std::mem::replace(&mut self.known(peer).starved, true)
    }

    /// Notes that the peer was reported as writable again.
    pub(super) fn feed(&mut self, peer: Peer) {
        if let Some(state) = self.state(peer) {
            state.starved = false;
        }
    }

    /// The state of a peer that the protocol knows; a new state if another peer had its index before.
    #[inline(always)]
    fn known(&mut self, peer: Peer) -> &mut PeerState {
        if self.of.get(peer.index()).is_none_or(|state| state.peer != Some(peer)) {
            self.get_to_know(peer);
        }
        &mut self.of[peer.index()]
    }

    #[cold]
    fn get_to_know(&mut self, peer: Peer) {
        if self.of.len() <= peer.index() {
            self.of.resize_with((peer.index() + 1).next_power_of_two(), PeerState::default);
        }
        let state = &mut self.of[peer.index()];
        // An open packet of the one before is among those to be closed, and keeps its place until then.
        let open = state.open.take();
        debug_assert!(open.is_none(), "closed before another peer takes its place");
        *state = PeerState { peer: Some(peer), ..PeerState::default() };
    }

    /// Sets the open packet of a peer that has none.
    #[inline(always)] // for each packet
    pub(super) fn begin(&mut self, peer: Peer, open: OpenPacket) -> &mut OpenPacket {
        let place = self.open.len();
        self.open.push(peer);
        let state = self.known(peer);
        state.place = place;
        state.open.insert(open)
    }

    /// Whether a packet is being filled for any peer.
    #[inline]
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes out the open packet of the only peer that has one.
    #[inline]
    pub(super) fn take_only(&mut self) -> Option<(Peer, OpenPacket)> {
        let [peer] = self.open[..] else { return None };
        self.open.clear();
        Some((peer, self.state(peer)?.open.take()?))
    }

    #[inline]
    pub(super) fn take(&mut self, peer: Peer) -> Option<OpenPacket> {
        let state = self.state(peer)?;
        let (open, place) = (state.open.take()?, state.place);
        self.open.swap_remove(place);
        if let Some(moved) = self.open.get(place).copied()
            && let Some(state) = self.state(moved)
        {
            state.place = place;
        }
        Some(open)
    }

    /// Takes the open packet that ends a long message: there is one at most.
    #[cold]
    pub(super) fn take_end_of_message(&mut self) -> Option<(Peer, OpenPacket)> {
        let ends_message =
            |peer: &&Peer| self.of[peer.index()].open.as_ref().is_some_and(OpenPacket::ends_message);
        let peer = *self.open.iter().find(ends_message)?;
        Some((peer, self.take(peer)?))
    }

    /// Takes the open packet of any peer.
    #[inline]
    pub(super) fn take_any(&mut self) -> Option<(Peer, OpenPacket)> {
        while let Some(peer) = self.open.pop() {
            if let Some(open) = self.state(peer).and_then(|state| state.open.take()) {
                return Some((peer, open));
            }
        }
        None
    }
}
