//! A program's filter, as a packet socket runs it.

use nocopy_proto::filter::{Ancillary, Instruction, InvalidProgram, Program, VlanTag};

/// Bytes in front of a VLAN tag.
const ADDRESSES_BYTES: usize = 12;
/// Bytes of one.
const TAG_BYTES: usize = 4;

/// A filter.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// As it was given: over the frame on the wire.
    pub(crate) program: Program,
    /// For frames whose tag lies beside them.
    beside: Program,
}

impl Filter {
    /// Checks a program's instructions: that they end, above all.
    ///
    /// # Errors
    /// The kernel would not take them either.
    pub(crate) fn new(instructions: &[Instruction]) -> Result<Self, InvalidProgram> {
        let program = Program::new(instructions.to_vec())?;
        let beside = program.for_packet_socket()?;
        Ok(Self { program, beside })
    }

    /// Whether a frame matches whose tag, if it has one, was put back into it; decided exactly as in the kernel.
    pub(crate) fn matches(&self, bytes: &[u8], vlan: Option<VlanTag>) -> bool {
        let ancillary = Ancillary { vlan, ..Ancillary::default() };
        match bytes.split_at_checked(ADDRESSES_BYTES) {
            Some((addresses, rest)) if vlan.is_some() && rest.len() >= TAG_BYTES => {
                self.beside.run(&[addresses, &rest[TAG_BYTES..]], &ancillary) != 0
            }
            _ => self.beside.run(&[bytes], &ancillary) != 0,
        }
    }
}
