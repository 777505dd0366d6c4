//! The layout of the note that an XDP program (`port::xdp`) writes in front of a packet.

/// The program's note: the bytes in front of the packet. At most 32, which every kernel allows
/// (`xdp_metalen_invalid`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XdpHints {
    pub(crate) timestamp: u64,
    pub(crate) hash: u32,
    /// The fields that were hashed (`enum xdp_rss_hash_type`).
    pub(crate) hash_kind: u32,
    /// In network byte order.
    pub(crate) vlan_protocol: u16,
    pub(crate) vlan_control: u16,
    /// The driver's results for timestamp, hash and VLAN tag: 0 or an errno.
    pub(crate) refusals: [u8; 3],
    /// 1 if the timestamp is the kernel's, by its monotonic clock.
    pub(crate) kernel_time: u8,
    /// The random number that identifies notes of this program.
    pub(crate) mark: u64,
}

/// A note of the time only: the bytes in front of the packet.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArrivalTimeNote {
    /// In ns of the monotonic clock.
    pub(crate) ns: u64,
    /// The mark, as in [`XdpHints`].
    pub(crate) mark: u64,
}

/// Instead of an answer: the kernel lacks this function.
pub(crate) const ANSWER_OLD_KERNEL: u8 = u8::MAX;
