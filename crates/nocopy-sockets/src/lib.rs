//! Equal datagrams of unchanged UDP programs, joined to bursts that the kernel or the card cuts
//! (`UDP_SEGMENT`): a library that the loader puts in front of the C library (`LD_PRELOAD`, set by
//! `nocopy run --batch-udp`).
//!
//! ```text
//!         a program, unchanged
//!                 │ send, sendto, sendmsg, sendmmsg, write, writev      all that could tell the difference (exports.txt)
//!            entries ───────────────────────────────────────────────────────────┐
//!                 │                                                              │ hands over the burst first
//!           outgoing: the one burst of the process ◀─── ticker: the deadline ────┘
//!            │         │          │
//!           run   eligibility   slots: what is known of each descriptor
//!            │
//!         payoff: do bursts pay here?
//! ```
//!
//! Programs keep the kernel's own descriptors, so `fork`, `exec`, `dup`, `epoll` and the passing of
//! descriptors work as always. The library delays only bursts, by at most 100 us.
//!
//! Libraries of this kind often fail at forks, in signal handlers, when a descriptor is closed without their
//! notice, and in programs that inspect their own threads. So after its start this library allocates no
//! memory and takes no lock of the C library; calls of signal handlers never wait for the code that they
//! interrupted; the kernel is asked for the socket's cookie twice for each burst; and the thread for the
//! deadline exists only during bursts.
//!
//! * `entries`: the functions that programs call.
//! * `outgoing`: sends a datagram alone, or adds it to the burst.
//! * `burst`: the burst, and its handover to the kernel.
//! * `run`, `payoff`, `destination`: decisions, without any system call.
//! * `slots`, `record`: state and counters of each socket.
//! * `eligibility`: options and queueing disciplines that forbid bursts.
//! * `ticker`: the thread for the deadline. `isolated_thread`: a short-lived thread, without the program's
//!   descriptors.
//! * `process`: start, forks and end of the process.
//! * `by_hand`: the upper limit that the bench compares with.
//! * `real`, `jump`, `sys`, `shared`, `environment`: the C library's functions and its jumps, system calls,
//!   the state that threads share, variables.
//!
//! The modules in their layers: each uses only modules below it (`cargo xtask check` reads this list).
//!
//! ```text
//! entries
//! process
//! outgoing
//! burst
//! eligibility  slots  by_hand
//! isolated_thread
//! ticker
//! record
//! environment  shared
//! run
//! payoff  destination  real  jump
//! sys
//! ```
#![allow(unsafe_code)]
#![cfg_attr(test, allow(dead_code))] // its own tests are no program that was preloaded: the functions have other names there

mod burst;
mod by_hand;
mod destination;
mod eligibility;
mod entries;
mod environment;
mod isolated_thread;
mod jump;
mod outgoing;
mod payoff;
mod process;
mod real;
mod record;
mod run;
mod shared;
mod slots;
mod sys;
mod ticker;
