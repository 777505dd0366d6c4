//! The checks of the kernel before it accepts a program (`bpf_check_classic` and `check_load_and_stores` in
//! net/core/filter.c).

use super::instruction::{Arithmetic, Instruction, Operand, Operation};
use super::invalid::{INSTRUCTIONS_MAX, InvalidProgram, SLOTS};

pub(super) fn check_instructions(instructions: &[Instruction]) -> Result<Vec<Operation>, InvalidProgram> {
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
        Operation::ReturnConstant(_) | Operation::ReturnA => check_scratch_slots(&operations)?,
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

/// As in the kernel: instructions that no jump reaches are checked too, as if they followed the instruction
/// before.
fn check_scratch_slots(operations: &[Operation]) -> Result<(), InvalidProgram> {
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
