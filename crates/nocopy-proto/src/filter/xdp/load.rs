//! Loads from the packet.
//!
//! By pointer only at constant offsets: a pointer that moves by X needs CAP_PERFMON (the verifier calls it
//! "pointer arithmetic prohibited for !root"). So X-relative loads use `bpf_xdp_load_bytes`.

use super::{A, CONTEXT, DATA, X, XdpTranslation};
use crate::ebpf::{
    Arithmetic, Condition, FRAME_POINTER, HelperFunction, Instruction, R0, R1, R2, R3, R4, Register, add,
    call_helper, compute_u32, compute_u32_with_register, copy, load_u8, load_u16, load_u32, network_order,
    set, skip_if_greater, skip_if_u32, store_u32,
};
use crate::filter::facts::ValueBounds;
use crate::filter::instruction::{LINK, LoadTarget, LoadWidth, NETWORK};
use crate::filter::run::{ETHERNET_BYTES, TAG_BYTES, TYPE_OFFSET, VLAN_TYPES};

/// Offsets of `data` and `data_end` in `struct xdp_md`.
pub(super) const DATA_BYTES: i16 = 0;
const DATA_END_BYTES: i16 = 4;

/// How far into a packet the verifier lets a pointer go (`MAX_PACKET_OFF`), and where `bpf_xdp_load_bytes`
/// begins at most.
pub(super) const END_MAX: u32 = 0xffff;

/// On the stack, below the scratch slots: the bytes that `bpf_xdp_load_bytes` loaded, and a saved offset.
const LOADED: i16 = -68;
const SAVED: i16 = -72;

/// Bytes of an IPv4 header without options, as nearly all are.
const IPV4_BYTES: u32 = 20;

impl XdpTranslation {
    /// `to = packet[offset]`
    pub(super) fn load(&mut self, to: Register, width: LoadWidth, offset: u32, facts: ValueBounds) {
        match LoadTarget::from_offset(offset) {
            LoadTarget::Frame(offset) | LoadTarget::Link(offset) if self.fragments => {
                self.load_anywhere(to, width, offset)
            }
            LoadTarget::Frame(offset) | LoadTarget::Link(offset) => {
                self.load_from_linear_part(to, width, offset, facts.linear_bytes)
            }
            LoadTarget::Network(offset) => {
                self.code.push(compute_u32(Arithmetic::Set, R2, offset));
                self.add_network_offset(facts);
                self.load_with_helper(to, width);
            }
            LoadTarget::Nowhere => return self.code.jump(self.no_match),
        }
        self.swap_to_host_byte_order(to, width);
    }

    /// `A = packet[X + offset]`
    pub(super) fn load_indirect(&mut self, width: LoadWidth, offset: u32, facts: ValueBounds) {
        let (slow, done) = (self.code.label(), self.code.label());
        let usual = IPV4_BYTES.saturating_add(offset);
        if facts.x_is_ip_header_length() && usual.saturating_add(width as u32) <= END_MAX {
            self.code.branch(skip_if_u32(Condition::NotEqual, X, IPV4_BYTES, 0), slow);
            let data = self.check_packet_end(usual + width as u32, slow);
            self.load_at_constant_offset(A, width, data, usual);
            self.code.jump(done);
        }
        self.code.bind(slow);
        self.code.push(compute_u32_with_register(Arithmetic::Set, R2, X));
        self.code.push(compute_u32(Arithmetic::Add, R2, offset));
        if facts.x_plus_offset_may_wrap(offset) {
            self.resolve_negative_offset(facts);
        }
        self.load_with_helper(A, width);
        self.code.bind(done);
        self.swap_to_host_byte_order(A, width);
    }

    /// Loads from a packet in one buffer: with one comparison, unless an earlier one covers it.
    fn load_from_linear_part(&mut self, to: Register, width: LoadWidth, offset: u32, linear_bytes: u32) {
        let end = offset + width as u32;
        if end > linear_bytes {
            self.check_packet_end(end, self.no_match);
        }
        self.load_at_constant_offset(to, width, DATA, offset);
    }

    /// Loads from the linear part if it is that long, and by the helper otherwise.
    fn load_anywhere(&mut self, to: Register, width: LoadWidth, offset: u32) {
        let (slow, done) = (self.code.label(), self.code.label());
        let data = self.check_packet_end(offset + width as u32, slow);
        self.load_at_constant_offset(to, width, data, offset);
        self.code.jump(done);
        self.code.bind(slow);
        self.code.push(compute_u32(Arithmetic::Set, R2, offset));
        self.load_with_helper(to, width);
        self.code.bind(done);
    }

    /// Jumps to `beyond` if the linear part has less than `end` bytes; otherwise the returned register points
    /// to it. With fragments, the pointer is made anew each time: facts about a lasting pointer would
    /// multiply the verifier's states for nothing.
    fn check_packet_end(&mut self, end: u32, beyond: super::Label) -> Register {
        let data = if self.fragments { R3 } else { DATA };
        if self.fragments {
            self.code.push(load_u32(data, CONTEXT, DATA_BYTES));
        }
        self.code.extend([load_u32(R1, CONTEXT, DATA_END_BYTES), copy(R2, data), add(R2, end.cast_signed())]);
        self.code.branch(skip_if_greater(R2, R1, 0), beyond);
        data
    }

    /// Loads at an offset that a comparison has proved to be inside.
    fn load_at_constant_offset(&mut self, to: Register, width: LoadWidth, data: Register, offset: u32) {
        if let Ok(near) = i16::try_from(offset) {
            return self.code.push(load_instruction(to, width, data, near));
        }
        self.code.extend([copy(R2, data), add(R2, offset.cast_signed()), load_instruction(to, width, R2, 0)]);
    }

    /// Loads at the offset in R2, in any buffer.
    fn load_with_helper(&mut self, to: Register, width: LoadWidth) {
        self.code.extend([copy(R1, CONTEXT), copy(R3, FRAME_POINTER), add(R3, LOADED.into())]);
        self.code.extend([set(R4, width as i32), call_helper(HelperFunction::LoadBytes)]);
        self.code.branch(skip_if_u32(Condition::NotEqual, R0, 0, 0), self.no_match);
        self.code.push(load_instruction(to, width, FRAME_POINTER, LOADED));
    }

    /// If the offset in R2, read as signed, is negative, converts it as [`LoadTarget::from_offset`] does.
    fn resolve_negative_offset(&mut self, facts: ValueBounds) {
        let frame = self.code.label();
        self.code.branch(skip_if_u32(Condition::SignedGreaterOrEqual, R2, 0, 0), frame);
        self.code.push(compute_u32(Arithmetic::Subtract, R2, LINK));
        // Offsets below LINK wrap to values above all valid ones.
        self.code
            .branch(skip_if_u32(Condition::GreaterOrEqual, R2, 0_u32.wrapping_sub(LINK), 0), self.no_match);
        self.code.branch(skip_if_u32(Condition::Less, R2, NETWORK - LINK, 0), frame);
        self.code.push(compute_u32(Arithmetic::Subtract, R2, NETWORK - LINK));
        self.add_network_offset(facts);
        self.code.bind(frame);
    }

    /// Adds to R2 the offset of the network header: after a tag, if there is one.
    fn add_network_offset(&mut self, facts: ValueBounds) {
        self.code.push(store_u32(FRAME_POINTER, SAVED, R2));
        self.load(R3, LoadWidth::Half, TYPE_OFFSET, facts);
        let [customer, provider] = VLAN_TYPES.map(u32::from);
        self.code.extend([
            load_u32(R2, FRAME_POINTER, SAVED),
            compute_u32(Arithmetic::Add, R2, ETHERNET_BYTES),
            skip_if_u32(Condition::Equal, R3, customer, 1),
            skip_if_u32(Condition::NotEqual, R3, provider, 1),
            compute_u32(Arithmetic::Add, R2, TAG_BYTES),
        ]);
    }

    fn swap_to_host_byte_order(&mut self, register: Register, width: LoadWidth) {
        if width != LoadWidth::Byte {
            self.code.push(network_order(register, 8 * width as i32));
        }
    }
}

const fn load_instruction(to: Register, width: LoadWidth, from: Register, offset: i16) -> Instruction {
    match width {
        LoadWidth::Byte => load_u8(to, from, offset),
        LoadWidth::Half => load_u16(to, from, offset),
        LoadWidth::Word => load_u32(to, from, offset),
    }
}
