//! Why instructions are not a program, and the limits that a program has.

/// Instructions a program has at most (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;

/// The number of scratch slots (`BPF_MEMWORDS`).
pub(super) const SLOTS: u32 = 16;

const MEND: &str = "correct it, or give the output of 'tcpdump -ddd EXPRESSION'";

/// Why instructions are not a program, as the end of an error: the cause, then what to do. Instructions are
/// counted from 0, as `tcpdump -d` prints them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidProgram {
    /// There is none.
    #[error("it has no instructions; a filter ends with a return; {MEND}")]
    Empty,
    /// There are more than [`INSTRUCTIONS_MAX`].
    #[error("it has {count} instructions; the kernel accepts at most {INSTRUCTIONS_MAX}; shorten the filter")]
    TooLong {
        /// How many.
        count: usize,
    },
    /// Classic BPF has no such instruction.
    #[error("instruction {index} is unknown; classic BPF has no code {code:#06x}; {MEND}")]
    UnknownCode {
        /// Which instruction.
        index: usize,
        /// Its code.
        code: u16,
    },
    /// A load asks for a fact besides the packet's bytes that Linux does not have.
    #[error("instruction {index} reads outside the packet; Linux has no data at offset {}; {MEND}", .offset.cast_signed())]
    UnknownExtension {
        /// Which instruction.
        index: usize,
        /// The offset.
        offset: u32,
    },
    /// A constant division or remainder by 0.
    #[error("instruction {index} divides by 0; the kernel refuses such a filter; {MEND}")]
    DivisionByZero {
        /// Which instruction.
        index: usize,
    },
    /// A constant shift by 32 or more.
    #[error("instruction {index} shifts by {bits} bits; registers have 32; {MEND}")]
    ShiftTooFar {
        /// Which instruction.
        index: usize,
        /// How far.
        bits: u32,
    },
    /// A scratch slot that does not exist.
    #[error("instruction {index} uses scratch slot {slot}; there are {SLOTS}, counted from 0; {MEND}")]
    NoSuchSlot {
        /// Which instruction.
        index: usize,
        /// The slot.
        slot: u32,
    },
    /// A load from a scratch slot that not every path has stored to.
    #[error(
        "instruction {index} reads scratch slot {slot}; not every path to it stores a value there; {MEND}"
    )]
    SlotNotStored {
        /// Which instruction.
        index: usize,
        /// The slot.
        slot: u32,
    },
    /// The rewriting needs a scratch slot, but the program uses all of them.
    #[error(
        "instruction {index} cannot be rewritten to read VLAN tags; it needs a scratch slot, and all {SLOTS} are in use; free one"
    )]
    NoSlotLeft {
        /// Which instruction.
        index: usize,
    },
    /// A jump past the last instruction.
    #[error("instruction {index} jumps to {target}; the last instruction is {}; {MEND}", .count - 1)]
    JumpPastEnd {
        /// Which instruction.
        index: usize,
        /// The target of the jump.
        target: usize,
        /// The number of instructions.
        count: usize,
    },
    /// The last instruction is not a return.
    #[error("instruction {index} is the last and no return; a filter must end with one; {MEND}")]
    NoReturn {
        /// Which instruction.
        index: usize,
    },
}
