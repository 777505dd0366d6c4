//! Equal datagrams of unchanged UDP programs, joined to bursts that the kernel or the card cuts (`UDP_SEGMENT`): a library that the loader
//! puts in front of the C library (`LD_PRELOAD`), as `nocopy run --batch-udp` has it do.
//!
//! ```text
//!         a program, unchanged
//!                 │ send, sendto, sendmsg, sendmmsg, write, writev      all that could tell the difference (exports.txt)
//!            entries ───────────────────────────────────────────────────────────┐
//!                 │                                                              │ hands over the burst first
//!           outgoing: the one burst of the process ◀─── ticker: the deadline ────┘
//!            │         │          │
//!           run     fitness     slots: what is known of each descriptor
//!            │
//!         payoff: do bursts pay here?
//! ```
//!
//! Descriptors stay the kernel's own: nothing stands in for a socket, so `fork`, `exec`, `dup`, `epoll` and the passing of descriptors need
//! no thought. The only thing that this library holds back is a burst, for 100 us at most.
//!
//! What libraries of this kind stumble over is forks, signal handlers, descriptors that were closed unseen, and programs that look at their
//! own threads. Hence: no memory is allocated and no lock of the C library's is taken after the start; a handler never waits for what it
//! interrupted; the kernel is asked for a socket's cookie once for each burst; and the thread for the deadline exists
//! only during bursts.
//!
//! * `entries`: what programs call.
//! * `outgoing`: what becomes of a datagram.
//! * `burst`: the burst, and how it is handed over.
//! * `run`, `payoff`, `destination`: decisions, without any system call.
//! * `slots`, `record`: what is known, and counted, of each socket.
//! * `fitness`: options and queueing disciplines that forbid bursts.
//! * `ticker`: the thread for the deadline.
//! * `process`: beginning, forks, end.
//! * `by_hand`: the ceiling that the bench compares with.
//! * `real`, `sys`, `shared`, `environment`: the C library's functions, system calls, the state that threads share, variables.
//!
//! The modules in their layers: each uses those below it only (`cargo xtask check` reads this list).
//!
//! ```text
//! entries
//! process
//! outgoing
//! burst
//! ticker  fitness  slots  by_hand
//! record
//! environment  shared
//! run
//! payoff  destination  real
//! sys
//! ```
#![allow(unsafe_code)]
#![cfg_attr(test, allow(dead_code))] // its own tests are no program that was preloaded: the functions have other names there

mod burst;
mod by_hand;
mod destination;
mod entries;
mod environment;
mod fitness;
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
