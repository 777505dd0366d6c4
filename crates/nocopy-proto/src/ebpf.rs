//! The eBPF instructions our programs are made of (Documentation/bpf/standardization/instruction-set.rst).

/// One eBPF instruction, laid out as the kernel wants it (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, operation and operand.
    pub code: u8,
    /// Destination register in the low half, source in the high half.
    pub registers: u8,
    /// Of a jump in instructions, of a load or store in bytes.
    pub offset: i16,
    /// The constant.
    pub immediate: i32,
}

/// A register of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u8);

/// What a function and the program return.
pub const R0: Register = Register(0);
/// A function's first argument; the program's own at its start.
pub const R1: Register = Register(1);
/// A function's second argument.
pub const R2: Register = Register(2);
/// A function's third argument.
pub const R3: Register = Register(3);
/// A function's fourth argument.
pub const R4: Register = Register(4);
/// A function's fifth argument.
pub const R5: Register = Register(5);
/// Kept over calls, as the others above are not.
pub const R6: Register = Register(6);
/// Kept over calls.
pub const R7: Register = Register(7);
/// Kept over calls.
pub const R8: Register = Register(8);
/// Kept over calls.
pub const R9: Register = Register(9);
/// The end of the stack, which grows down and has 512 bytes.
pub const FRAME_POINTER: Register = Register(10);

/// Functions of the kernel, by their number in `linux/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_redirect`
    Redirect = 23,
    /// `bpf_xdp_adjust_head`
    AdjustHead = 44,
    /// `bpf_redirect_map`
    RedirectMap = 51,
    /// `bpf_xdp_adjust_meta`
    AdjustMeta = 54,
}

const BPF_PSEUDO_MAP_FD: u8 = 1;
const BPF_PSEUDO_KFUNC_CALL: u8 = 2;

const fn instruction(code: u8, to: Register, from: Register, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: from.0 << 4 | to.0, offset, immediate }
}

/// `to = value`
pub const fn set(to: Register, value: i32) -> Instruction {
    instruction(0xb7, to, R0, 0, value)
}

/// `to = from`
pub const fn copy(to: Register, from: Register) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

/// `to = value`, of 64 bits: two instructions, the second carries the upper half.
pub const fn set_u64(to: Register, value: u64) -> [Instruction; 2] {
    [
        instruction(0x18, to, R0, 0, value.cast_signed() as i32),
        instruction(0, R0, R0, 0, (value >> 32).cast_signed() as i32),
    ]
}

/// `to += value`
pub const fn add(to: Register, value: i32) -> Instruction {
    instruction(0x07, to, R0, 0, value)
}

/// `register = -register`
pub const fn negate(register: Register) -> Instruction {
    instruction(0x87, register, R0, 0, 0)
}

/// `to = *(u32 *)(from + offset)`
pub const fn load_u32(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}

/// `to = *(u64 *)(from + offset)`
pub const fn load_u64(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x79, to, from, offset, 0)
}

/// `*(u8 *)(to + offset) = from`
pub const fn store_u8(to: Register, offset: i16, from: Register) -> Instruction {
    instruction(0x73, to, from, offset, 0)
}

/// `*(u32 *)(to + offset) = from`
pub const fn store_u32(to: Register, offset: i16, from: Register) -> Instruction {
    instruction(0x63, to, from, offset, 0)
}

/// `*(u64 *)(to + offset) = from`
pub const fn store_u64(to: Register, offset: i16, from: Register) -> Instruction {
    instruction(0x7b, to, from, offset, 0)
}

/// `if tested == 0 skip `count` instructions`
pub const fn skip_if_zero(tested: Register, count: i16) -> Instruction {
    instruction(0x15, tested, R0, count, 0)
}

/// `if tested != value skip `count` instructions`
pub const fn skip_unless(tested: Register, value: i32, count: i16) -> Instruction {
    instruction(0x55, tested, R0, count, value)
}

/// `if left == right skip `count` instructions`
pub const fn skip_if_equal(left: Register, right: Register, count: i16) -> Instruction {
    instruction(0x1d, left, right, count, 0)
}

/// `if left != right skip `count` instructions`
pub const fn skip_unless_equal(left: Register, right: Register, count: i16) -> Instruction {
    instruction(0x5d, left, right, count, 0)
}

/// `if left > right skip `count` instructions`
pub const fn skip_if_greater(left: Register, right: Register, count: i16) -> Instruction {
    instruction(0x2d, left, right, count, 0)
}

/// `r0 = function(r1, …)`, by its number in the kernel's type information
pub const fn call_kernel(function: i32) -> Instruction {
    instruction(0x85, R0, Register(BPF_PSEUDO_KFUNC_CALL), 0, function)
}

/// `to = map`: two instructions, the second carries the upper half of a value that a map does not have.
pub const fn map(to: Register, descriptor: i32) -> [Instruction; 2] {
    [instruction(0x18, to, Register(BPF_PSEUDO_MAP_FD), 0, descriptor), instruction(0, R0, R0, 0, 0)]
}

/// `r0 = helper(r1, …)`
pub const fn call(helper: Helper) -> Instruction {
    instruction(0x85, R0, R0, 0, helper as i32)
}

/// `return r0`
pub const fn exit() -> Instruction {
    instruction(0x95, R0, R0, 0, 0)
}
