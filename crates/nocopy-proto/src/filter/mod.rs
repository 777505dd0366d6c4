//! Packet filters: classic BPF programs, as libpcap compiles them, with the meaning that Linux gives them
//! (Documentation/networking/filter.rst, net/core/filter.c).
//!
//! A [`Program`] is one that the kernel accepts. It is read from text ([`Program::parse`]), run over packets
//! in user space ([`Program::run`]), and translated for the beginning of an XDP program ([`Program::to_xdp`])
//! or for a packet socket ([`Program::for_packet_socket`]).
//!
//! One decoding serves the check, the interpreter, the translation to XDP and the rewriting for packet
//! sockets, so all have the same meaning. A filter applies to the frame as it was on the wire. Packet sockets
//! get frames without their outermost VLAN tag, so for them it is rewritten to find the tag beside the frame.
//! As an XDP program it needs `CAP_BPF` only: it reads at constant offsets, and calls a helper where X
//! decides the offset, which headers of IPv4 without options avoid.

mod ancillary;
mod assembler;
mod check;
mod facts;
mod instruction;
mod invalid;
#[doc(hidden)]
pub mod oracle;
mod packet_socket;
mod parse;
mod run;
#[cfg(test)]
mod tests;
mod udp;
mod xdp;

pub use ancillary::{AncillaryData, HeaderLocation, UnanswerableLoad, VlanTag};
pub use instruction::{Extension, Instruction};
pub use invalid::{INSTRUCTIONS_MAX, InvalidProgram};
pub use parse::ParseError;
pub use xdp::Untranslatable;

/// A program that the kernel accepts (`bpf_check_classic`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
    operations: Vec<instruction::Operation>,
}

impl Program {
    /// Checks instructions.
    ///
    /// # Errors
    /// The kernel would refuse them.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, InvalidProgram> {
        let operations = check::check_instructions(&instructions)?;
        Ok(Self { instructions, operations })
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}
