//! One contract for every kind of I/O: what is learned for one half holds for all.
#![allow(missing_docs)]

mod names;
mod program;
