//! The types of `pcap/pcap.h` and `pcap/bpf.h`, as they have been since libpcap 0.4.

use std::ffi::{c_int, c_uchar, c_uint};

use nocopy_proto::filter::Instruction;

/// `pcap_t`, whose contents only the system's libpcap knows.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pcap {
    _opaque: [u8; 0],
}

/// Another type whose contents only the system's libpcap or libc knows.
pub(crate) type Opaque = libc::c_void;

/// `struct pcap_pkthdr`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketHeader {
    /// The time, with microseconds or, if the program asked for them, nanoseconds in `tv_usec`.
    pub(crate) time: libc::timeval,
    /// Bytes that were captured.
    pub(crate) captured_bytes: u32,
    /// Bytes on the wire.
    pub(crate) original_bytes: u32,
}

/// `struct bpf_program`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BpfProgram {
    pub(crate) len: c_uint,
    pub(crate) instructions: *mut Instruction,
}

/// `struct pcap_stat`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Statistics {
    pub(crate) received: c_uint,
    pub(crate) dropped: c_uint,
    pub(crate) interface_dropped: c_uint,
}

/// `pcap_handler`
pub(crate) type Handler = unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar);

/// Bytes of an error text (`PCAP_ERRBUF_SIZE`).
pub(crate) const ERROR_BYTES: usize = 256;

/// The longest packet that libpcap keeps (`MAXIMUM_SNAPLEN`); also the bytes of one of its blocks.
pub(crate) const SNAP_BYTES_MAX: c_int = 262_144;

/// `PCAP_TSTAMP_PRECISION_NANO`
pub(crate) const NANOSECONDS: c_int = 1;

/// Results, under their names in `pcap.h` without the `PCAP_`.
pub(crate) const ERROR: c_int = -1;
pub(crate) const ERROR_BREAK: c_int = -2;
