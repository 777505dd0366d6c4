//! Filters for packet sockets, where the kernel has taken the outermost VLAN tag out of the frame and keeps
//! it beside.

use super::facts::Facts;
use super::instruction::{LINK, NETWORK, Operation, Place, Register, Width, code};
use super::invalid::SLOTS;
use super::rewriting::{Label, Rewriting};
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
        if self.operations.iter().any(asks_for_tag) {
            return Ok(self.clone());
        }
        let mut rewriting = Rewriting::default();
        let (tagged, original) = (rewriting.label(), rewriting.label());
        rewriting.push(code::LOAD_WORD, Extension::VlanTagPresent.offset());
        rewriting.branch(Instruction::plain(IF_EQUAL, 0), original, tagged);
        rewriting.place(tagged);
        rewriting.push(code::LOAD_CONSTANT, 0); // A, as at the start
        Shift::new(self, rewriting).shift(original)
    }

    /// The filter changed to return `bytes` for each packet that matches: a packet socket cuts packets to the
    /// returned length.
    ///
    /// # Errors
    /// The filter becomes too long.
    pub fn keeping(&self, bytes: u32) -> Result<Self, InvalidProgram> {
        let mut rewriting = Rewriting::default();
        let labels: Vec<Label> = self.operations.iter().map(|_| rewriting.label()).collect();
        for (index, (&operation, &instruction)) in self.operations.iter().zip(&self.instructions).enumerate()
        {
            rewriting.place(labels[index]);
            match operation {
                Operation::Jump(_) | Operation::Branch { .. } => {
                    rewriting.jump_as(operation, instruction, &labels[index + 1..]);
                }
                Operation::ReturnConstant(1..) => rewriting.push(code::RETURN_CONSTANT, bytes),
                Operation::ReturnA => {
                    let [nothing, something] = std::array::from_fn(|_| rewriting.label());
                    rewriting.branch(Instruction::plain(IF_EQUAL, 0), nothing, something);
                    rewriting.place(nothing);
                    rewriting.push(code::RETURN_CONSTANT, 0);
                    rewriting.place(something);
                    rewriting.push(code::RETURN_CONSTANT, bytes);
                }
                _ => rewriting.extend(&[instruction]),
            }
        }
        Self::new(rewriting.finish())
    }
}

const fn asks_for_tag(operation: &Operation) -> bool {
    use Extension::{VlanProtocol, VlanTag, VlanTagPresent};
    matches!(operation, Operation::LoadExtension(VlanTag | VlanTagPresent | VlanProtocol))
}

/// The unfinished program for frames with a tag.
struct Shift<'a> {
    program: &'a Program,
    rewriting: Rewriting,
    /// A scratch slot the program does not use.
    slot: Option<u32>,
    /// An instruction for which no slot was left.
    wanting: Option<usize>,
}

impl<'a> Shift<'a> {
    fn new(program: &'a Program, rewriting: Rewriting) -> Self {
        let uses = |slot| {
            program.operations.iter().any(
                |operation| matches!(operation, Operation::LoadScratch(_, used) | Operation::Store(_, used) if *used == slot),
            )
        };
        Self { program, rewriting, slot: (0..SLOTS).rev().find(|&slot| !uses(slot)), wanting: None }
    }

    fn shift(mut self, original: Label) -> Result<Program, InvalidProgram> {
        let (operations, instructions) = (&self.program.operations, &self.program.instructions);
        let labels: Vec<Label> = operations.iter().map(|_| self.rewriting.label()).collect();
        for (index, facts) in Facts::of(operations).into_iter().enumerate() {
            self.rewriting.place(labels[index]);
            match operations[index] {
                operation @ (Operation::Jump(_) | Operation::Branch { .. }) => {
                    self.rewriting.jump_as(operation, instructions[index], &labels[index + 1..]);
                }
                operation => match facts {
                    Some(facts) => self.instruction(index, operation, facts),
                    // No path leads here, but the kernel checks it nevertheless.
                    None => self.keep(index),
                },
            }
        }
        if let Some(index) = self.wanting {
            return Err(InvalidProgram::NoSlotLeft { index });
        }
        self.rewriting.place(original);
        self.rewriting.extend(instructions);
        Program::new(self.rewriting.finish())
    }

    fn keep(&mut self, index: usize) {
        self.rewriting.extend(&self.program.instructions[index..=index]);
    }

    fn instruction(&mut self, index: usize, operation: Operation, facts: Facts) {
        match operation {
            Operation::Load(width, offset) => match Place::of(offset) {
                Place::Frame(at) | Place::Link(at) if at + width as u32 > TAG => {
                    self.load(index, width, at, offset - at);
                }
                _ => self.keep(index),
            },
            Operation::LoadHeader(offset) => match Place::of(offset) {
                Place::Frame(at) | Place::Link(at) if at >= TAG_END => {
                    self.rewriting.push(code::LOAD_X_HEADER, offset - TAG_BYTES);
                }
                Place::Frame(at @ TAG..) | Place::Link(at @ TAG..) => self.header_in_tag(index, at),
                _ => self.keep(index),
            },
            Operation::LoadIndirect(width, offset) => self.load_indirect(index, width, offset, facts),
            Operation::LoadLength(Register::A) => {
                self.rewriting.push(code::LOAD_LENGTH, 0);
                self.rewriting.push(ADD, TAG_BYTES);
            }
            Operation::LoadLength(Register::X) => {
                let slot = self.slot(index);
                self.rewriting.push(code::STORE, slot);
                self.rewriting.push(code::LOAD_LENGTH, 0);
                self.rewriting.push(ADD, TAG_BYTES);
                self.rewriting.push(code::A_TO_X, 0);
                self.rewriting.push(code::LOAD_SCRATCH, slot);
            }
            _ => self.keep(index),
        }
    }

    fn slot(&mut self, index: usize) -> u32 {
        if self.slot.is_none() {
            self.wanting.get_or_insert(index);
        }
        self.slot.unwrap_or(0)
    }

    /// `X = 4 * (byte & 15)` of a byte in the tag; A stays.
    fn header_in_tag(&mut self, index: usize, at: u32) {
        let slot = self.slot(index);
        self.rewriting.push(code::STORE, slot);
        self.load_tag(at, 1);
        for (code, constant) in [(AND, 0xf), (SHIFT_LEFT, 2), (code::A_TO_X, 0), (code::LOAD_SCRATCH, slot)] {
            self.rewriting.push(code, constant);
        }
    }

    /// Loads from `at` in the original frame, of which at least one byte is after the start of the tag.
    /// Offsets count from `base`.
    fn load(&mut self, index: usize, width: Width, at: u32, base: u32) {
        if at >= TAG_END {
            return self.rewriting.push(load_code(width), base + at - TAG_BYTES);
        }
        let end = at + width as u32;
        let pieces = pieces(at, end);
        if let [(at, bytes)] = pieces[..] {
            return self.load_tag(at, bytes);
        }
        // Combined in X, which is restored.
        let slot = self.slot(index);
        self.rewriting.push(code::STORE_X, slot);
        for (number, &(at, bytes)) in pieces.iter().enumerate() {
            if number > 0 {
                self.rewriting.push(SHIFT_LEFT, 8 * bytes);
                self.rewriting.push(code::A_TO_X, 0);
            }
            match at {
                TAG..TAG_END => self.load_tag(at, bytes),
                TAG_END.. => self.rewriting.push(code::LOAD_BYTE, base + at - TAG_BYTES),
                _ => self.rewriting.push(code::LOAD_BYTE, base + at),
            }
            if number > 0 {
                self.rewriting.push(OR_X, 0);
            }
        }
        self.rewriting.push(code::LOAD_X_SCRATCH, slot);
    }

    /// `A = ` one or two bytes of the tag; two are its type or its control field.
    fn load_tag(&mut self, at: u32, bytes: u32) {
        let field = if at < TAG + 2 { Extension::VlanProtocol } else { Extension::VlanTag };
        self.rewriting.push(code::LOAD_WORD, field.offset());
        match (bytes, at % 2) {
            (1, 0) => self.rewriting.push(SHIFT_RIGHT, 8),
            (1, _) => self.rewriting.push(AND, 0xff),
            _ => {}
        }
    }

    /// `A = packet[X + offset]`. Whether it is before or after the tag is known only at run time, unless the
    /// facts say that it is after.
    fn load_indirect(&mut self, index: usize, width: Width, offset: u32, facts: Facts) {
        let load = load_code(width) + (code::LOAD_WORD_INDIRECT - code::LOAD_WORD);
        let behind = offset.wrapping_sub(TAG_BYTES);
        let may_wrap = facts.x_may_wrap(offset);
        if !may_wrap && offset >= TAG_END {
            return self.rewriting.push(load, behind);
        }
        let [positive, before, low, shifted, overlapping, done] =
            std::array::from_fn(|_| self.rewriting.label());
        self.rewriting.push(code::X_TO_A, 0);
        self.rewriting.push(ADD, offset);
        if may_wrap {
            self.resolve_negative(positive, before);
        }
        self.rewriting.place(positive);
        self.rewriting.branch(Instruction::plain(IF_GREATER_OR_EQUAL, TAG_END), shifted, low);
        self.rewriting.place(low);
        self.rewriting.branch(Instruction::plain(IF_GREATER, TAG - width as u32), overlapping, before);
        self.rewriting.place(before);
        self.rewriting.push(load, offset);
        self.rewriting.jump(done);
        self.rewriting.place(shifted);
        self.rewriting.push(load, behind);
        self.rewriting.jump(done);
        self.rewriting.place(overlapping);
        for at in TAG + 1 - width as u32..TAG_END {
            let (here, next) = (self.rewriting.label(), self.rewriting.label());
            self.rewriting.branch(Instruction::plain(IF_EQUAL, at), here, next);
            self.rewriting.place(here);
            self.load(index, width, at, 0);
            self.rewriting.jump(done);
            self.rewriting.place(next);
        }
        self.rewriting.place(done);
    }

    /// For an offset in A that may be negative: jumps to `unchanged` if it is not in the frame; otherwise
    /// falls through, or jumps to `positive`, with the offset in the frame in A.
    fn resolve_negative(&mut self, positive: Label, unchanged: Label) {
        let [negative, not_network, link] = std::array::from_fn(|_| self.rewriting.label());
        let at_least = |offset| Instruction::plain(IF_GREATER_OR_EQUAL, offset);
        self.rewriting.branch(at_least(1 << 31), negative, positive);
        self.rewriting.place(negative);
        // The network header is after the tag, with or without it.
        self.rewriting.branch(at_least(NETWORK), unchanged, not_network);
        self.rewriting.place(not_network);
        self.rewriting.branch(at_least(LINK), link, unchanged);
        self.rewriting.place(link);
        self.rewriting.push(SUBTRACT, LINK);
    }
}

/// Splits bytes `at` to `end` of a frame into pieces for one load each: fields of the tag, single bytes.
fn pieces(mut at: u32, end: u32) -> Vec<(u32, u32)> {
    let mut pieces = Vec::new();
    while at < end {
        let is_field = (TAG..TAG_END).contains(&at) && at.is_multiple_of(2) && at + 2 <= end;
        let bytes = if is_field { 2 } else { 1 };
        pieces.push((at, bytes));
        at += bytes;
    }
    pieces
}

const fn load_code(width: Width) -> u16 {
    match width {
        Width::Byte => code::LOAD_BYTE,
        Width::Half => code::LOAD_HALF,
        Width::Word => code::LOAD_WORD,
    }
}
