//! Part of the `nocopy` command, without a promised API: how results are printed, drawn and written, and how
//! a command starts and ends.
//!
//! ```text
//!   result, figure, statistics ─▶ result_table, headline_table ─▶ terminal, markdown
//!                              ├▶ result_lines ─▶ JSON Lines, and back
//!                              ├▶ headline, chart ─▶ page ─▶ HTML
//!                              └▶ comparison ─▶ comparison_text, page, JSON
//! ```
// Used only by the crates of this workspace: comments are needed only where a name does not suffice.
#![allow(missing_docs)]

pub mod address;
pub mod boot_clock;
pub mod capability;
pub mod card;
pub mod chart;
pub mod check;
pub mod comparison;
pub mod comparison_text;
mod failure;
pub mod figure;
pub mod founding;
pub mod headline;
pub mod headline_table;
pub mod input_file;
pub mod interrupt;
pub mod live;
pub mod machine;
pub mod markdown;
pub mod output_file;
pub mod page;
pub mod print;
pub mod progress;
pub mod quantity;
pub mod receive_analysis;
pub mod result;
mod result_file;
pub mod result_lines;
pub mod result_table;
#[cfg(test)]
mod sample;
pub mod statistics;
pub mod summary;
pub mod table;
pub mod wall_clock;

pub use failure::{Failure, input_advice};
pub use interrupt::Interrupt;
pub use result_file::{ResultFile, json_text};
pub use summary::{CommandEnd, Summary};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Positive,
    /// Exit code 1: a negative result, for example lost packets.
    Negative,
}
