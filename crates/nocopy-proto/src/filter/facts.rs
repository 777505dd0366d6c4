//! Facts that hold before each instruction on every path to it, so that translations leave out needless
//! checks.

use super::instruction::{Arithmetic, Extension, LoadTarget, LoadWidth, Operand, Operation, Register};
use super::invalid::SLOTS;

/// The largest length of an IPv4 header: 4 bits, in words.
const HEADER_BYTES_MAX: u32 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::filter) struct ValueBounds {
    /// The largest values of the registers and the scratch slots.
    a_max: u32,
    x_max: u32,
    slots_max: [u32; SLOTS as usize],
    /// The linear part of the packet has been found to have this many bytes.
    pub(in crate::filter) linear_bytes: u32,
}

impl ValueBounds {
    const START: Self = Self { a_max: 0, x_max: 0, slots_max: [0; SLOTS as usize], linear_bytes: 0 };

    /// The facts before each instruction; `None` if no path leads there. Jumps only go forward, so one pass
    /// suffices.
    pub(in crate::filter) fn before_each_instruction(operations: &[Operation]) -> Vec<Option<Self>> {
        let mut all = vec![None; operations.len()];
        all[0] = Some(Self::START);
        for (index, &operation) in operations.iter().enumerate() {
            let Some(before): Option<Self> = all[index] else { continue };
            let after = before.after_operation(operation);
            let mut reach = |distance: usize| {
                let target: &mut Option<Self> = &mut all[index + 1 + distance];
                *target = Some(target.map_or(after, |facts| facts.joined_with(after)));
            };
            match operation {
                Operation::ReturnConstant(_) | Operation::ReturnA => {}
                _ if load_never_succeeds(operation) => {}
                Operation::Jump(distance) => reach(distance as usize),
                Operation::Branch { jump_true, jump_false, .. } => {
                    reach(jump_true.into());
                    reach(jump_false.into());
                }
                _ => reach(0),
            }
        }
        all
    }

    /// Whether X seems to be the length of an IPv4 header.
    pub(in crate::filter) const fn x_is_ip_header_length(&self) -> bool {
        self.x_max == HEADER_BYTES_MAX
    }

    /// Whether X plus `offset` may be more than 31 bits.
    pub(in crate::filter) fn x_plus_offset_may_wrap(&self, offset: u32) -> bool {
        self.x_max.checked_add(offset).is_none_or(|sum| sum.cast_signed() < 0)
    }

    /// Facts that hold where two paths meet.
    fn joined_with(mut self, other: Self) -> Self {
        self.a_max = self.a_max.max(other.a_max);
        self.x_max = self.x_max.max(other.x_max);
        for (slot, other) in self.slots_max.iter_mut().zip(other.slots_max) {
            *slot = (*slot).max(other);
        }
        self.linear_bytes = self.linear_bytes.min(other.linear_bytes);
        self
    }

    fn after_operation(mut self, operation: Operation) -> Self {
        match operation {
            Operation::Load(width, offset) => {
                self.a_max = largest_loaded_value(width);
                if let LoadTarget::Frame(offset) | LoadTarget::Link(offset) = LoadTarget::from_offset(offset)
                {
                    self.linear_bytes = self.linear_bytes.max(offset.saturating_add(width as u32));
                }
            }
            Operation::LoadIndirect(width, _) => self.a_max = largest_loaded_value(width),
            Operation::LoadHeader(offset) => {
                self.x_max = HEADER_BYTES_MAX;
                if let LoadTarget::Frame(offset) | LoadTarget::Link(offset) = LoadTarget::from_offset(offset)
                {
                    self.linear_bytes = self.linear_bytes.max(offset.saturating_add(1));
                }
            }
            Operation::LoadExtension(Extension::XorX) => self.a_max = all_bits_up_to(self.a_max | self.x_max),
            Operation::LoadExtension(_) | Operation::Negate => self.a_max = u32::MAX,
            Operation::LoadConstant(to, value) => *self.register_max(to) = value,
            Operation::LoadScratch(to, slot) => *self.register_max(to) = self.slots_max[slot as usize],
            Operation::LoadLength(to) => *self.register_max(to) = u32::MAX,
            Operation::Store(from, slot) => self.slots_max[slot as usize] = *self.register_max(from),
            Operation::Arithmetic(arithmetic, operand) => {
                self.a_max = self.arithmetic_result_max(arithmetic, operand)
            }
            Operation::MoveTo(Register::A) => self.a_max = self.x_max,
            Operation::MoveTo(Register::X) => self.x_max = self.a_max,
            Operation::Jump(_)
            | Operation::Branch { .. }
            | Operation::ReturnConstant(_)
            | Operation::ReturnA => {}
        }
        self
    }

    const fn register_max(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::A => &mut self.a_max,
            Register::X => &mut self.x_max,
        }
    }

    /// The largest value of A after arithmetic.
    const fn arithmetic_result_max(&self, arithmetic: Arithmetic, operand: Operand) -> u32 {
        let a = self.a_max;
        let (most, known) = match operand {
            Operand::Constant(value) => (value, Some(value)),
            Operand::X => (self.x_max, None),
        };
        let exact = match (arithmetic, known) {
            (Arithmetic::Add, _) => a.checked_add(most),
            (Arithmetic::Multiply, _) => a.checked_mul(most),
            (Arithmetic::And, _) => Some(if a < most { a } else { most }),
            (Arithmetic::Or | Arithmetic::Xor, _) => Some(all_bits_up_to(a | most)),
            (Arithmetic::Divide, Some(value)) => a.checked_div(value),
            (Arithmetic::Remainder, Some(value)) => value.checked_sub(1),
            (Arithmetic::ShiftLeft, Some(bits)) => a.checked_mul(1 << (bits & 31)),
            (Arithmetic::ShiftRight, Some(bits)) => Some(a >> (bits & 31)),
            (Arithmetic::Divide | Arithmetic::Remainder | Arithmetic::ShiftRight, None) => Some(a),
            (Arithmetic::Subtract | Arithmetic::ShiftLeft, _) => None,
        };
        match exact {
            Some(value) => value,
            None => u32::MAX,
        }
    }
}

/// Whether this is a load that always ends the filter.
pub(in crate::filter) const fn load_never_succeeds(operation: Operation) -> bool {
    matches!(operation, Operation::Load(_, offset) | Operation::LoadHeader(offset)
        if matches!(LoadTarget::from_offset(offset), LoadTarget::Nowhere))
}

const fn largest_loaded_value(width: LoadWidth) -> u32 {
    match width {
        LoadWidth::Byte => 0xff,
        LoadWidth::Half => 0xffff,
        LoadWidth::Word => u32::MAX,
    }
}

/// The largest number of no more bits than `value`.
const fn all_bits_up_to(value: u32) -> u32 {
    match value.checked_ilog2() {
        Some(bit) => u32::MAX >> (31 - bit),
        None => 0,
    }
}
