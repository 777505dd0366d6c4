//! How a port moves frames.

use std::fmt;

/// How a port moves frames, as reported by the kernel; not necessarily what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// AF_XDP: the device reads and writes the area itself.
    XdpZeroCopy,
    /// AF_XDP, copied by the kernel, with XDP in the driver.
    XdpCopyNative,
    /// AF_XDP, copied by the kernel, with XDP on socket buffers: works on every interface.
    XdpCopyGeneric,
    /// A packet socket: the kernel copies packets into blocks, and the host gets them too. Packets are read
    /// in place; taking one copies it. Packets that the kernel has joined (GRO, GSO: most of TCP) may be
    /// longer than a frame: with [`multi_buffer`](crate::port::PortBuilder::multi_buffer) they are received
    /// as chains, otherwise dropped and counted.
    PacketRing,
    /// A linked pair of ports in one process.
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
