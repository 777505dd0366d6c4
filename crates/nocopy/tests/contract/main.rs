//! One contract for every kind of I/O: all halves have the same methods.
#![allow(missing_docs)]

#[macro_use]
mod halves;
mod errors;
mod names;
mod program;
