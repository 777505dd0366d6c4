//! The meaning of an instruction.

use super::invalid::InvalidProgram;

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

impl Instruction {
    /// An instruction that does not branch.
    pub(super) const fn non_branching(code: u16, constant: u32) -> Self {
        Self { code, jump_true: 0, jump_false: 0, constant }
    }
}

/// Codes of the instructions, as `linux/bpf_common.h` puts them together.
pub(super) mod code {
    pub(crate) const LOAD_WORD: u16 = 0x20;
    pub(crate) const LOAD_HALF: u16 = 0x28;
    pub(crate) const LOAD_BYTE: u16 = 0x30;
    pub(crate) const LOAD_WORD_INDIRECT: u16 = 0x40;
    pub(crate) const LOAD_HALF_INDIRECT: u16 = 0x48;
    pub(crate) const LOAD_BYTE_INDIRECT: u16 = 0x50;
    pub(crate) const LOAD_CONSTANT: u16 = 0x00;
    pub(crate) const LOAD_SCRATCH: u16 = 0x60;
    pub(crate) const LOAD_LENGTH: u16 = 0x80;
    pub(crate) const LOAD_X_CONSTANT: u16 = 0x01;
    pub(crate) const LOAD_X_SCRATCH: u16 = 0x61;
    pub(crate) const LOAD_X_LENGTH: u16 = 0x81;
    pub(crate) const LOAD_X_HEADER: u16 = 0xb1;
    pub(crate) const STORE: u16 = 0x02;
    pub(crate) const STORE_X: u16 = 0x03;
    pub(crate) const NEGATE: u16 = 0x84;
    pub(crate) const JUMP: u16 = 0x05;
    pub(crate) const RETURN_CONSTANT: u16 = 0x06;
    pub(crate) const RETURN_A: u16 = 0x16;
    pub(crate) const A_TO_X: u16 = 0x07;
    pub(crate) const X_TO_A: u16 = 0x87;
    /// The operation is in the upper half, the operand in the bit below.
    pub(crate) const ARITHMETIC: u16 = 0x04;
    pub(crate) const BRANCH: u16 = 0x05;
    pub(crate) const WITH_X: u16 = 0x08;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    A,
    X,
}

/// How much a load reads, in network byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadWidth {
    Byte = 1,
    Half = 2,
    Word = 4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    Constant(u32),
    X,
}

/// Arithmetic on 32 bits, by its bits in a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Divide = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Remainder = 0x90,
    Xor = 0xa0,
}

/// Conditions of jumps, with their bits in an instruction's code; comparisons are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    AnyBit = 0x40,
}

/// What the kernel knows of a packet beside its bytes: loads from `SKF_AD_OFF` on, the first of each 4
/// numbers (`SKF_AD_*` of linux/filter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension {
    /// `SKF_AD_PROTOCOL`: the Ethernet type, as `eth_type_trans` returns it.
    Protocol,
    /// `SKF_AD_PKTTYPE`: for this host, for all, for another, sent.
    PacketType,
    /// `SKF_AD_IFINDEX`: the number of the interface.
    InterfaceIndex,
    /// `SKF_AD_NLATTR`: where a netlink attribute is.
    NetlinkAttribute,
    /// `SKF_AD_NLATTR_NEST`: the offset of a nested attribute.
    NestedNetlinkAttribute,
    /// `SKF_AD_MARK`: the socket buffer's mark.
    Mark,
    /// `SKF_AD_QUEUE`: the socket buffer's queue.
    Queue,
    /// `SKF_AD_HATYPE`: the interface's type, 1 for Ethernet.
    HardwareType,
    /// `SKF_AD_RXHASH`: the hash of the flow.
    ReceiveHash,
    /// `SKF_AD_CPU`: the processor the filter runs on.
    Cpu,
    /// `SKF_AD_ALU_XOR_X`: no load at all, but `A ^= X`.
    XorX,
    /// `SKF_AD_VLAN_TAG`: the control field of the tag that was removed from the frame.
    VlanTag,
    /// `SKF_AD_VLAN_TAG_PRESENT`: whether a tag was removed.
    VlanTagPresent,
    /// `SKF_AD_PAY_OFFSET`: where the payload begins.
    PayloadOffset,
    /// `SKF_AD_RANDOM`: a random number.
    Random,
    /// `SKF_AD_VLAN_TPID`: the type that announced the tag.
    VlanProtocol,
}

/// Loads from here on are not of the frame (`SKF_AD_OFF`, `SKF_NET_OFF`, `SKF_LL_OFF`).
pub(super) const ANCILLARY: u32 = 0xffff_f000;
pub(super) const NETWORK: u32 = 0xfff0_0000;
pub(super) const LINK: u32 = 0xffe0_0000;

impl Extension {
    const ALL: [Self; 16] = [
        Self::Protocol,
        Self::PacketType,
        Self::InterfaceIndex,
        Self::NetlinkAttribute,
        Self::NestedNetlinkAttribute,
        Self::Mark,
        Self::Queue,
        Self::HardwareType,
        Self::ReceiveHash,
        Self::Cpu,
        Self::XorX,
        Self::VlanTag,
        Self::VlanTagPresent,
        Self::PayloadOffset,
        Self::Random,
        Self::VlanProtocol,
    ];

    fn from_offset(offset: u32) -> Option<Self> {
        let number = offset.checked_sub(ANCILLARY).filter(|number| number % 4 == 0)?;
        Self::ALL.get(number as usize / 4).copied()
    }

    /// The offset a load names it by.
    pub(super) const fn load_offset(self) -> u32 {
        ANCILLARY + 4 * self as u32
    }
}

/// The target of an offset, read as signed: `bpf_internal_load_pointer_neg_helper` in kernel/bpf/core.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadTarget {
    /// Bytes from the start of the frame.
    Frame(u32),
    /// Bytes from the link header.
    Link(u32),
    /// Bytes from the network header.
    Network(u32),
    /// Before all headers.
    Nowhere,
}

impl LoadTarget {
    pub(super) const fn from_offset(offset: u32) -> Self {
        match offset {
            NETWORK.. => Self::Network(offset - NETWORK),
            LINK.. => Self::Link(offset - LINK),
            0x8000_0000.. => Self::Nowhere,
            _ => Self::Frame(offset),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// `A = packet[offset]`
    Load(LoadWidth, u32),
    /// `A = packet[X + offset]`, the sum of 32 bits
    LoadIndirect(LoadWidth, u32),
    /// `X = 4 * (packet[offset] & 15)`, for the length of an IPv4 header
    LoadHeader(u32),
    LoadExtension(Extension),
    LoadConstant(Register, u32),
    LoadScratch(Register, u32),
    LoadLength(Register),
    Store(Register, u32),
    Arithmetic(Arithmetic, Operand),
    Negate,
    /// `A = X`, or `X = A`
    MoveTo(Register),
    Jump(u32),
    Branch {
        condition: Condition,
        operand: Operand,
        jump_true: u8,
        jump_false: u8,
    },
    ReturnConstant(u32),
    ReturnA,
}

impl Operation {
    /// Reads the instruction at `index` (`chk_code_allowed` of the kernel).
    pub(super) fn decode(index: usize, instruction: Instruction) -> Result<Self, InvalidProgram> {
        let Instruction { code, constant, .. } = instruction;
        Ok(match code {
            code::LOAD_WORD => return Self::decode_absolute_load(index, LoadWidth::Word, constant),
            code::LOAD_HALF => return Self::decode_absolute_load(index, LoadWidth::Half, constant),
            code::LOAD_BYTE => return Self::decode_absolute_load(index, LoadWidth::Byte, constant),
            code::LOAD_WORD_INDIRECT => Self::LoadIndirect(LoadWidth::Word, constant),
            code::LOAD_HALF_INDIRECT => Self::LoadIndirect(LoadWidth::Half, constant),
            code::LOAD_BYTE_INDIRECT => Self::LoadIndirect(LoadWidth::Byte, constant),
            code::LOAD_X_HEADER => Self::LoadHeader(constant),
            code::LOAD_CONSTANT => Self::LoadConstant(Register::A, constant),
            code::LOAD_X_CONSTANT => Self::LoadConstant(Register::X, constant),
            code::LOAD_SCRATCH => Self::LoadScratch(Register::A, constant),
            code::LOAD_X_SCRATCH => Self::LoadScratch(Register::X, constant),
            code::LOAD_LENGTH => Self::LoadLength(Register::A),
            code::LOAD_X_LENGTH => Self::LoadLength(Register::X),
            code::STORE => Self::Store(Register::A, constant),
            code::STORE_X => Self::Store(Register::X, constant),
            code::NEGATE => Self::Negate,
            code::A_TO_X => Self::MoveTo(Register::X),
            code::X_TO_A => Self::MoveTo(Register::A),
            code::JUMP => Self::Jump(constant),
            code::RETURN_CONSTANT => Self::ReturnConstant(constant),
            code::RETURN_A => Self::ReturnA,
            _ => {
                return Self::decode_arithmetic_or_branch(instruction)
                    .ok_or(InvalidProgram::UnknownCode { index, code });
            }
        })
    }

    fn decode_absolute_load(index: usize, width: LoadWidth, offset: u32) -> Result<Self, InvalidProgram> {
        match Extension::from_offset(offset) {
            Some(extension) => Ok(Self::LoadExtension(extension)),
            None if offset >= ANCILLARY => Err(InvalidProgram::UnknownExtension { index, offset }),
            None => Ok(Self::Load(width, offset)),
        }
    }

    /// Arithmetic and branches: operation, operand and class are bits of the code.
    fn decode_arithmetic_or_branch(instruction: Instruction) -> Option<Self> {
        let Instruction { code, jump_true, jump_false, constant } = instruction;
        let operand = if code & code::WITH_X == 0 { Operand::Constant(constant) } else { Operand::X };
        match code & 0xff07 {
            code::ARITHMETIC => Some(Self::Arithmetic(arithmetic_from_bits(code & 0xf0)?, operand)),
            code::BRANCH => Some(Self::Branch {
                condition: condition_from_bits(code & 0xf0)?,
                operand,
                jump_true,
                jump_false,
            }),
            _ => None,
        }
    }
}

const fn arithmetic_from_bits(bits: u16) -> Option<Arithmetic> {
    Some(match bits {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Subtract,
        0x20 => Arithmetic::Multiply,
        0x30 => Arithmetic::Divide,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0x90 => Arithmetic::Remainder,
        0xa0 => Arithmetic::Xor,
        _ => return None,
    })
}

const fn condition_from_bits(bits: u16) -> Option<Condition> {
    Some(match bits {
        0x10 => Condition::Equal,
        0x20 => Condition::Greater,
        0x30 => Condition::GreaterOrEqual,
        0x40 => Condition::AnyBit,
        _ => return None,
    })
}
