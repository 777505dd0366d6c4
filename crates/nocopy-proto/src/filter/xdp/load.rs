//! Loads from the packet.

use super::code::Label;
use super::{A, CONTEXT, DATA, Translation, X};
use crate::ebpf::{
    Arithmetic, Condition, FRAME_POINTER, Helper, Instruction, R0, R1, R2, R3, R4, Register, add,
    add_register, call, compute_u32, compute_u32_with, copy, load_u8, load_u16, load_u32, network_order, set,
    skip_if_above, skip_if_greater, skip_if_u32,
};
use crate::filter::instruction::{LINK, NETWORK, Place, Width};
use crate::filter::run::{ETHERNET_BYTES, TAG_BYTES, TYPE_OFFSET, VLAN_TYPES};

/// Offsets of `data` and `data_end` in `struct xdp_md`.
pub(super) const DATA_BYTES: i16 = 0;
const DATA_END_BYTES: i16 = 4;

/// How far into a packet the verifier lets a pointer go (`MAX_PACKET_OFF`), and where `bpf_xdp_load_bytes` begins at most.
pub(super) const END_MAX: u32 = 0xffff;

/// Where on the stack bytes are put that do not lie in the linear part: below the scratch slots.
const BUFFER: i16 = -72;

/// An offset into the frame, as far as it is known.
#[derive(Debug, Clone, Copy)]
enum Offset {
    Constant(u32),
    InR2,
}

impl Translation {
    /// `to = packet[offset]`, `linear_bytes` are known to be there.
    pub(super) fn load(&mut self, to: Register, width: Width, offset: u32, linear_bytes: u32) {
        match Place::of(offset) {
            Place::Frame(offset) if self.fragments => self.load_anywhere(to, width, offset),
            Place::Frame(offset) => self.load_near(to, width, offset, linear_bytes),
            Place::Link(offset) => {
                self.code.push(compute_u32(Arithmetic::Set, R2, offset));
                self.load_linear(to, width, self.no_match);
            }
            Place::Network(offset) => {
                self.code.push(compute_u32(Arithmetic::Set, R2, offset));
                self.add_network_offset();
                self.load_linear(to, width, self.no_match);
            }
            Place::Nowhere => return self.code.jump(self.no_match),
        }
        self.order_bytes(to, width);
    }

    /// `A = packet[X + offset]`; X is at most `x_max`.
    pub(super) fn load_indirect(&mut self, width: Width, offset: u32, x_max: u32) {
        let done = self.code.label();
        self.code
            .extend([compute_u32_with(Arithmetic::Set, R2, X), compute_u32(Arithmetic::Add, R2, offset)]);
        if !x_max.checked_add(offset).is_some_and(|sum| matches!(Place::of(sum), Place::Frame(_))) {
            self.load_before_the_frame(width, done);
        }
        if self.fragments {
            let slow = self.code.label();
            self.load_linear(A, width, slow);
            self.load_slowly(A, width, slow, Offset::InR2);
        } else {
            self.load_linear(A, width, self.no_match);
        }
        self.code.place(done);
        self.order_bytes(A, width);
    }

    /// Loads from the linear part of a packet that has no other: one comparison, unless an earlier one did.
    fn load_near(&mut self, to: Register, width: Width, offset: u32, linear_bytes: u32) {
        let end = offset + width as u32;
        if end > linear_bytes {
            self.code.extend([load_u32(R1, CONTEXT, DATA_END_BYTES), copy(R2, DATA)]);
            self.code.push(add(R2, end.cast_signed()));
            self.code.branch(skip_if_greater(R2, R1, 0), self.no_match);
        }
        self.load_constant(to, width, DATA, offset);
    }

    /// Loads from the linear part if it is that long, and by the helper otherwise. The pointers are made anew each time: what was
    /// found out about one would tell the verifier's states apart, for nothing.
    fn load_anywhere(&mut self, to: Register, width: Width, offset: u32) {
        let slow = self.code.label();
        self.code.extend([load_u32(R1, CONTEXT, DATA_END_BYTES), load_u32(R3, CONTEXT, DATA_BYTES)]);
        self.code.extend([copy(R2, R3), add(R2, (offset + width as u32).cast_signed())]);
        self.code.branch(skip_if_greater(R2, R1, 0), slow);
        self.load_constant(to, width, R3, offset);
        self.load_slowly(to, width, slow, Offset::Constant(offset));
    }

    /// Loads where a comparison has shown that it may.
    fn load_constant(&mut self, to: Register, width: Width, data: Register, offset: u32) {
        if let Ok(near) = i16::try_from(offset) {
            return self.code.push(load_width(to, width, data, near));
        }
        self.code.extend([copy(R2, data), add(R2, offset.cast_signed()), load_width(to, width, R2, 0)]);
    }

    /// Loads at the offset in R2 from the linear part.
    fn load_linear(&mut self, to: Register, width: Width, beyond: Label) {
        let bytes = width as i32;
        self.code.branch(skip_if_above(R2, END_MAX.cast_signed() - bytes, 0), beyond);
        let data = self.data(R3);
        self.code.extend([load_u32(R1, CONTEXT, DATA_END_BYTES), data, add_register(R3, R2)]);
        self.code.extend([copy(R4, R3), add(R4, bytes)]);
        self.code.branch(skip_if_greater(R4, R1, 0), beyond);
        self.code.push(load_width(to, width, R3, 0));
    }

    /// Jumped over, and entered by `slow`: loads from wherever the bytes are.
    fn load_slowly(&mut self, to: Register, width: Width, slow: Label, offset: Offset) {
        let done = self.code.label();
        self.code.jump(done);
        self.code.place(slow);
        if let Offset::Constant(offset) = offset {
            self.code.push(compute_u32(Arithmetic::Set, R2, offset));
        }
        self.code.extend([copy(R1, CONTEXT), copy(R3, FRAME_POINTER), add(R3, BUFFER.into())]);
        self.code.extend([set(R4, width as i32), call(Helper::LoadBytes)]);
        self.code.branch(skip_if_u32(Condition::NotEqual, R0, 0, 0), self.no_match);
        self.code.push(load_width(to, width, FRAME_POINTER, BUFFER));
        self.code.place(done);
    }

    /// Goes on if the offset in R2, read as signed, is not negative; otherwise loads what it means, as [`Place::of`] says, and goes
    /// to `done`.
    fn load_before_the_frame(&mut self, width: Width, done: Label) {
        let (frame, link) = (self.code.label(), self.code.label());
        self.code.branch(skip_if_u32(Condition::SignedGreaterOrEqual, R2, 0, 0), frame);
        self.code.push(compute_u32(Arithmetic::Subtract, R2, LINK));
        // What lies before LINK wraps to more than everything behind it.
        self.code
            .branch(skip_if_u32(Condition::GreaterOrEqual, R2, 0_u32.wrapping_sub(LINK), 0), self.no_match);
        self.code.branch(skip_if_u32(Condition::Less, R2, NETWORK - LINK, 0), link);
        self.code.push(compute_u32(Arithmetic::Subtract, R2, NETWORK - LINK));
        self.add_network_offset();
        self.code.place(link);
        self.load_linear(A, width, self.no_match);
        self.code.jump(done);
        self.code.place(frame);
    }

    /// Adds to R2 where the network header is: behind a tag, if there is one.
    fn add_network_offset(&mut self) {
        let data = self.data(R3);
        self.code.extend([load_u32(R1, CONTEXT, DATA_END_BYTES), data, copy(R4, R3)]);
        self.code.push(add(R4, (TYPE_OFFSET + 2).cast_signed()));
        self.code.branch(skip_if_greater(R4, R1, 0), self.no_match);
        let [customer, provider] = VLAN_TYPES.map(u32::from);
        self.code.extend([
            load_u16(R3, R3, TYPE_OFFSET as i16),
            network_order(R3, 16),
            compute_u32(Arithmetic::Add, R2, ETHERNET_BYTES),
            skip_if_u32(Condition::Equal, R3, customer, 1),
            skip_if_u32(Condition::NotEqual, R3, provider, 1),
            compute_u32(Arithmetic::Add, R2, TAG_BYTES),
        ]);
    }

    /// Where the packet begins.
    fn data(&self, to: Register) -> Instruction {
        if self.fragments { load_u32(to, CONTEXT, DATA_BYTES) } else { copy(to, DATA) }
    }

    fn order_bytes(&mut self, register: Register, width: Width) {
        if width != Width::Byte {
            self.code.push(network_order(register, 8 * width as i32));
        }
    }
}

const fn load_width(to: Register, width: Width, from: Register, offset: i16) -> Instruction {
    match width {
        Width::Byte => load_u8(to, from, offset),
        Width::Half => load_u16(to, from, offset),
        Width::Word => load_u32(to, from, offset),
    }
}
