//! A program's filter.

use nocopy_proto::filter::{Ancillary, Instruction, InvalidProgram, Program, VlanTag};

/// Bytes in front of a VLAN tag.
const ADDRESSES_BYTES: usize = 12;
/// Bytes of one.
const TAG_BYTES: usize = 4;

/// A filter.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// As it was given.
    pub(crate) program: Program,
}

impl Filter {
    /// Checks a program's instructions: that they end, above all.
    ///
    /// # Errors
    /// The kernel would not take them either.
    pub(crate) fn new(instructions: &[Instruction]) -> Result<Self, InvalidProgram> {
        Ok(Self { program: Program::new(instructions.to_vec())? })
    }

    /// Whether a frame matches as a packet socket of the kernel's sees it, with its tag beside it: here it was put back into the
    /// frame, and is passed over.
    pub(crate) fn matches_beside_tag(&self, bytes: &[u8], vlan: Option<VlanTag>) -> bool {
        let ancillary = Ancillary { vlan, ..Ancillary::default() };
        match bytes.split_at_checked(ADDRESSES_BYTES) {
            Some((addresses, rest)) if vlan.is_some() && rest.len() >= TAG_BYTES => {
                self.program.run(&[addresses, &rest[TAG_BYTES..]], &ancillary) != 0
            }
            _ => self.program.run(&[bytes], &ancillary) != 0,
        }
    }
}
