//! Packet filters: classic BPF programs, as libpcap compiles them.

/// An instruction of classic BPF, laid out as the kernel wants it (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, size, mode and operation.
    pub code: u16,
    /// Instructions to skip if a condition is true.
    pub jump_true: u8,
    /// Instructions to skip if it is not.
    pub jump_false: u8,
    /// The constant.
    pub constant: u32,
}

/// A program that the kernel would take (`bpf_check_classic`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
}

/// Why instructions are not a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProgram {
    /// There is none.
    #[error("no instructions: a filter ends with a return; give the output of 'tcpdump -ddd EXPRESSION'")]
    Empty,
}

impl Program {
    /// Checks instructions.
    ///
    /// # Errors
    /// The kernel would refuse them.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, InvalidProgram> {
        if instructions.is_empty() {
            return Err(InvalidProgram::Empty);
        }
        Ok(Self { instructions })
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}
