//! The library as programs meet it: preloaded, on real traffic.

mod common;
mod exports;
mod programs;
