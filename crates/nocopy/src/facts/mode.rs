//! How a port moves frames.

use std::fmt;

/// How a port moves frames: what the kernel reports, never what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// AF_XDP: the device reads and writes the area itself.
    XdpZeroCopy,
    /// AF_XDP, copied by the kernel, with XDP in the driver.
    XdpCopyNative,
    /// AF_XDP, copied by the kernel, with XDP on socket buffers: works on every interface.
    XdpCopyGeneric,
    /// A packet socket: packets come in blocks into which the kernel copies them, and the host has them too. Packets are read
    /// where they lie; taking one copies it. Packets that the kernel has joined (GRO, GSO: most of TCP) may be longer than a frame:
    /// they come as chains with [`multi_buffer`](crate::port::PortBuilder::multi_buffer), and are dropped and counted without.
    PacketRing,
    /// A linked pair in one process.
    Memory,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::XdpZeroCopy => "xdp zero-copy",
            Self::XdpCopyNative => "xdp copy native",
            Self::XdpCopyGeneric => "xdp copy generic",
            Self::PacketRing => "packet ring",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
