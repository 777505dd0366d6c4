//! The checks of the kernel before it accepts a program (`bpf_check_classic` and `check_load_and_stores` in net/core/filter.c).

use super::instruction::{Arithmetic, Instruction, Operand, Operation};

/// Instructions a program has at most (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;

/// The number of scratch slots (`BPF_MEMWORDS`).
pub(super) const SLOTS: u32 = 16;

const MEND: &str = "correct it, or give the output of 'tcpdump -ddd EXPRESSION'";

/// Why instructions are not a program, as the end of an error: the cause, then what to do. Instructions are counted from 0, as `tcpdump -d` prints them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProgram {
    /// There is none.
    #[error("it has no instructions; a filter ends with a return; {MEND}")]
    Empty,
    /// There are more than [`INSTRUCTIONS_MAX`].
    #[error("it has {count} instructions; the kernel accepts at most {INSTRUCTIONS_MAX}; shorten the filter")]
    TooLong {
        /// How many.
        count: usize,
    },
    /// Classic BPF has no such instruction.
    #[error("instruction {index} is unknown; classic BPF has no code {code:#06x}; {MEND}")]
    UnknownCode {
        /// Which instruction.
        index: usize,
        /// Its code.
        code: u16,
    },
    /// A load asks for a fact besides the packet's bytes that Linux does not have.
    #[error("instruction {index} reads outside the packet; Linux has no data at offset {}; {MEND}", .offset.cast_signed())]
    UnknownExtension {
        /// Which instruction.
        index: usize,
        /// The offset.
        offset: u32,
    },
    /// A constant division or remainder by 0.
    #[error("instruction {index} divides by 0; the kernel refuses such a filter; {MEND}")]
    DivisionByZero {
        /// Which instruction.
        index: usize,
    },
    /// A constant shift by 32 or more.
    #[error("instruction {index} shifts by {bits} bits; registers have 32; {MEND}")]
    ShiftTooFar {
        /// Which instruction.
        index: usize,
        /// How far.
        bits: u32,
    },
    /// A scratch slot that does not exist.
    #[error("instruction {index} uses scratch slot {slot}; there are {SLOTS}, counted from 0; {MEND}")]
    NoSuchSlot {
        /// Which instruction.
        index: usize,
        /// The slot.
        slot: u32,
    },
    /// A load from a scratch slot that not every path has stored to.
    #[error(
        "instruction {index} reads scratch slot {slot}; not every path to it stores a value there; {MEND}"
    )]
    SlotNotStored {
        /// Which instruction.
        index: usize,
        /// The slot.
        slot: u32,
    },
    /// The rewriting needs a scratch slot, but the program uses all of them.
    #[error(
        "instruction {index} cannot be rewritten to read VLAN tags; it needs a scratch slot, and all {SLOTS} are in use; free one"
    )]
    NoSlotLeft {
        /// Which instruction.
        index: usize,
    },
    /// A jump past the last instruction.
    #[error("instruction {index} jumps to {target}; the last instruction is {}; {MEND}", .count - 1)]
    JumpPastEnd {
        /// Which instruction.
        index: usize,
        /// The target of the jump.
        target: usize,
        /// The number of instructions.
        count: usize,
    },
    /// The last instruction is not a return.
    #[error("instruction {index} is the last and no return; a filter must end with one; {MEND}")]
    NoReturn {
        /// Which instruction.
        index: usize,
    },
}

pub(super) fn check(instructions: &[Instruction]) -> Result<Vec<Operation>, InvalidProgram> {
    let count = instructions.len();
    match count {
        0 => return Err(InvalidProgram::Empty),
        1..=INSTRUCTIONS_MAX => {}
        _ => return Err(InvalidProgram::TooLong { count }),
    }
    let mut operations = Vec::with_capacity(count);
    for (index, &instruction) in instructions.iter().enumerate() {
        let operation = Operation::decode(index, instruction)?;
        check_operation(index, count, operation)?;
        operations.push(operation);
    }
    match operations[count - 1] {
        Operation::ReturnConstant(_) | Operation::ReturnA => check_slots(&operations)?,
        _ => return Err(InvalidProgram::NoReturn { index: count - 1 }),
    }
    Ok(operations)
}

fn check_operation(index: usize, count: usize, operation: Operation) -> Result<(), InvalidProgram> {
    let inside = |distance: u32| {
        let target = index.saturating_add(1).saturating_add(distance as usize);
        if target < count { Ok(()) } else { Err(InvalidProgram::JumpPastEnd { index, target, count }) }
    };
    match operation {
        Operation::Arithmetic(Arithmetic::Divide | Arithmetic::Remainder, Operand::Constant(0)) => {
            Err(InvalidProgram::DivisionByZero { index })
        }
        Operation::Arithmetic(
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight,
            Operand::Constant(bits @ 32..),
        ) => Err(InvalidProgram::ShiftTooFar { index, bits }),
        Operation::LoadScratch(_, slot @ SLOTS..) | Operation::Store(_, slot @ SLOTS..) => {
            Err(InvalidProgram::NoSuchSlot { index, slot })
        }
        Operation::Jump(distance) => inside(distance),
        Operation::Branch { jump_true, jump_false, .. } => {
            inside(jump_true.into())?;
            inside(jump_false.into())
        }
        _ => Ok(()),
    }
}

/// As in the kernel: instructions that no jump reaches are checked too, as if they followed the instruction before.
fn check_slots(operations: &[Operation]) -> Result<(), InvalidProgram> {
    let (mut at, mut stored) = (vec![u16::MAX; operations.len()], 0_u16);
    for (index, &operation) in operations.iter().enumerate() {
        stored &= at[index];
        match operation {
            Operation::Store(_, slot) => stored |= 1 << slot,
            Operation::LoadScratch(_, slot) if stored & 1 << slot == 0 => {
                return Err(InvalidProgram::SlotNotStored { index, slot });
            }
            Operation::Jump(distance) => {
                at[index + 1 + distance as usize] &= stored;
                stored = u16::MAX;
            }
            Operation::Branch { jump_true, jump_false, .. } => {
                at[index + 1 + usize::from(jump_true)] &= stored;
                at[index + 1 + usize::from(jump_false)] &= stored;
                stored = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}
