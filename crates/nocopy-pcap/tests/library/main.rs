//! The library in the place of libpcap, under programs that were linked with that.
#![allow(missing_docs)]

mod alone;
mod capturing;
mod common;
mod exports;
mod inject;
mod old_programs;
mod others;
mod take;
mod taking;
mod tcpdump;
