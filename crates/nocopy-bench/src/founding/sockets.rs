//! The zero-copy sockets of 2000: a TCP stream, and datagrams of 8 KiB, over frames of 9,000 bytes; counted, and datagrams checked, where
//! they arrive.

use super::{only, play};
use crate::Failure;
use crate::bench::Bench;
use crate::datagram::Datagrams;
use crate::stage::LONG_MTU_BYTES;
use crate::workload::{LOOPBACK, Method, Workload, tcp, udp_send};

const NAME: &str = "zero-copy-sockets";

const DATAGRAM_BYTES: usize = 8 << 10;

/// TCP and UDP from the pages that the program has filled.
#[derive(Debug)]
pub(crate) struct Sockets;

impl Workload for Sockets {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "2000: TCP and UDP from the pages that the program has filled"
    }

    fn methods(&self) -> &'static [Method] {
        &[
            ("plain", "send() of a stream"),
            ("zerocopy", "the library's socket or stream with MSG_ZEROCOPY"),
            ("socket", "send() of a datagram a call"),
            ("zerocopy-gso", "the library's socket with MSG_ZEROCOPY, a burst of datagrams a call"),
            ("auto", "the library's socket or stream, which chooses the method by measurement"),
        ]
    }

    fn lab_only(&self) -> Option<&'static str> {
        Some(LOOPBACK)
    }

    fn measure(&self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        let pair = tcp::Place::pair(LONG_MTU_BYTES)?;
        let methods = ["plain", "zerocopy", "auto"].map(|method| (method, None));
        play(NAME, bench, vec![only(tcp::send::of_owned(&pair), &methods)], 12)?;
        let checked = udp_send::checked(LONG_MTU_BYTES)?;
        let methods = ["socket", "zerocopy", "zerocopy-gso", "auto"].map(|method| (method, None));
        let datagrams = udp_send::in_bursts(&checked, Datagrams::in_bursts(DATAGRAM_BYTES));
        play(NAME, bench, vec![only(datagrams, &methods)], 12)
    }
}
