//! The kernel as a packet source: a template resent as *live frames* (`BPF_PROG_TEST_RUN`, Linux 5.18).

use std::io;
use std::os::fd::AsFd;

use super::{Error, Program};
use crate::sys::bpf;
use crate::sys::interface::Interface;

/// Frames the kernel makes at a time; the largest it accepts (`TEST_XDP_MAX_BATCH`).
const BATCH: u32 = 256;

/// Resends a frame out of an interface as fast as the kernel can, without making it anew each time.
///
/// The frames look to the receiver like those of a NIC with XDP: native XDP buffers, not socket buffers.
#[derive(Debug)]
pub struct Generator {
    program: Program,
    interface_index: u32,
}

impl Generator {
    /// Prepares to send out of `interface`, looked up in the calling thread's network namespace.
    ///
    /// # Errors
    /// No such interface, or the kernel's refusal.
    pub fn new(interface: &str) -> Result<Self, Error> {
        let index = Interface::named(interface)
            .map_err(|_| Error::NoInterface { interface: interface.to_owned() })?
            .index;
        Ok(Self { program: Program::redirect_out(index)?, interface_index: index })
    }

    /// Sends `frame` `count` times; returns when all were handed to the interface, delivered or not. Must be called from
    /// a thread in the network namespace of the interface.
    ///
    /// # Errors
    /// The kernel's refusal: a frame shorter than an Ethernet header or longer than a page leaves, a kernel before 5.18.
    pub fn send(&self, frame: &[u8], count: u32) -> io::Result<()> {
        bpf::run_live(self.program.as_fd(), self.interface_index, frame, count, BATCH.min(count.max(1)))
    }
}
