//! Returns packets to the host's own network stack.

use nocopy_proto::wire::unfinished::UnfinishedChecksum;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use super::backend::ToHostContext;
use super::host_path::HostPath;
use super::redirect::RedirectProgram;
use super::{Mode, SharedPort, ToHostError, static_counter};
use crate::events::{self, Half, Subject};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::memory::area::Chain;
use crate::port::xdp::Attach;
use crate::stats::Stats;
use crate::sys::bpf;
use crate::sys::interface::LinkState;
use crate::sys::namespace::NamespaceId;

/// An Ethernet header: shorter data is no packet.
const PACKET_BYTES_MIN: usize = 14;

/// The longest packet that every kernel accepts: a page less 256 bytes of headroom, some 170 for the kernel's
/// own data before the packet, and 320 for `struct skb_shared_info` after it; see `bpf_prog_test_run_xdp` in
/// `net/bpf/test_run.c`.
const PACKET_BYTES_SURE: usize = 3072;

/// Hands packets that a port took to the host's network stack, as if they had just arrived on the port's
/// interface: for ARP, pings and everything else that the program does not answer itself. Made by
/// [`Receiver::to_host`](super::NonblockingReceiver::to_host).
///
/// Each packet costs a copy ([`ToHost::ledger`]) and four system calls, three of them to check that the
/// calling thread is still in the port's network namespace; if all packets of a queue are for the host, open
/// no port on it. The packet is borrowed, so its frame stays yours. Nothing is left on the machine: the
/// kernel once runs a program that lets the packet pass, and that is attached nowhere (`BPF_PROG_TEST_RUN`
/// with live frames, the kernel's Documentation/bpf/bpf_prog_run.rst).
///
/// The kernel keeps a small pool of pages for each packet until the host has finished with it. If a packet
/// stays unread in a socket for a minute, the kernel logs `stalled pool shutdown`, which is harmless, until
/// the packet is read.
///
/// The host verifies checksums. A virtual interface such as veth may deliver packets whose checksum the
/// sender left to a card that does not exist: it is finished in the copy, where [`UnfinishedChecksum`] finds
/// it. The host drops others, such as TCP inside of VXLAN ('ethtool -K INTERFACE tx off' at the sender
/// finishes them).
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
    path: HostPath,
    interface: String,
    interface_index: u32,
    /// The program whose header is used; this field does not keep it attached.
    redirect: Weak<RedirectProgram>,
    /// Memory for a packet with the header in front; kept to allocate once.
    buffer: Vec<u8>,
    /// For packets in several buffers, joined.
    whole: Vec<u8>,
    handed_over: u64,
    bytes: u64,
    refused: u64,
}

impl ToHost {
    pub(super) fn of_port(port: &SharedPort) -> Result<Self, ToHostError> {
        let interface = port.interface.clone();
        let Some(ToHostContext { redirect, query, host_path }) = port.backend().to_host_context() else {
            return Err(match port.mode {
                Mode::Memory => ToHostError::MemoryPort,
                _ => ToHostError::HostHasThem { interface },
            });
        };
        if redirect.recipe.at == Attach::Generic && redirect.recipe.pass.is_none() {
            return Err(ToHostError::Granted { interface });
        }
        if query.link_state() == LinkState::Gone {
            return Err(ToHostError::Gone { interface });
        }
        let path = host_path.cloned().map_or_else(|| HostPath::prepare(&interface, query), Ok)?;
        Ok(Self {
            path,
            interface,
            interface_index: port.interface_index,
            redirect: Arc::downgrade(redirect),
            buffer: Vec::new(),
            whole: Vec::new(),
            handed_over: 0,
            bytes: 0,
            refused: 0,
        })
    }

    /// Returns one packet, from its Ethernet header on, to the host, which has processed or queued it when
    /// this call returns. A packet in several buffers must be joined first
    /// ([`Chain::to_vec`](crate::Chain::to_vec)).
    ///
    /// # Errors
    /// The thread is in another network namespace than the port; the interface was removed; the packet is
    /// shorter than an Ethernet header or longer than a page can hold (some 3,300 B). The packet was then not
    /// returned.
    pub fn hand_over(&mut self, packet: &[u8]) -> Result<(), ToHostError> {
        let done = self.inject_packet(packet);
        match done {
            Ok(()) => {
                if events::ENABLED && self.handed_over == 0 {
                    let interface = Some(&*self.interface);
                    let subject = Subject { half: Half::ToHost, interface, queue: None };
                    events::first_copy(subject, Cause::ToHost);
                }
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

    fn inject_packet(&mut self, packet: &[u8]) -> Result<(), ToHostError> {
        // If the thread's namespace is unknown, because no descriptor is left for a socket, it is assumed to
        // be the port's, as usual: otherwise the packet would be lost.
        if NamespaceId::of_thread().is_ok_and(|here| here != self.path.namespace) {
            return Err(ToHostError::OtherNamespace { interface: self.interface.clone() });
        }
        if packet.len() < PACKET_BYTES_MIN {
            let (interface, bytes) = (self.interface.clone(), packet.len());
            return Err(ToHostError::TooShort { interface, bytes });
        }
        let redirect = self.redirect.upgrade(); // held for the call: the program must not go meanwhile
        let header = redirect.as_ref().and_then(|redirect| redirect.recipe.pass.as_ref());
        let data = match (header, UnfinishedChecksum::find_in_frame(packet)) {
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
        bpf::run_live_frames(self.path.program.as_fd(), self.interface_index, data, 0, 1, 1)
            .map_err(|source| self.hand_over_error("hand a packet to the host", packet, source))
    }

    #[cold]
    fn hand_over_error(&self, operation: &'static str, packet: &[u8], source: io::Error) -> ToHostError {
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

    /// The counters: packets returned to the host, and `refused` for those that were not, each with an error.
    /// What the host does with a packet is counted by the host.
    pub fn stats(&self) -> Stats {
        let refused = static_counter("refused", "Packets that were not handed over", self.refused);
        Stats::with_moved(self.handed_over, self.bytes).with_counters([refused])
    }
}
