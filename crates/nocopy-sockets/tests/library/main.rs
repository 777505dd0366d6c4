//! The library as programs meet it: preloaded, on real traffic.

mod common;
mod differential;
mod exports;
mod programs;
