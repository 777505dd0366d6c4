//! The eBPF instructions our programs are made of (Documentation/bpf/standardization/instruction-set.rst).

/// One eBPF instruction, in the kernel's layout (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, operation and operand.
    pub code: u8,
    /// Destination register in the low half, source in the high half.
    pub registers: u8,
    /// For a jump: in instructions. For a load or store: in bytes.
    pub offset: i16,
    /// The constant.
    pub immediate: i32,
}

/// A register of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u8);

/// The return value of a function and of the program.
pub const R0: Register = Register(0);
/// A function's first argument; at the start, the program's own.
pub const R1: Register = Register(1);
/// A function's second argument.
pub const R2: Register = Register(2);
/// A function's third argument.
pub const R3: Register = Register(3);
/// A function's fourth argument.
pub const R4: Register = Register(4);
/// A function's fifth argument.
pub const R5: Register = Register(5);
/// Preserved over calls, unlike the registers above.
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
pub enum HelperFunction {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_ktime_get_ns`: `CLOCK_MONOTONIC`
    MonotonicTime = 5,
    /// `bpf_get_prandom_u32`
    Random = 7,
    /// `bpf_get_smp_processor_id`
    Cpu = 8,
    /// `bpf_redirect`
    Redirect = 23,
    /// `bpf_xdp_adjust_head`
    AdjustHead = 44,
    /// `bpf_redirect_map`
    RedirectMap = 51,
    /// `bpf_xdp_adjust_meta`
    AdjustMeta = 54,
    /// `bpf_xdp_get_buff_len`, since Linux 5.18
    PacketBytes = 188,
    /// `bpf_xdp_load_bytes`, since Linux 5.18
    LoadBytes = 189,
}

const BPF_PSEUDO_MAP_FD: u8 = 1;
const BPF_PSEUDO_KFUNC_CALL: u8 = 2;

const fn encode_instruction(
    code: u8,
    to: Register,
    from: Register,
    offset: i16,
    immediate: i32,
) -> Instruction {
    Instruction { code, registers: from.0 << 4 | to.0, offset, immediate }
}

/// `to = value`
pub const fn set(to: Register, value: i32) -> Instruction {
    encode_instruction(0xb7, to, R0, 0, value)
}

/// `to = from`
pub const fn copy(to: Register, from: Register) -> Instruction {
    encode_instruction(0xbf, to, from, 0, 0)
}

/// `to = value`, of 64 bits: two instructions, the second carries the upper half.
pub const fn set_u64(to: Register, value: u64) -> [Instruction; 2] {
    [
        encode_instruction(0x18, to, R0, 0, value.cast_signed() as i32),
        encode_instruction(0, R0, R0, 0, (value >> 32).cast_signed() as i32),
    ]
}

/// `to += value`
pub const fn add(to: Register, value: i32) -> Instruction {
    encode_instruction(0x07, to, R0, 0, value)
}

/// `register = -register`
pub const fn negate(register: Register) -> Instruction {
    encode_instruction(0x87, register, R0, 0, 0)
}

/// `to = *(u32 *)(from + offset)`
pub const fn load_u32(to: Register, from: Register, offset: i16) -> Instruction {
    encode_instruction(0x61, to, from, offset, 0)
}

/// `to = *(u64 *)(from + offset)`
pub const fn load_u64(to: Register, from: Register, offset: i16) -> Instruction {
    encode_instruction(0x79, to, from, offset, 0)
}

/// `*(u8 *)(to + offset) = from`
pub const fn store_u8(to: Register, offset: i16, from: Register) -> Instruction {
    encode_instruction(0x73, to, from, offset, 0)
}

/// `*(u32 *)(to + offset) = from`
pub const fn store_u32(to: Register, offset: i16, from: Register) -> Instruction {
    encode_instruction(0x63, to, from, offset, 0)
}

/// `*(u64 *)(to + offset) = from`
pub const fn store_u64(to: Register, offset: i16, from: Register) -> Instruction {
    encode_instruction(0x7b, to, from, offset, 0)
}

/// `if tested == 0 skip `count` instructions`
pub const fn skip_if_zero(tested: Register, count: i16) -> Instruction {
    encode_instruction(0x15, tested, R0, count, 0)
}

/// `if tested != value skip `count` instructions`
pub const fn skip_unless(tested: Register, value: i32, count: i16) -> Instruction {
    encode_instruction(0x55, tested, R0, count, value)
}

/// `if left == right skip `count` instructions`
pub const fn skip_if_equal(left: Register, right: Register, count: i16) -> Instruction {
    encode_instruction(0x1d, left, right, count, 0)
}

/// `if left != right skip `count` instructions`
pub const fn skip_unless_equal(left: Register, right: Register, count: i16) -> Instruction {
    encode_instruction(0x5d, left, right, count, 0)
}

/// `if left > right skip `count` instructions`
pub const fn skip_if_greater(left: Register, right: Register, count: i16) -> Instruction {
    encode_instruction(0x2d, left, right, count, 0)
}

/// `r0 = function(r1, …)`, by its number in the kernel's type information
pub const fn call_kernel_function(function: i32) -> Instruction {
    encode_instruction(0x85, R0, Register(BPF_PSEUDO_KFUNC_CALL), 0, function)
}

/// `to = map`: two instructions, the second carries the upper half of a value that a map does not have.
pub const fn load_map(to: Register, descriptor: i32) -> [Instruction; 2] {
    [
        encode_instruction(0x18, to, Register(BPF_PSEUDO_MAP_FD), 0, descriptor),
        encode_instruction(0, R0, R0, 0, 0),
    ]
}

/// `r0 = helper(r1, …)`
pub const fn call_helper(helper: HelperFunction) -> Instruction {
    encode_instruction(0x85, R0, R0, 0, helper as i32)
}

/// `return r0`
pub const fn exit() -> Instruction {
    encode_instruction(0x95, R0, R0, 0, 0)
}

/// `to += from`
pub const fn add_register(to: Register, from: Register) -> Instruction {
    encode_instruction(0x0f, to, from, 0, 0)
}

/// `to = *(u8 *)(from + offset)`
pub const fn load_u8(to: Register, from: Register, offset: i16) -> Instruction {
    encode_instruction(0x71, to, from, offset, 0)
}

/// `to = *(u16 *)(from + offset)`
pub const fn load_u16(to: Register, from: Register, offset: i16) -> Instruction {
    encode_instruction(0x69, to, from, offset, 0)
}

/// `register = ` its lowest 16 or 32 `bits`, swapped between network and host byte order
pub const fn network_order(register: Register, bits: i32) -> Instruction {
    encode_instruction(0xdc, register, R0, 0, bits)
}

/// 32-bit operations; each value is its bits in the opcode. The upper half of the result is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "names that say what is done")]
pub enum Arithmetic {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Divide = 0x30,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Negate = 0x80,
    Remainder = 0x90,
    Xor = 0xa0,
    Set = 0xb0,
}

/// `to = to operation value`, of 32 bits
pub const fn compute_u32(operation: Arithmetic, to: Register, value: u32) -> Instruction {
    encode_instruction(0x04 | operation as u8, to, R0, 0, value.cast_signed())
}

/// `to = to operation from`, of 32 bits
pub const fn compute_u32_with_register(operation: Arithmetic, to: Register, from: Register) -> Instruction {
    encode_instruction(0x0c | operation as u8, to, from, 0, 0)
}

/// Conditions; each value is its bits in the opcode. Unsigned unless named otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "names that say what is tested")]
pub enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
    SignedGreaterOrEqual = 0x70,
}

/// `if the lower halves of tested condition value skip `count` instructions`
pub const fn skip_if_u32(condition: Condition, tested: Register, value: u32, count: i16) -> Instruction {
    encode_instruction(0x06 | condition as u8, tested, R0, count, value.cast_signed())
}

/// `if the lower halves of left condition right skip `count` instructions`
pub const fn skip_if_u32_registers(
    condition: Condition,
    left: Register,
    right: Register,
    count: i16,
) -> Instruction {
    encode_instruction(0x0e | condition as u8, left, right, count, 0)
}

/// `skip `count` instructions`
pub const fn skip(count: i16) -> Instruction {
    encode_instruction(0x05, R0, R0, count, 0)
}

/// `if tested > value skip `count` instructions`, of 64 bits
pub const fn skip_if_above(tested: Register, value: i32, count: i16) -> Instruction {
    encode_instruction(0x25, tested, R0, count, value)
}
