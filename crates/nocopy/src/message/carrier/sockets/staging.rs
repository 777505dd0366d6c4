//! Packets that are kept until they are acknowledged: their written bytes, and where their other bytes lie.

use std::ops::Range;

use smallvec::SmallVec;

use crate::message::HEADER_BYTES;
use crate::message::cargo::{Cargo, Piece};
use crate::message::carrier::Hold;

/// The length of a slot for a packet whose payload lies elsewhere. It holds the header, the chunk prefix, and
/// the CRC, which is sent last.
const PREFIX_SLOT_BYTES: usize = 64;

/// The most pieces of a packet outside its slot; more are joined by a copy.
pub(super) const PIECES_MAX: usize = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Packet {
    /// Bytes in the slot: the header, and what follows it.
    head_bytes: u16,
    pieces: [Piece; PIECES_MAX],
    piece_count: u8,
    /// A CRC of four bytes is sent at the end; it lies in the slot after the head.
    crc: bool,
    hold: Hold,
}

/// Memory for packets, in slots of two sizes: for whole packets, and for what precedes pieces that lie
/// elsewhere.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Box<[u8]>,
    prefixes: Box<[u8]>,
    slot_bytes: usize,
    /// Whole slots first, then prefix slots.
    packets: Box<[Packet]>,
    whole: u32,
    free_whole: Vec<u32>,
    free_prefixes: Vec<u32>,
    /// Slots became free since the last check.
    pub(super) freed: bool,
}

impl Staging {
    pub(super) fn new(slot_bytes: usize, whole: u32, prefixes: u32) -> Self {
        let total = whole + prefixes;
        Self {
            memory: vec![0; slot_bytes * whole as usize].into(),
            prefixes: vec![0; PREFIX_SLOT_BYTES * prefixes as usize].into(),
            slot_bytes,
            packets: vec![Packet::default(); total as usize].into(),
            whole,
            free_whole: (0..whole).rev().collect(),
            free_prefixes: (whole..total).rev().collect(),
            freed: false,
        }
    }

    /// Free slots for whole packets, and for prefixes.
    #[inline]
    pub(super) fn free(&self) -> (usize, usize) {
        (self.free_whole.len(), self.free_prefixes.len())
    }

    /// Slots in use.
    pub(super) fn in_use(&self) -> usize {
        self.packets.len() - self.free_whole.len() - self.free_prefixes.len()
    }

    /// A slot for a whole packet, of which the first `head_bytes` will be written.
    #[inline]
    pub(super) fn take(&mut self, head_bytes: usize) -> Option<u32> {
        let slot = self.free_whole.pop()?;
        let packet = &mut self.packets[slot as usize];
        // Pieces that are not counted are never looked at.
        (packet.head_bytes, packet.piece_count) = (head_bytes as u16, 0);
        (packet.crc, packet.hold) = (false, Hold::default());
        Some(slot)
    }

    /// A slot for the bytes in front of pieces.
    #[inline]
    pub(super) fn take_prefix(&mut self, head_bytes: usize, pieces: &[Piece]) -> Option<u32> {
        let slot = self.free_prefixes.pop()?;
        let packet = &mut self.packets[slot as usize];
        (packet.head_bytes, packet.piece_count) = (head_bytes as u16, pieces.len() as u8);
        (packet.crc, packet.hold) = (false, Hold::default());
        packet.pieces.iter_mut().zip(pieces).for_each(|(kept, piece)| *kept = *piece);
        Some(slot)
    }

    /// The whole slot.
    #[inline(always)] // for each message
    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        match slot.checked_sub(self.whole) {
            None => {
                let begin = slot as usize * self.slot_bytes;
                &mut self.memory[begin..begin + self.slot_bytes]
            }
            Some(prefix) => &mut self.prefixes[prefix as usize * PREFIX_SLOT_BYTES..][..PREFIX_SLOT_BYTES],
        }
    }

    #[inline]
    fn slot(&self, slot: u32) -> &[u8] {
        match slot.checked_sub(self.whole) {
            None => &self.memory[slot as usize * self.slot_bytes..][..self.slot_bytes],
            Some(prefix) => &self.prefixes[prefix as usize * PREFIX_SLOT_BYTES..][..PREFIX_SLOT_BYTES],
        }
    }

    #[inline]
    pub(super) fn set_head_bytes(&mut self, slot: u32, bytes: usize) {
        self.packets[slot as usize].head_bytes = bytes as u16;
    }

    /// Passes on all bytes of a packet, in the order of sending.
    #[inline]
    pub(super) fn each_piece<'a>(&'a self, slot: u32, cargo: &'a Cargo, mut each: impl FnMut(&'a [u8])) {
        let packet = &self.packets[slot as usize];
        let (head, behind) = self.slot(slot).split_at(usize::from(packet.head_bytes));
        each(head);
        packet.pieces().iter().for_each(|piece| each(cargo.bytes(*piece)));
        if packet.crc {
            each(&behind[..4]);
        }
    }

    /// The whole packet, if all of it lies in the slot, without a CRC.
    #[inline]
    pub(super) fn in_one_piece(&self, slot: u32) -> Option<&[u8]> {
        let packet = &self.packets[slot as usize];
        let is_one = packet.piece_count == 0 && !packet.crc;
        is_one.then(|| &self.slot(slot)[..usize::from(packet.head_bytes)])
    }

    /// The number of pieces, and their bytes.
    #[inline]
    pub(super) fn extent(&self, slot: u32) -> (usize, usize) {
        let packet = &self.packets[slot as usize];
        let trailer = usize::from(packet.crc);
        let elsewhere: usize = packet.pieces().iter().map(|piece| piece.bytes as usize).sum();
        (1 + packet.pieces().len() + trailer, usize::from(packet.head_bytes) + elsewhere + 4 * trailer)
    }

    /// Writes the header, and the CRC at the end if there is one.
    #[inline]
    pub(super) fn seal(
        &mut self,
        slot: u32,
        header: &[u8; HEADER_BYTES],
        crc: Option<impl FnOnce(&[&[u8]]) -> [u8; 4]>,
        cargo: &Cargo,
    ) {
        self.slot_mut(slot)[..HEADER_BYTES].copy_from_slice(header);
        self.packets[slot as usize].crc = false;
        if let Some(crc) = crc {
            let sum = {
                let mut pieces = SmallVec::<[&[u8]; PIECES_MAX + 1]>::new();
                self.each_piece(slot, cargo, |piece| pieces.push(piece));
                crc(&pieces)
            };
            let at = usize::from(self.packets[slot as usize].head_bytes);
            self.slot_mut(slot)[at..at + 4].copy_from_slice(&sum);
            self.packets[slot as usize].crc = true;
        }
    }

    /// Writes the header; returns the whole packet if it is sent for the first time and lies in the slot.
    #[inline(always)] // for each packet that goes alone
    pub(super) fn sealed_in_one_piece(&mut self, slot: u32, header: &[u8; HEADER_BYTES]) -> Option<&[u8]> {
        let Packet { piece_count: 0, crc: false, head_bytes, .. } = &self.packets[slot as usize] else {
            return None;
        };
        let head_bytes = *head_bytes;
        let bytes = self.slot_mut(slot).get_mut(..usize::from(head_bytes))?;
        *bytes.first_chunk_mut()? = *header;
        Some(bytes)
    }

    /// Writes the headers of packets that are sent for the first time. Returns the bytes of all, and how many
    /// each but the last has, if they lie one after another: all but the last fill their slots.
    #[inline]
    pub(super) fn seal_run(
        &mut self,
        packets: impl Iterator<Item = (u32, [u8; HEADER_BYTES])>,
    ) -> Option<(&[u8], usize)> {
        let slot_bytes = self.slot_bytes;
        let mut lies = None;
        for (slot, header) in packets {
            let begin = slot as usize * slot_bytes;
            let Range { start, end } = lies.unwrap_or(begin..begin);
            if slot >= self.whole || begin != end {
                return None;
            }
            lies = Some(start..end + self.sealed_in_one_piece(slot, &header)?.len());
        }
        Some((self.memory.get(lies?)?, slot_bytes))
    }

    /// What keeps a packet here.
    #[inline]
    pub(super) fn hold_mut(&mut self, slot: u32) -> &mut Hold {
        &mut self.packets[slot as usize].hold
    }

    /// Frees a slot, and releases the program's buffers.
    #[inline(always)] // for each packet
    pub(super) fn free_slot(&mut self, slot: u32, cargo: &mut Cargo) {
        if self.packets[slot as usize].piece_count > 0 {
            self.release_pieces(slot, cargo);
        }
        self.freed = true;
        let free = if slot < self.whole { &mut self.free_whole } else { &mut self.free_prefixes };
        // Without a call that lets it grow, this needs no room on the stack.
        assert!(free.len() < free.capacity(), "there are no more slots than at first");
        free.push(slot);
    }

    #[inline(never)]
    fn release_pieces(&self, slot: u32, cargo: &mut Cargo) {
        for piece in self.packets[slot as usize].pieces() {
            cargo.release(piece.buffer);
        }
    }
}

impl Packet {
    #[inline]
    fn pieces(&self) -> &[Piece] {
        &self.pieces[..usize::from(self.piece_count)]
    }
}
