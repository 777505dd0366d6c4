//! The kernel as a packet source: a template resent as *live frames* (`BPF_PROG_TEST_RUN`, Linux 5.18).

use std::io;
use std::os::fd::AsFd;

use super::attachment::look_up_named_interface;
use super::{Attach, Attachment, Error, Program};
use crate::sys::bpf;

/// Frames the kernel makes at a time. It would accept 256, but veth has room for 256 frames in all and drops
/// the rest: with 64 nothing was lost.
const BATCH: u32 = 64;

/// Sends one frame repeatedly out of an interface, as fast as the kernel can, without rebuilding it each
/// time.
///
/// To the receiver the frames look like those of a NIC with XDP: native XDP buffers, not socket buffers.
#[derive(Debug)]
pub struct Generator {
    program: Program,
    interface_index: u32,
    /// Keeps the program in the kernel's XDP dispatcher. Otherwise every call would add and remove it there,
    /// and wait for a grace period both times (some 30 ms per call). On lo it lets every packet pass.
    _in_dispatcher: Option<Attachment>,
}

/// Metadata that marks a generated frame.
const MARK: [u8; 4] = *b"nocp";

impl Generator {
    /// Prepares to send out of `interface`, looked up in the calling thread's network namespace.
    ///
    /// # Errors
    /// No such interface, or the kernel's refusal.
    pub fn new(interface: &str) -> Result<Self, Error> {
        let index = look_up_named_interface(interface)?.index;
        let program = Program::redirect_packets_with_metadata(index)?;
        // If the loopback interface is down or has a program already, calls are only slower.
        let in_dispatcher = program.attach("lo", Attach::Generic).ok();
        Ok(Self { program, interface_index: index, _in_dispatcher: in_dispatcher })
    }

    /// Sends `frame` `count` times; returns when all were handed to the interface, delivered or not. Must be
    /// called from a thread in the network namespace of the interface.
    ///
    /// # Errors
    /// The kernel's refusal: a frame shorter than an Ethernet header or longer than a page has room for, or a
    /// kernel before 5.18.
    pub fn send(&self, frame: &[u8], count: u32) -> io::Result<()> {
        let data = [&MARK, frame].concat();
        let batch = BATCH.min(count.max(1));
        bpf::run_live_frames(
            self.program.as_fd(),
            self.interface_index,
            &data,
            MARK.len() as u32,
            count,
            batch,
        )
    }
}
