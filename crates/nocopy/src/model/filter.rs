//! Runs a filter three ways: by the kernel as classic BPF on a socket, by our interpreter, and by the kernel
//! as the translated XDP program. They must agree on every packet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nocopy_proto::ebpf::{Instruction, R0, exit, set};
use nocopy_proto::filter::{AncillaryData, HeaderLocation, Program, Untranslatable, oracle};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::facts::kernel::KernelVersion;
use crate::sys::{bpf, option};

/// The XDP program's return value on a match: no value of XDP.
const MATCHED: u32 = 77;
const XDP_PASS: u32 = 2;
const ETHERNET_BYTES: usize = 14;

/// The longest first piece into which a test run cuts a packet. The kernel requires that it contains
/// Ethernet's header, and is shorter than a page by the kernel's own needs.
const LINEAR_BYTES_MAX: usize = 2048;

/// A filter in all three forms.
#[derive(Debug)]
pub struct ComparedFilter {
    program: Program,
    socket: FilteredSocketPair,
    /// For packets of one buffer and of several; `None` if the kernel's verifier finds it too complex.
    xdp: [Option<OwnedFd>; 2],
}

/// A pair of sockets, the second with the filter.
#[derive(Debug)]
struct FilteredSocketPair {
    sender: OwnedFd,
    receiver: OwnedFd,
}

impl ComparedFilter {
    /// Attaches and loads a filter. `None`, with a reason, if XDP cannot express it.
    ///
    /// # Errors
    /// The kernel refuses sockets or programs, because a capability is missing.
    ///
    /// # Panics
    /// When the kernel refuses a translation as wrong, rather than as too complex.
    pub fn new(program: &Program) -> io::Result<Option<Self>> {
        let loaded = |fragments| match program.to_xdp(fragments) {
            Ok(prefix) => load_as_xdp(prefix, fragments).map(Some),
            Err(Untranslatable::Unanswerable(_) | Untranslatable::TooFar { .. }) => Ok(None),
            Err(error) => panic!("{error}"),
        };
        let (Some(plain), Some(fragments)) = (loaded(false)?, loaded(true)?) else { return Ok(None) };
        Ok(Some(Self {
            program: program.clone(),
            socket: FilteredSocketPair::new(program)?,
            xdp: [plain, fragments],
        }))
    }

    /// Runs the filter all three ways over a packet of at least 14 bytes. `cut` is the end of its first
    /// piece.
    ///
    /// # Panics
    /// When two of them disagree.
    pub fn check_packet(&self, packet: &[u8], cut: u16) {
        self.compare_with_kernel(packet);
        let whole = packet.len() <= LINEAR_BYTES_MAX;
        if whole {
            self.compare_with_xdp(0, packet, packet.len());
        }
        let cut = (ETHERNET_BYTES + usize::from(cut) % LINEAR_BYTES_MAX).min(packet.len());
        self.compare_with_xdp(1, packet, if whole && cut.is_multiple_of(4) { packet.len() } else { cut });
    }

    /// Whether the kernel's verifier refused the translation as too complex.
    pub fn is_too_complex(&self) -> bool {
        self.xdp.iter().any(Option::is_none)
    }

    fn compare_with_kernel(&self, packet: &[u8]) {
        let headers = HeaderLocation::Datagram { linear_bytes: datagram_linear_bytes(packet.len()) };
        let kept =
            self.program.run(&[packet], &AncillaryData { headers, ..AncillaryData::default() }) as usize;
        let by_kernel = self.socket.send_through_filter(packet).expect("a datagram to a socket of our own");
        assert_eq!(
            by_kernel,
            kept.min(packet.len()),
            "bytes kept, by kernel and by run: {}",
            self.failure_text(packet)
        );
    }

    fn compare_with_xdp(&self, fragments: usize, packet: &[u8], linear_bytes: usize) {
        // Test runs pretend that packets arrived on lo.
        let ancillary = AncillaryData { interface_index: Some(1), queue: 1, ..AncillaryData::default() };
        let kept = self.program.run(&[packet], &ancillary);
        let (linear, rest) = packet.split_at(linear_bytes);
        assert_eq!(
            kept,
            self.program.run(&[linear, rest], &ancillary),
            "in one piece, and in two: {}",
            self.failure_text(packet)
        );

        let Some(program) = &self.xdp[fragments] else { return };
        let expected = if kept == 0 { XDP_PASS } else { MATCHED };
        let returned = match bpf::test_run(program.as_fd(), packet, linear_bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && linear_bytes < packet.len() => return,
            returned => returned.expect("a test run"),
        };
        assert_eq!(
            returned,
            expected,
            "by XDP, and by run; {linear_bytes} linear: {}",
            self.failure_text(packet)
        );
    }

    fn failure_text(&self, packet: &[u8]) -> String {
        format!("{:?} over {packet:02x?}", self.program.instructions())
    }
}

/// Checks a program made of any bytes over `packet`, and over packets of the usual shape; with `long`, the
/// packet is padded to that many bytes. Then once more over `packet`, comparing the final value of A.
///
/// # Panics
/// When the ways to run a filter disagree, or privileges for XDP are missing.
pub fn check_bytes_as_filter(instructions: &[u8], mut packet: Vec<u8>, long: usize, cut: u16) {
    packet.resize(packet.len().max(long).max(ETHERNET_BYTES), 0x5a);
    let program = oracle::program_from_bytes(instructions);
    let filter = |program| ComparedFilter::new(program).expect("the privileges that XDP takes");
    let Some(loaded) = filter(&program) else { return };
    loaded.check_packet(&packet, cut);
    let shapes = oracle::sample_packets();
    for shift in 0..4 {
        loaded.check_packet(&shapes[(usize::from(cut) + 101 * shift) % shapes.len()], cut);
    }
    let result =
        program.run(&[&packet], &AncillaryData { interface_index: Some(1), ..AncillaryData::default() });
    let comparing = oracle::program_that_compares(&program, result).expect("ends with a return of A");
    filter(&comparing).expect("as the program it is made of").check_packet(&packet, cut);
}

/// Loads a translation with an end of its own; `None` if it is too complex for the verifier.
fn load_as_xdp(mut prefix: Vec<Instruction>, fragments: bool) -> io::Result<Option<OwnedFd>> {
    prefix.extend([set(R0, MATCHED.cast_signed()), exit()]);
    match bpf::load_xdp(&prefix, fragments, None) {
        Ok(program) => Ok(Some(program)),
        Err((error, _)) if error.raw_os_error() == Some(libc::E2BIG) => Ok(None),
        Err((error, _)) if error.raw_os_error() == Some(libc::EPERM) => Err(error),
        Err((error, log)) => panic!("{error}: {log}: {prefix:x?}"),
    }
}

/// Since this kernel, a load relative to a header reaches all of a packet
/// (`bpf_skb_load_helper_convert_offset` in `net/core/filter.c`).
const ALL_FROM_HEADERS_KERNEL_MIN: KernelVersion = KernelVersion(6, 16);

/// Bytes of a datagram that loads relative to a header reach: those in the linear part of its socket buffer
/// (`unix_dgram_sendmsg`), which are all unless it is large, and on newer kernels all.
fn datagram_linear_bytes(bytes: usize) -> u32 {
    if KernelVersion::running() >= Some(ALL_FROM_HEADERS_KERNEL_MIN) {
        return u32::try_from(bytes).expect("datagrams are small");
    }
    /// `sizeof(struct skb_shared_info)`, aligned, on 64-bit machines.
    const SHARED_INFO_BYTES: usize = 320;
    let page_bytes = rustix::param::page_size();
    let outside = bytes.saturating_sub(4 * page_bytes - SHARED_INFO_BYTES).next_multiple_of(page_bytes);
    u32::try_from(bytes - outside).expect("datagrams are small")
}

impl FilteredSocketPair {
    fn new(program: &Program) -> io::Result<Self> {
        let (sender, receiver) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        option::attach_filter(&receiver, program.instructions())?;
        Ok(Self { sender, receiver })
    }

    /// Sends a packet through the filter: how many bytes of it come out.
    fn send_through_filter(&self, packet: &[u8]) -> io::Result<usize> {
        rustix::net::send(&self.sender, packet, SendFlags::empty())?;
        match rustix::net::recv(&self.receiver, &mut [0_u8; 1][..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, bytes)) => Ok(bytes),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
