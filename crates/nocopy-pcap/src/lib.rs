//! libpcap's interface over nocopy: a shared library with the name and the functions of `libpcap.so.0.8`, for
//! programs that were linked with it, or with the `libpcap.so.1` of other distributions, or that open it by
//! dlopen(3).
//!
//! ```text
//!            a program, unchanged
//!                    │ 94 functions, 2 objects (exports.txt)
//!                 exports ─────────────────────────── system: the system's libpcap,
//!                    │                                 loaded at run time
//!      table: pcap_t* → Handle                              │
//!                    │                          compiler, savefiles, devices, names,
//!   handle::LiveCapture: reading, sending, stop      what ours cannot do
//!            │                    │
//!     capture::{Passive}      injection
//! ```
//!
//! A program's `pcap_t*` comes from the system's libpcap. `table` has this library's state for it, from
//! `pcap_create` to `pcap_close`. An unknown pointer is passed to the system's library, which decides what to
//! do with it. Texts of errors are written into the real handle's own buffer.
//!
//! * `exports`: the functions that programs call.
//! * `system`: the functions of the system's libpcap.
//! * `loader`: finding the system's libpcap, and being found in its place.
//! * `table`, `handle`: our state for each `pcap_t`.
//! * `capture`, `injection`: packets in and out.
//! * `guard`: stops panics at the library's boundary, and lets a thread end only where a call holds nothing.
//! * `packet_socket`: opens packet sockets.
//! * `timed_wait`: waits for other threads that end in any case.
//! * `environment`, `report`: the messages between `nocopy run` and the library.
//!
//! The modules in their layers: each uses only modules below it (`cargo xtask check` reads this list).
//!
//! ```text
//! exports
//! table
//! handle
//! capture  injection
//! report  guard
//! text
//! system
//! loader
//! environment  abi  timed_wait  packet_socket
//! ```
#![allow(unsafe_code)]

mod abi;
mod capture;
mod environment;
mod exports;
mod guard;
mod handle;
mod injection;
mod loader;
mod packet_socket;
mod report;
mod system;
mod table;
mod text;
mod timed_wait;
