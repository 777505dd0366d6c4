//! A program's filter.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use nocopy_proto::filter::{AncillaryData, INSTRUCTIONS_MAX, Instruction, InvalidProgram, Program, VlanTag};

use crate::system::system_libpcap;

/// Bytes in front of a VLAN tag.
const ADDRESSES_BYTES: usize = 12;
/// The length of an 802.1Q tag.
const TAG_BYTES: usize = 4;

/// Accepts that many bytes of every packet.
const fn accept_instruction(bytes: u32) -> Instruction {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    Instruction { code, jump_true: 0, jump_false: 0, constant: bytes }
}

pub(super) fn reject_all_program() -> Program {
    Program::new(vec![accept_instruction(0)]).expect("a filter that ends")
}

#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// The filter as the program gave it; accepts everything if that is too long.
    pub(crate) program: Program,
    /// The filter if it is too long for the kernel; libpcap runs such filters itself.
    pub(crate) long: Option<Arc<[Instruction]>>,
}

impl Filter {
    /// Checks a program's instructions, above all that they end. Fails if the kernel would refuse them for
    /// anything but their number.
    pub(crate) fn new(instructions: &[Instruction]) -> Result<Self, InvalidProgram> {
        if instructions.len() <= INSTRUCTIONS_MAX || !is_valid_program(instructions) {
            return Ok(Self { program: Program::new(instructions.to_vec())?, long: None });
        }
        Ok(Self {
            program: Program::new(vec![accept_instruction(u32::MAX)])?,
            long: Some(instructions.into()),
        })
    }

    /// Whether a frame matches as it would in a packet socket of the kernel, which gets the VLAN tag
    /// separately. The tag was put back into this frame, so it is skipped.
    pub(crate) fn matches_without_vlan_tag(
        &self,
        bytes: &[u8],
        original_bytes: u32,
        vlan: Option<VlanTag>,
    ) -> bool {
        let (addresses, rest) = match bytes.split_at_checked(ADDRESSES_BYTES) {
            Some((addresses, rest)) if vlan.is_some() && rest.len() >= TAG_BYTES => {
                (addresses, &rest[TAG_BYTES..])
            }
            _ => (bytes, &[][..]),
        };
        let skipped = bytes.len() - addresses.len() - rest.len();
        let original_bytes = original_bytes.saturating_sub(skipped as u32);
        match &self.long {
            None => {
                // A packet that was cut is as long as it was on the wire, as for libpcap (its `tp_len`).
                let original_bytes = Some(original_bytes);
                let ancillary = AncillaryData { vlan, original_bytes, ..AncillaryData::default() };
                self.program.run(&[addresses, rest], &ancillary) != 0
            }
            Some(long) if rest.is_empty() => run_with_libpcap(long, addresses, original_bytes),
            Some(long) => run_with_libpcap(long, &[addresses, rest].concat(), original_bytes),
        }
    }
}

/// Whether a program has a backward jump (in libpcap's programs a negative offset), and so possibly a loop.
pub(crate) fn has_backward_jump(instructions: &[Instruction]) -> bool {
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    instructions.iter().any(|instruction| instruction.code == JUMP && instruction.constant.cast_signed() < 0)
}

/// Whether libpcap would run a program, and the program ends: that jumps only go forward, libpcap leaves to
/// the kernel to check.
fn is_valid_program(instructions: &[Instruction]) -> bool {
    let Ok(len) = c_int::try_from(instructions.len()) else { return false };
    // SAFETY: as many instructions.
    let is_program = unsafe { (system_libpcap().bpf_validate)(instructions.as_ptr(), len) } != 0;
    is_program && !has_backward_jump(instructions)
}

fn run_with_libpcap(program: &[Instruction], bytes: &[u8], original_bytes: u32) -> bool {
    // SAFETY: the program was checked, and the packet is as long as said.
    unsafe {
        (system_libpcap().bpf_filter)(program.as_ptr(), bytes.as_ptr(), original_bytes, bytes.len() as c_uint)
            != 0
    }
}
