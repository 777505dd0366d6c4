//! Where the bytes of long messages go: into memory that the program chose.
//!
//! `posted`: buffers for the next messages; `regions`: memory that peers write to, and `puts`, by which they
//! do; `front`: what precedes the bytes on a stream.

mod front;
mod posted;
mod puts;
mod regions;

pub(super) use front::Front;
pub(super) use posted::{Placed, Posted, Slot};
pub(super) use puts::{Puts, Straight};
#[cfg(any(feature = "fuzzing", test))]
pub(super) use puts::{gathered, straight};
pub(super) use regions::Registered;

#[cfg(test)]
mod tests;
