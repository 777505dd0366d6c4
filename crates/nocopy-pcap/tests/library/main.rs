//! Programs that were linked with libpcap run with this library in its place.
#![allow(missing_docs)]

mod alone;
mod capturing;
mod common;
mod exports;
mod inject;
mod names;
mod old_programs;
mod others;
mod take;
mod taking;
mod tcpdump;
