//! One contract for every kind of I/O: what is learned for one half holds for all.
#![allow(missing_docs)]

#[macro_use]
mod halves;
mod names;
mod program;
