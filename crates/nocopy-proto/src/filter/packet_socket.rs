//! Filters for packet sockets, where the kernel has taken the outermost VLAN tag out of the frame and keeps
//! it beside.

use super::assembler::{Assembler, Label};
use super::facts::ValueBounds;
use super::instruction::{LINK, LoadTarget, LoadWidth, NETWORK, Operation, Register, code};
use super::invalid::SLOTS;
use super::{Extension, Instruction, InvalidProgram, Program};

/// The offsets in a frame at which the tag begins (its type, then its control field) and ends.
const TAG: u32 = 12;
const TAG_END: u32 = 16;
const TAG_BYTES: u32 = 4;

const SUBTRACT: u16 = 0x14;
const ADD: u16 = 0x04;
const AND: u16 = 0x54;
const OR_X: u16 = 0x4c;
const SHIFT_LEFT: u16 = 0x64;
const SHIFT_RIGHT: u16 = 0x74;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_GREATER_OR_EQUAL: u16 = 0x35;

impl Program {
    /// The filter for a packet socket, when this one is for frames as they were on the wire: the kernel hands
    /// packet sockets the frame without its outermost VLAN tag, and the tag beside it (`skb_vlan_untag`).
    /// What is returned asks whether there is one, and if so reads the tag where the frame had it, and
    /// everything behind it 4 bytes earlier.
    ///
    /// A filter that itself asks for the tag, as libpcap compiles them for such sockets, is returned
    /// unchanged.
    ///
    /// # Errors
    /// The filter becomes too long, or needs a scratch slot and none is left.
    pub fn for_packet_socket(&self) -> Result<Self, InvalidProgram> {
        if self.operations.iter().any(loads_vlan_tag) {
            return Ok(self.clone());
        }
        let mut assembler = Assembler::default();
        let (tagged, original) = (assembler.label(), assembler.label());
        assembler.push(code::LOAD_WORD, Extension::VlanTagPresent.load_offset());
        assembler.branch(Instruction::non_branching(IF_EQUAL, 0), original, tagged);
        assembler.bind(tagged);
        assembler.push(code::LOAD_CONSTANT, 0); // A, as at the start
        TagTranslation::new(self, assembler).translate(original)
    }

    /// The filter changed to return `bytes` for each packet that matches: a packet socket cuts packets to the
    /// returned length.
    ///
    /// # Errors
    /// The filter becomes too long.
    pub fn with_snap_length(&self, bytes: u32) -> Result<Self, InvalidProgram> {
        let mut assembler = Assembler::default();
        let labels: Vec<Label> = self.operations.iter().map(|_| assembler.label()).collect();
        for (index, (&operation, &instruction)) in self.operations.iter().zip(&self.instructions).enumerate()
        {
            assembler.bind(labels[index]);
            match operation {
                Operation::Jump(_) | Operation::Branch { .. } => {
                    assembler.push_jumps_of(operation, instruction, &labels[index + 1..]);
                }
                Operation::ReturnConstant(1..) => assembler.push(code::RETURN_CONSTANT, bytes),
                Operation::ReturnA => {
                    let [nothing, something] = std::array::from_fn(|_| assembler.label());
                    assembler.branch(Instruction::non_branching(IF_EQUAL, 0), nothing, something);
                    assembler.bind(nothing);
                    assembler.push(code::RETURN_CONSTANT, 0);
                    assembler.bind(something);
                    assembler.push(code::RETURN_CONSTANT, bytes);
                }
                _ => assembler.extend(&[instruction]),
            }
        }
        Self::new(assembler.finish())
    }
}

const fn loads_vlan_tag(operation: &Operation) -> bool {
    use Extension::{VlanProtocol, VlanTag, VlanTagPresent};
    matches!(operation, Operation::LoadExtension(VlanTag | VlanTagPresent | VlanProtocol))
}

/// The unfinished program for frames with a tag.
struct TagTranslation<'a> {
    program: &'a Program,
    assembler: Assembler,
    /// A scratch slot the program does not use.
    slot: Option<u32>,
    /// An instruction for which no slot was left.
    without_slot: Option<usize>,
}

impl<'a> TagTranslation<'a> {
    fn new(program: &'a Program, assembler: Assembler) -> Self {
        let uses = |slot| {
            program.operations.iter().any(
                |operation| matches!(operation, Operation::LoadScratch(_, used) | Operation::Store(_, used) if *used == slot),
            )
        };
        Self { program, assembler, slot: (0..SLOTS).rev().find(|&slot| !uses(slot)), without_slot: None }
    }

    fn translate(mut self, original: Label) -> Result<Program, InvalidProgram> {
        let (operations, instructions) = (&self.program.operations, &self.program.instructions);
        let labels: Vec<Label> = operations.iter().map(|_| self.assembler.label()).collect();
        for (index, facts) in ValueBounds::before_each_instruction(operations).into_iter().enumerate() {
            self.assembler.bind(labels[index]);
            match operations[index] {
                operation @ (Operation::Jump(_) | Operation::Branch { .. }) => {
                    self.assembler.push_jumps_of(operation, instructions[index], &labels[index + 1..]);
                }
                operation => match facts {
                    Some(facts) => self.translate_instruction(index, operation, facts),
                    // No path leads here, but the kernel checks it nevertheless.
                    None => self.copy_unchanged(index),
                },
            }
        }
        if let Some(index) = self.without_slot {
            return Err(InvalidProgram::NoSlotLeft { index });
        }
        self.assembler.bind(original);
        self.assembler.extend(instructions);
        Program::new(self.assembler.finish())
    }

    fn copy_unchanged(&mut self, index: usize) {
        self.assembler.extend(&self.program.instructions[index..=index]);
    }

    fn translate_instruction(&mut self, index: usize, operation: Operation, facts: ValueBounds) {
        match operation {
            Operation::Load(width, offset) => match LoadTarget::from_offset(offset) {
                LoadTarget::Frame(at) | LoadTarget::Link(at) if at + width as u32 > TAG => {
                    self.load_across_tag(index, width, at, offset - at);
                }
                _ => self.copy_unchanged(index),
            },
            Operation::LoadHeader(offset) => match LoadTarget::from_offset(offset) {
                LoadTarget::Frame(at) | LoadTarget::Link(at) if at >= TAG_END => {
                    self.assembler.push(code::LOAD_X_HEADER, offset - TAG_BYTES);
                }
                LoadTarget::Frame(at @ TAG..) | LoadTarget::Link(at @ TAG..) => {
                    self.load_header_length_in_tag(index, at)
                }
                _ => self.copy_unchanged(index),
            },
            Operation::LoadIndirect(width, offset) => self.load_indirect(index, width, offset, facts),
            Operation::LoadLength(Register::A) => {
                self.assembler.push(code::LOAD_LENGTH, 0);
                self.assembler.push(ADD, TAG_BYTES);
            }
            Operation::LoadLength(Register::X) => {
                let slot = self.scratch_slot(index);
                self.assembler.push(code::STORE, slot);
                self.assembler.push(code::LOAD_LENGTH, 0);
                self.assembler.push(ADD, TAG_BYTES);
                self.assembler.push(code::A_TO_X, 0);
                self.assembler.push(code::LOAD_SCRATCH, slot);
            }
            _ => self.copy_unchanged(index),
        }
    }

    fn scratch_slot(&mut self, index: usize) -> u32 {
        if self.slot.is_none() {
            self.without_slot.get_or_insert(index);
        }
        self.slot.unwrap_or(0)
    }

    /// `X = 4 * (byte & 15)` of a byte in the tag; A stays.
    fn load_header_length_in_tag(&mut self, index: usize, at: u32) {
        let slot = self.scratch_slot(index);
        self.assembler.push(code::STORE, slot);
        self.load_tag_bytes(at, 1);
        for (code, constant) in [(AND, 0xf), (SHIFT_LEFT, 2), (code::A_TO_X, 0), (code::LOAD_SCRATCH, slot)] {
            self.assembler.push(code, constant);
        }
    }

    /// Loads from `at` in the original frame, of which at least one byte is after the start of the tag.
    /// Offsets count from `base`.
    fn load_across_tag(&mut self, index: usize, width: LoadWidth, at: u32, base: u32) {
        if at >= TAG_END {
            return self.assembler.push(load_opcode(width), base + at - TAG_BYTES);
        }
        let end = at + width as u32;
        let pieces = split_into_loads(at, end);
        if let [(at, bytes)] = pieces[..] {
            return self.load_tag_bytes(at, bytes);
        }
        // Combined in X, which is restored.
        let slot = self.scratch_slot(index);
        self.assembler.push(code::STORE_X, slot);
        for (number, &(at, bytes)) in pieces.iter().enumerate() {
            if number > 0 {
                self.assembler.push(SHIFT_LEFT, 8 * bytes);
                self.assembler.push(code::A_TO_X, 0);
            }
            match at {
                TAG..TAG_END => self.load_tag_bytes(at, bytes),
                TAG_END.. => self.assembler.push(code::LOAD_BYTE, base + at - TAG_BYTES),
                _ => self.assembler.push(code::LOAD_BYTE, base + at),
            }
            if number > 0 {
                self.assembler.push(OR_X, 0);
            }
        }
        self.assembler.push(code::LOAD_X_SCRATCH, slot);
    }

    /// `A = ` one or two bytes of the tag; two are its type or its control field.
    fn load_tag_bytes(&mut self, at: u32, bytes: u32) {
        let field = if at < TAG + 2 { Extension::VlanProtocol } else { Extension::VlanTag };
        self.assembler.push(code::LOAD_WORD, field.load_offset());
        match (bytes, at % 2) {
            (1, 0) => self.assembler.push(SHIFT_RIGHT, 8),
            (1, _) => self.assembler.push(AND, 0xff),
            _ => {}
        }
    }

    /// `A = packet[X + offset]`. Whether it is before or after the tag is known only at run time, unless the
    /// facts say that it is after.
    fn load_indirect(&mut self, index: usize, width: LoadWidth, offset: u32, facts: ValueBounds) {
        let load = load_opcode(width) + (code::LOAD_WORD_INDIRECT - code::LOAD_WORD);
        let behind = offset.wrapping_sub(TAG_BYTES);
        let may_wrap = facts.x_plus_offset_may_wrap(offset);
        if !may_wrap && offset >= TAG_END {
            return self.assembler.push(load, behind);
        }
        let [positive, before, low, shifted, overlapping, done] =
            std::array::from_fn(|_| self.assembler.label());
        self.assembler.push(code::X_TO_A, 0);
        self.assembler.push(ADD, offset);
        if may_wrap {
            self.resolve_negative_offset(positive, before);
        }
        self.assembler.bind(positive);
        self.assembler.branch(Instruction::non_branching(IF_GREATER_OR_EQUAL, TAG_END), shifted, low);
        self.assembler.bind(low);
        self.assembler.branch(
            Instruction::non_branching(IF_GREATER, TAG - width as u32),
            overlapping,
            before,
        );
        self.assembler.bind(before);
        self.assembler.push(load, offset);
        self.assembler.jump(done);
        self.assembler.bind(shifted);
        self.assembler.push(load, behind);
        self.assembler.jump(done);
        self.assembler.bind(overlapping);
        for at in TAG + 1 - width as u32..TAG_END {
            let (here, next) = (self.assembler.label(), self.assembler.label());
            self.assembler.branch(Instruction::non_branching(IF_EQUAL, at), here, next);
            self.assembler.bind(here);
            self.load_across_tag(index, width, at, 0);
            self.assembler.jump(done);
            self.assembler.bind(next);
        }
        self.assembler.bind(done);
    }

    /// For an offset in A that may be negative: jumps to `unchanged` if it is not in the frame; otherwise
    /// falls through, or jumps to `positive`, with the offset in the frame in A.
    fn resolve_negative_offset(&mut self, positive: Label, unchanged: Label) {
        let [negative, not_network, link] = std::array::from_fn(|_| self.assembler.label());
        let at_least = |offset| Instruction::non_branching(IF_GREATER_OR_EQUAL, offset);
        self.assembler.branch(at_least(1 << 31), negative, positive);
        self.assembler.bind(negative);
        // The network header is after the tag, with or without it.
        self.assembler.branch(at_least(NETWORK), unchanged, not_network);
        self.assembler.bind(not_network);
        self.assembler.branch(at_least(LINK), link, unchanged);
        self.assembler.bind(link);
        self.assembler.push(SUBTRACT, LINK);
    }
}

/// Splits bytes `at` to `end` of a frame into pieces for one load each: fields of the tag, single bytes.
fn split_into_loads(mut at: u32, end: u32) -> Vec<(u32, u32)> {
    let mut pieces = Vec::new();
    while at < end {
        let is_field = (TAG..TAG_END).contains(&at) && at.is_multiple_of(2) && at + 2 <= end;
        let bytes = if is_field { 2 } else { 1 };
        pieces.push((at, bytes));
        at += bytes;
    }
    pieces
}

const fn load_opcode(width: LoadWidth) -> u16 {
    match width {
        LoadWidth::Byte => code::LOAD_BYTE,
        LoadWidth::Half => code::LOAD_HALF,
        LoadWidth::Word => code::LOAD_WORD,
    }
}
