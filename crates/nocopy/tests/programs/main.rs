//! Programs made with the library: the examples, and what the compiler refuses.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod examples;
mod ownership;
