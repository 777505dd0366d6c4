//! The library preloaded into programs, on real traffic.

mod calls;
mod common;
mod differential;
mod exports;
mod programs;
