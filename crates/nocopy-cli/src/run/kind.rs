//! The two libraries that are preloaded.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pcap,
    /// In front of the C library: it joins datagrams to bursts.
    Sockets,
}

impl Kind {
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Pcap => "libnocopy_pcap.so",
            Self::Sockets => "libnocopy_sockets.so",
        }
    }
}
