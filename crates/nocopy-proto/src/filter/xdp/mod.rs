//! Filters translated to eBPF, to run in an XDP program before packets are copied or taken.

mod code;

mod load;

use self::code::{Label, XdpAssembler};
use self::load::{DATA_BYTES, END_MAX};
use super::Program;
use super::ancillary::UnanswerableLoad;
use super::facts::{ValueBounds, load_never_succeeds};
use super::instruction::{
    Arithmetic, Condition, Extension, LoadTarget, LoadWidth, Operand, Operation, Register,
};
use super::run::ETHERNET_HARDWARE;
use crate::ebpf::{
    self, FRAME_POINTER, HelperFunction, Instruction, R0, R1, R6, R7, R8, R9, call_helper, compute_u32,
    compute_u32_with_register, copy, exit, load_u32, set, skip_if_u32, skip_if_u32_registers, store_u32,
};

/// The return value for packets that continue to the host.
const XDP_PASS: i32 = 2;

/// Offsets of `ingress_ifindex` and `rx_queue_index` in `struct xdp_md`.
const INTERFACE_INDEX_BYTES: i16 = 12;
const RX_QUEUE_INDEX_BYTES: i16 = 16;

/// Registers that last: the context, the filter's A and X, and, without fragments, where the packet begins.
const CONTEXT: ebpf::Register = R6;
const A: ebpf::Register = R7;
const X: ebpf::Register = R8;
const DATA: ebpf::Register = R9;

/// Why a filter cannot become part of an XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Untranslatable {
    /// It asks for a fact that XDP programs do not know.
    #[error(transparent)]
    Unanswerable(#[from] UnanswerableLoad),
    /// It reads farther into the packet than XDP programs can.
    #[error(
        "instruction {index} reads up to byte {end}; an XDP program reads at most {END_MAX}; run the filter on a packet socket"
    )]
    TooFar {
        /// Which instruction.
        index: usize,
        /// The end of the bytes it reads.
        end: u32,
    },
    /// A jump spans more instructions than eBPF's 16 bits can hold.
    #[error(
        "its {instructions} instructions cannot be translated; jumps become too long for eBPF; shorten the filter"
    )]
    TooLong {
        /// The number of instructions.
        instructions: usize,
    },
}

impl Program {
    /// Translates the filter to the beginning of an XDP program: it expects the context in R1; on a match it
    /// falls through, with the context in R1 again, otherwise it returns `XDP_PASS`, so the packet goes to
    /// the host untouched.
    ///
    /// R6 to R9 and the uppermost 72 bytes of the stack are its own. With `fragments` it is for a program
    /// loaded with `BPF_F_XDP_HAS_FRAGS`, and sees packets of several buffers whole. It needs `CAP_BPF` and
    /// `CAP_NET_ADMIN`, not `CAP_PERFMON`; and Linux 5.18 if it asks for the length, loads relative to X (as
    /// for ports behind an IPv4 header), or has `fragments`.
    ///
    /// The translation matches when [`Program::run`] returns more than 0, with these limits: an offset above
    /// 65,535 that is computed from X counts as beyond the packet; a VLAN tag that the device has removed
    /// from the frame is not seen.
    ///
    /// # Errors
    /// XDP does not know what the filter asks for, or the filter is too long. (The kernel's verifier may
    /// still find it too complex.)
    pub fn to_xdp(&self, fragments: bool) -> Result<Vec<Instruction>, Untranslatable> {
        self.check_answerable()?;
        let facts = ValueBounds::before_each_instruction(&self.operations);
        let mut translation = XdpTranslation::new(&self.operations, fragments);
        if !self.can_match(&facts) {
            translation.add_unreachable_match();
        }
        for (index, (&operation, facts)) in self.operations.iter().zip(&facts).enumerate() {
            // The verifier would refuse instructions that no path leads to.
            if let &Some(facts) = facts {
                check_load_reach(index, operation)?;
                translation.translate(index, operation, facts);
            }
        }
        translation.finish()
    }

    /// Whether a path leads to a return of another value than 0.
    fn can_match(&self, facts: &[Option<ValueBounds>]) -> bool {
        self.operations.iter().zip(facts).any(|(operation, facts)| match operation {
            Operation::ReturnConstant(value) => facts.is_some() && *value != 0,
            Operation::ReturnA => facts.is_some(),
            _ => false,
        })
    }
}

fn check_load_reach(index: usize, operation: Operation) -> Result<(), Untranslatable> {
    let (offset, width) = match operation {
        Operation::Load(width, offset) => (offset, width),
        Operation::LoadHeader(offset) => (offset, LoadWidth::Byte),
        _ => return Ok(()),
    };
    match LoadTarget::from_offset(offset) {
        LoadTarget::Frame(offset) | LoadTarget::Link(offset) if offset + width as u32 > END_MAX => {
            Err(Untranslatable::TooFar { index, end: offset + width as u32 })
        }
        _ => Ok(()),
    }
}

struct XdpTranslation {
    code: XdpAssembler,
    fragments: bool,
    /// The start of the translation of each instruction.
    labels: Vec<Label>,
    matched: Label,
    no_match: Label,
}

impl XdpTranslation {
    fn new(operations: &[Operation], fragments: bool) -> Self {
        let mut code = XdpAssembler::default();
        let labels = operations.iter().map(|_| code.label()).collect();
        let (matched, no_match) = (code.label(), code.label());
        code.push(copy(CONTEXT, R1));
        if !fragments {
            code.push(load_u32(DATA, R1, DATA_BYTES));
        }
        code.extend([set(A, 0), set(X, 0)]);
        Self { code, fragments, labels, matched, no_match }
    }

    /// A jump that is never taken, to what follows the filter: the verifier refuses instructions that no jump
    /// reaches.
    fn add_unreachable_match(&mut self) {
        self.code.branch(skip_if_u32(ebpf::Condition::NotEqual, A, 0, 0), self.matched);
    }

    fn translate(&mut self, index: usize, operation: Operation, facts: ValueBounds) {
        self.code.bind(self.labels[index]);
        if load_never_succeeds(operation) {
            return self.code.jump(self.no_match);
        }
        match operation {
            Operation::Load(width, offset) => self.load(A, width, offset, facts),
            Operation::LoadIndirect(width, offset) => self.load_indirect(width, offset, facts),
            Operation::LoadHeader(offset) => {
                self.load(X, LoadWidth::Byte, offset, facts);
                self.code.push(compute_u32(ebpf::Arithmetic::And, X, 0xf));
                self.code.push(compute_u32(ebpf::Arithmetic::ShiftLeft, X, 2));
            }
            Operation::LoadExtension(extension) => self.translate_extension(extension),
            Operation::LoadConstant(to, value) => {
                self.code.push(compute_u32(ebpf::Arithmetic::Set, ebpf_register(to), value));
            }
            Operation::LoadScratch(to, slot) => {
                self.code.push(load_u32(ebpf_register(to), FRAME_POINTER, slot_stack_offset(slot)));
            }
            Operation::Store(from, slot) => {
                self.code.push(store_u32(FRAME_POINTER, slot_stack_offset(slot), ebpf_register(from)));
            }
            Operation::LoadLength(to) => {
                // Not data_end - data: a difference of pointers needs CAP_PERFMON.
                self.code.extend([copy(R1, CONTEXT), call_helper(HelperFunction::PacketBytes)]);
                self.code.push(compute_u32_with_register(ebpf::Arithmetic::Set, ebpf_register(to), R0));
            }
            Operation::Arithmetic(arithmetic, operand) => self.translate_arithmetic(arithmetic, operand),
            Operation::Negate => self.code.push(compute_u32(ebpf::Arithmetic::Negate, A, 0)),
            Operation::MoveTo(Register::A) => {
                self.code.push(compute_u32_with_register(ebpf::Arithmetic::Set, A, X))
            }
            Operation::MoveTo(Register::X) => {
                self.code.push(compute_u32_with_register(ebpf::Arithmetic::Set, X, A))
            }
            Operation::Jump(distance) => self.code.jump(self.labels[index + 1 + distance as usize]),
            Operation::Branch { condition, operand, jump_true, jump_false } => {
                let target = |distance: u8| self.labels[index + 1 + usize::from(distance)];
                let (if_true, if_false) = (target(jump_true), target(jump_false));
                self.translate_branch(condition, operand, (jump_true, if_true), (jump_false, if_false));
            }
            Operation::ReturnConstant(0) => self.code.jump(self.no_match),
            Operation::ReturnConstant(_) => self.code.jump(self.matched),
            Operation::ReturnA => {
                self.code.branch(skip_if_u32(ebpf::Condition::NotEqual, A, 0, 0), self.matched);
                self.code.jump(self.no_match);
            }
        }
    }

    fn translate_arithmetic(&mut self, arithmetic: Arithmetic, operand: Operand) {
        if let (Arithmetic::Divide | Arithmetic::Remainder, Operand::X) = (arithmetic, operand) {
            self.code.branch(skip_if_u32(ebpf::Condition::Equal, X, 0, 0), self.no_match);
        }
        let operation = match arithmetic {
            Arithmetic::Add => ebpf::Arithmetic::Add,
            Arithmetic::Subtract => ebpf::Arithmetic::Subtract,
            Arithmetic::Multiply => ebpf::Arithmetic::Multiply,
            Arithmetic::Divide => ebpf::Arithmetic::Divide,
            Arithmetic::Or => ebpf::Arithmetic::Or,
            Arithmetic::And => ebpf::Arithmetic::And,
            Arithmetic::ShiftLeft => ebpf::Arithmetic::ShiftLeft,
            Arithmetic::ShiftRight => ebpf::Arithmetic::ShiftRight,
            Arithmetic::Remainder => ebpf::Arithmetic::Remainder,
            Arithmetic::Xor => ebpf::Arithmetic::Xor,
        };
        self.code.push(match operand {
            Operand::Constant(value) => compute_u32(operation, A, value),
            Operand::X => compute_u32_with_register(operation, A, X),
        });
    }

    /// One jump if one branch is the next instruction, as in nearly all cases; otherwise two.
    fn translate_branch(
        &mut self,
        condition: Condition,
        operand: Operand,
        (jump_true, if_true): (u8, Label),
        (jump_false, if_false): (u8, Label),
    ) {
        let (positive, negative) = match condition {
            Condition::Equal => (ebpf::Condition::Equal, Some(ebpf::Condition::NotEqual)),
            Condition::Greater => (ebpf::Condition::Greater, Some(ebpf::Condition::LessOrEqual)),
            Condition::GreaterOrEqual => (ebpf::Condition::GreaterOrEqual, Some(ebpf::Condition::Less)),
            Condition::AnyBit => (ebpf::Condition::AnyBit, None),
        };
        let test = |condition| match operand {
            Operand::Constant(value) => skip_if_u32(condition, A, value, 0),
            Operand::X => skip_if_u32_registers(condition, A, X, 0),
        };
        match negative {
            Some(negative) if jump_true == 0 => self.code.branch(test(negative), if_false),
            _ => {
                self.code.branch(test(positive), if_true);
                if jump_false != 0 {
                    self.code.jump(if_false);
                }
            }
        }
    }

    /// A fact beside the bytes, as the socket buffer will have it.
    fn translate_extension(&mut self, extension: Extension) {
        let constant = |value| compute_u32(ebpf::Arithmetic::Set, A, value);
        match extension {
            Extension::InterfaceIndex => self.code.push(load_u32(A, CONTEXT, INTERFACE_INDEX_BYTES)),
            Extension::Queue => {
                self.code.push(load_u32(A, CONTEXT, RX_QUEUE_INDEX_BYTES));
                self.code.push(compute_u32(ebpf::Arithmetic::Add, A, 1));
                self.code.push(compute_u32(ebpf::Arithmetic::And, A, 0xffff));
            }
            Extension::Cpu | Extension::Random => {
                let helper =
                    if extension == Extension::Cpu { HelperFunction::Cpu } else { HelperFunction::Random };
                self.code
                    .extend([call_helper(helper), compute_u32_with_register(ebpf::Arithmetic::Set, A, R0)]);
            }
            Extension::XorX => self.code.push(compute_u32_with_register(ebpf::Arithmetic::Xor, A, X)),
            Extension::HardwareType => self.code.push(constant(ETHERNET_HARDWARE)),
            // The tag is in the data, the mark is set later, and other questions were refused.
            _ => self.code.push(constant(0)),
        }
    }

    fn finish(mut self) -> Result<Vec<Instruction>, Untranslatable> {
        self.code.bind(self.no_match);
        if self.code.is_jump_target(self.no_match) {
            self.code.extend([set(R0, XDP_PASS), exit()]);
        }
        self.code.bind(self.matched);
        self.code.push(copy(R1, CONTEXT));
        let instructions = self.code.len();
        self.code.finish().map_err(|_| Untranslatable::TooLong { instructions })
    }
}

const fn ebpf_register(register: Register) -> ebpf::Register {
    match register {
        Register::A => A,
        Register::X => X,
    }
}

const fn slot_stack_offset(slot: u32) -> i16 {
    -4 * (slot as i16 + 1)
}
