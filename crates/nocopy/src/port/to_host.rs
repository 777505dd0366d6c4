//! Returns packets to the host's own network stack.

use nocopy_proto::errno::{Why, remedy};
use nocopy_proto::wire::unfinished::Unfinished;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use super::redirect::Redirect;
use super::{Inner, Mode, counter};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::kernel::KernelVersion;
use crate::memory::area::Chain;
use crate::port::xdp::{self, Attach, LIVE_FRAMES_KERNEL_MIN, Program};
use crate::stats::Stats;
use crate::sys::bpf;
use crate::sys::interface::{Condition, Inquiry};
use crate::sys::namespace::NamespaceId;

/// An Ethernet header: shorter data is no packet.
const PACKET_BYTES_MIN: usize = 14;

/// The longest packet that every kernel accepts: a page less 256 bytes of headroom, some 170 for the kernel's own data before the packet,
/// and 320 for `struct skb_shared_info` after it; see `bpf_prog_test_run_xdp` in `net/bpf/test_run.c`.
const PACKET_BYTES_SURE: usize = 3072;

/// Hands packets that a port took to the host's network stack, as if they had just arrived on the port's interface: for ARP, pings and
/// everything else that the program does not answer itself. Made by [`Receiver::to_host`](super::Receiver::to_host).
///
/// Each packet costs a copy ([`ToHost::ledger`]) and four system calls, three of them to check that the calling thread is still in the
/// port's network namespace; if all packets of a queue are for the host, open no port on it. The packet is borrowed, so its frame stays
/// yours. Nothing is left on the machine: the kernel once runs a program that lets the packet pass, and that is attached nowhere
/// (`BPF_PROG_TEST_RUN` with live frames, the kernel's Documentation/bpf/bpf_prog_run.rst).
///
/// The kernel keeps a small pool of pages for each packet until the host has finished with it. If a packet stays unread in a socket for a
/// minute, the kernel logs `stalled pool shutdown`, which is harmless, until the packet is read.
///
/// The host verifies checksums. A virtual interface such as veth may deliver packets whose checksum the sender left to a
/// card that does not exist: it is finished in the copy, where [`Unfinished`] finds it. The host drops others, such as TCP inside of VXLAN
/// ('ethtool -K INTERFACE tx off' at the sender finishes them).
///
/// ```no_run
/// # fn is_ours(packet: &[u8]) -> bool { packet.len() > 100 }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut port = nocopy::Port::open("eth0")?;
/// let mut host = port.receiver().to_host()?;
/// for packet in port.receiver().receive()? {
///     if !is_ours(&packet) {
///         host.hand_over(&packet)?;
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ToHost {
    way: Way,
    interface: String,
    interface_index: u32,
    /// The program whose header is used; this field does not keep it attached.
    redirect: Weak<Redirect>,
    /// Memory for a packet with the header in front; kept to allocate once.
    buffer: Vec<u8>,
    /// For packets in several buffers, joined.
    whole: Vec<u8>,
    handed_over: u64,
    bytes: u64,
    refused: u64,
}

/// The parts that need privileges to make.
#[derive(Debug, Clone)]
pub(super) struct Way {
    program: Arc<Program>,
    namespace: NamespaceId,
}

impl Way {
    pub(super) fn prepare(interface: &str, inquiry: &Inquiry) -> Result<Self, ToHostError> {
        if let Some(running) = KernelVersion::running()
            && running < LIVE_FRAMES_KERNEL_MIN
        {
            let (operation, needed) = ("hand packets to the host", LIVE_FRAMES_KERNEL_MIN);
            return Err(xdp::Error::Kernel { operation, running, needed }.into());
        }
        let namespace = inquiry.namespace().map_err(|source| ToHostError::System {
            interface: interface.to_owned(),
            operation: "find out the port's network namespace",
            source,
        })?;
        Ok(Self { program: Arc::new(Program::pass()?), namespace })
    }
}

/// Why packets cannot be returned to the host, or one packet was not returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToHostError {
    /// The program that passes them is not available: the kernel is too old, or a capability is missing.
    #[error(transparent)]
    Program(#[from] xdp::Error),
    /// A memory port has no host behind it.
    #[error(
        "memory port: nothing can be handed to the host; it has no interface; open a port on an interface"
    )]
    MemoryPort,
    /// The calling thread is in another network namespace than the port's interface.
    #[error(
        "{interface}: not handed to the host; this thread is in another network namespace than the port, and the kernel would look for the interface there; call from a thread in the namespace the port was opened in"
    )]
    OtherNamespace {
        /// The port's interface.
        interface: String,
    },
    /// In packet ring mode the port has copies; the host receives every packet itself.
    #[error(
        "{interface}: not handed to the host; in packet ring mode it gets every packet anyway; do not hand packets over in this mode"
    )]
    HostHasThem {
        /// The port's interface.
        interface: String,
    },
    /// A granted program in generic mode would receive the packet again.
    #[error(
        "{interface}: not handed to the host; a granted port in generic mode does not know the secret by which the XDP program recognises these packets; grant a port in another mode"
    )]
    Granted {
        /// The port's interface.
        interface: String,
    },
    /// The interface was removed.
    #[error("{interface}: not handed to the host; the interface was removed; open a port on another one")]
    Gone {
        /// The port's interface.
        interface: String,
    },
    /// The packet is longer than the kernel accepts here.
    #[error(
        "{interface}: a packet of {bytes} B was not handed to the host; it is too long: the kernel accepts one page, less its own overhead (some 3,300 B); lower the interface's MTU"
    )]
    TooLong {
        /// The port's interface.
        interface: String,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// The packet is shorter than an Ethernet header.
    #[error(
        "{interface}: a packet of {bytes} B was not handed to the host; it is shorter than an Ethernet header (14 B); drop it"
    )]
    TooShort {
        /// The port's interface.
        interface: String,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// The kernel refused another operation.
    #[error("{interface}: cannot {operation}{cause}; {}", remedy(.source), cause = Why(.source))]
    System {
        /// The port's interface.
        interface: String,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl ToHost {
    pub(super) fn of(port: &Inner) -> Result<Self, ToHostError> {
        let interface = port.interface.clone();
        let Some(backend) = port.backend().as_xdp() else {
            return Err(match port.mode {
                Mode::Memory => ToHostError::MemoryPort,
                _ => ToHostError::HostHasThem { interface },
            });
        };
        let inquiry = &backend.bound.inquiry;
        if backend.redirect.recipe.at == Attach::Generic && backend.redirect.recipe.pass.is_none() {
            return Err(ToHostError::Granted { interface });
        }
        if inquiry.condition() == Condition::Gone {
            return Err(ToHostError::Gone { interface });
        }
        let prepared = backend.way_to_host.clone();
        let way = prepared.map_or_else(|| Way::prepare(&interface, inquiry), Ok)?;
        Ok(Self {
            way,
            interface,
            interface_index: port.interface_index,
            redirect: Arc::downgrade(&backend.redirect),
            buffer: Vec::new(),
            whole: Vec::new(),
            handed_over: 0,
            bytes: 0,
            refused: 0,
        })
    }

    /// Returns one packet, from its Ethernet header on, to the host, which has processed or queued it when this call returns. A packet in
    /// several buffers must be joined first ([`Chain::to_vec`](crate::Chain::to_vec)).
    ///
    /// # Errors
    /// The thread is in another network namespace than the port; the interface was removed; the packet is shorter than an
    /// Ethernet header or longer than a page can hold (some 3,300 B). The packet was then not returned.
    pub fn hand_over(&mut self, packet: &[u8]) -> Result<(), ToHostError> {
        let done = self.run(packet);
        match done {
            Ok(()) => {
                self.handed_over += 1;
                self.bytes += packet.len() as u64;
            }
            Err(_) => self.refused += 1,
        }
        done
    }

    /// Hands over a packet that lies in several buffers.
    pub(super) fn hand_over_chain<B: Deref<Target = [u8]>>(
        &mut self,
        packet: &Chain<B>,
    ) -> Result<(), ToHostError> {
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        packet.buffers().iter().for_each(|buffer| whole.extend_from_slice(buffer));
        let done = self.hand_over(&whole);
        self.whole = whole;
        done
    }

    fn run(&mut self, packet: &[u8]) -> Result<(), ToHostError> {
        // If the thread's namespace is unknown, because no descriptor is left for a socket, it is assumed to be the port's, as usual: otherwise the
        // packet would be lost.
        if NamespaceId::of_thread().is_ok_and(|here| here != self.way.namespace) {
            return Err(ToHostError::OtherNamespace { interface: self.interface.clone() });
        }
        if packet.len() < PACKET_BYTES_MIN {
            let (interface, bytes) = (self.interface.clone(), packet.len());
            return Err(ToHostError::TooShort { interface, bytes });
        }
        let redirect = self.redirect.upgrade(); // held for the call: the program must not go meanwhile
        let header = redirect.as_ref().and_then(|redirect| redirect.recipe.pass.as_ref());
        let data = match (header, Unfinished::of(packet)) {
            (None, None) => packet,
            (header, unfinished) => {
                let header = header.map_or(&[][..], |header| header.bytes());
                self.buffer.clear();
                self.buffer.extend_from_slice(header);
                self.buffer.extend_from_slice(packet);
                if let Some(unfinished) = unfinished {
                    unfinished.finish(&mut self.buffer[header.len()..]);
                }
                &self.buffer
            }
        };
        bpf::run_live(self.way.program.as_fd(), self.interface_index, data, 0, 1, 1)
            .map_err(|source| self.refusal("hand a packet to the host", packet, source))
    }

    #[cold]
    fn refusal(&self, operation: &'static str, packet: &[u8], source: io::Error) -> ToHostError {
        let (interface, bytes) = (self.interface.clone(), packet.len());
        match source.raw_os_error() {
            Some(libc::ENODEV) => ToHostError::Gone { interface },
            Some(libc::EINVAL) if bytes > PACKET_BYTES_SURE => ToHostError::TooLong { interface, bytes },
            _ => ToHostError::System { interface, operation, source },
        }
    }

    /// The bytes that were handed over: always copied, into a buffer of the kernel.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(Evidence::Copied(Cause::ToHost), self.handed_over, self.bytes);
        ledger
    }

    /// The counters: packets returned to the host, and `refused` for those that were not, each with an error. What the host does with a
    /// packet is counted by the host.
    pub fn stats(&self) -> Stats {
        let refused = counter("refused", "Packets that were not handed over", self.refused);
        Stats::moved(self.handed_over, self.bytes).with([refused])
    }
}
