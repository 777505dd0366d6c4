//! Programs that were linked with libpcap run with this library in its place.
#![allow(missing_docs)]

mod c_programs;
mod common;
mod comparison;
mod debian_programs;
mod debian_take;
mod exports;
mod inject;
mod names;
mod own_behaviour;
mod take;
mod tcpdump;
