//! Drops and counts packets before the host's stack: a program of a few instructions at tc's ingress hook.
//!
//! XDP programs get single packets, so veth first segments a burst that was left for the card to segment
//! (`UDP_SEGMENT`). At this hook such a burst arrives whole. Dropping it here makes it as cheap for its
//! sender as with a card that segments.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nocopy_proto::ebpf::{Instruction, R0, R1, R6, R7, exit, load_u32, set, skip_unless};

use crate::facts::features;
use crate::port::xdp::{Counter, Error, KernelVersion, look_up_named_interface};
use crate::sys::bpf;

/// Offset of `gso_segs` in `struct __sk_buff`: how many packets a burst will become; 0 for single packets.
const SEGMENTS_BYTES: i16 = 164;

const TCX_DROP: i32 = 2;

/// Drops and counts every packet that arrives on an interface; detached on drop, and by the kernel when the
/// process dies.
#[derive(Debug)]
pub struct CountingDrop {
    _link: OwnedFd,
    packets: Counter,
    datagrams: Counter,
}

impl CountingDrop {
    /// Whether the kernel is new enough.
    pub fn is_supported() -> bool {
        KernelVersion::running() >= Some(features::TC_LINK.kernel)
    }

    /// Attaches to `interface`, looked up in the calling thread's network namespace, before other programs
    /// there.
    ///
    /// # Errors
    /// No such interface, a kernel before 6.6, a missing capability (`CAP_BPF` and `CAP_NET_ADMIN`), the
    /// kernel's refusal.
    pub fn attach(interface: &str) -> Result<Self, Error> {
        let interface = look_up_named_interface(interface)?;
        let (packets, datagrams) = (Counter::new()?, Counter::new()?);
        let program =
            bpf::load_classifier(&counting_drop_program(&packets, &datagrams)).map_err(|(source, log)| {
                if log.is_empty() {
                    Error::from_refusal_since("load a tc program", features::TC_LINK.kernel, source)
                } else {
                    Error::Verifier { log, source }
                }
            })?;
        let link = bpf::attach_tcx_ingress(program.as_fd(), interface.index).map_err(|source| {
            Error::from_refusal_since("attach a tc program", features::TC_LINK.kernel, source)
        })?;
        Ok(Self { _link: link, packets, datagrams })
    }

    /// The number of packets as they arrived: an unsegmented burst counts as one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn packets(&self) -> io::Result<u64> {
        self.packets.packets()
    }

    /// The number of packets as on a wire: an unsegmented burst counts as the packets it would become.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn datagrams(&self) -> io::Result<u64> {
        self.datagrams.packets()
    }
}

fn counting_drop_program(packets: &Counter, datagrams: &Counter) -> Vec<Instruction> {
    let mut instructions =
        vec![load_u32(R6, R1, SEGMENTS_BYTES), skip_unless(R6, 0, 1), set(R6, 1), set(R7, 1)];
    instructions.extend(datagrams.add_instructions(R6));
    instructions.extend(packets.add_instructions(R7));
    instructions.extend([set(R0, TCX_DROP), exit()]);
    instructions
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::net::SendFlags;

    use super::*;
    use crate::sys::option;

    fn lab_or_skip() -> Option<nocopy_lab::Lab> {
        if KernelVersion::running() < Some(features::TC_LINK.kernel) {
            nocopy_lab::skip(&nocopy_lab::Missing::Kernel("tcx links (Linux 6.6)"));
            return None;
        }
        nocopy_lab::lab_or_skip()
    }

    #[test]
    fn an_unsegmented_burst_counts_as_one_packet_and_its_segments() {
        let Some(lab) = lab_or_skip() else { return };
        let sink = lab.right().namespace().run(|| CountingDrop::attach(lab.right().interface()).unwrap());
        let socket = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
        socket.connect((lab.right().ipv4(), 7000)).unwrap();
        for _ in 0..3 {
            socket.send(&[1; 100]).unwrap();
        }
        assert_eq!((sink.packets().unwrap(), sink.datagrams().unwrap()), (3, 3));
        option::set_segment_bytes(&socket, 1000).unwrap();
        for (bytes, segments) in [(1000, 1), (1001, 2), (7000, 7), (46_500, 47)] {
            let before = (sink.packets().unwrap(), sink.datagrams().unwrap());
            rustix::net::send(&socket, &vec![2; bytes], SendFlags::empty()).unwrap();
            let after = (sink.packets().unwrap(), sink.datagrams().unwrap());
            assert_eq!((after.0 - before.0, after.1 - before.1), (1, segments), "{bytes} bytes");
        }
    }

    #[test]
    fn attaching_to_a_missing_interface_is_a_named_error() {
        let Some(lab) = lab_or_skip() else { return };
        let error = lab.left().namespace().run(|| CountingDrop::attach("nope0").unwrap_err());
        assert!(matches!(error, Error::NoInterface { .. }), "{error}");
    }
}
