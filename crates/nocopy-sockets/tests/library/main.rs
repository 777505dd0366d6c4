//! The library preloaded into programs, on real traffic.

mod common;
mod differential;
mod exports;
mod programs;
