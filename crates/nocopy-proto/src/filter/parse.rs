//! Programs as decimal numbers: the output of `tcpdump -ddd`, and the same in one line.

use super::{INSTRUCTIONS_MAX, Instruction, InvalidProgram, Program};

/// Why text is not a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text does not begin with a number.
    #[error(
        "it begins with {found:?}; the number of instructions must come first; give the output of 'tcpdump -ddd EXPRESSION'"
    )]
    NoCount {
        /// The text found there, shortened.
        found: String,
    },
    /// Fewer or more instructions than announced.
    #[error(
        "it announces {count} instructions and has {found}; the text was cut or joined; give the whole output of 'tcpdump -ddd EXPRESSION'"
    )]
    WrongCount {
        /// How many were announced.
        count: usize,
        /// The number found.
        found: usize,
    },
    /// An instruction is not four numbers.
    #[error(
        "instruction {index} is {found:?}; it must be 'code jt jf k' in decimal; give the output of 'tcpdump -ddd EXPRESSION'"
    )]
    NotAnInstruction {
        /// Which instruction, from 0.
        index: usize,
        /// The text found there, shortened.
        found: String,
    },
    /// The kernel would refuse the instructions.
    #[error(transparent)]
    Invalid(#[from] InvalidProgram),
}

impl Program {
    /// Reads a program from decimal numbers: their count, then `code jt jf k` for each, on lines of their own
    /// (`tcpdump -ddd`) or separated by commas (what iptables, ip and tc take).
    ///
    /// # Errors
    /// The text has another form, or the kernel would refuse the program.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parts = text.trim().trim_end_matches(',').split([',', '\n']).map(str::trim);
        let first = parts.next().unwrap_or_default();
        let count = first.parse().map_err(|_| ParseError::NoCount { found: first_characters(first) })?;
        if count > INSTRUCTIONS_MAX {
            return Err(InvalidProgram::TooLong { count }.into());
        }
        let instructions: Vec<_> =
            parts.by_ref().take(count).enumerate().map(parse_instruction).collect::<Result<_, _>>()?;
        let found = instructions.len() + parts.count();
        if found != count {
            return Err(ParseError::WrongCount { count, found });
        }
        Ok(Self::new(instructions)?)
    }
}

fn parse_instruction((index, part): (usize, &str)) -> Result<Instruction, ParseError> {
    let mut numbers = part.split_ascii_whitespace();
    let mut read = || {
        let instruction = Instruction {
            code: numbers.next()?.parse().ok()?,
            jump_true: numbers.next()?.parse().ok()?,
            jump_false: numbers.next()?.parse().ok()?,
            constant: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(instruction)
    };
    read().ok_or_else(|| ParseError::NotAnInstruction { index, found: first_characters(part) })
}

fn first_characters(text: &str) -> String {
    text.chars().take(40).collect()
}
