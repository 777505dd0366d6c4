//! Options of the commands that move data between hosts.

mod ping;
mod recv;
mod send;

use clap::ValueEnum;
use nocopy::Mode;

pub use ping::{CallArguments, PingArguments, ServeArguments};
pub use recv::RecvArguments;
pub use send::{
    FrameArguments, HostArguments, PacketGeneratorArgument, PayloadArgument, RepeatCount,
    ReplayTimingArgument, SendArguments, SendMethodArgument, SendTarget, UdpChecksumArgument,
};

/// The loopback interface: packets sent on it also arrive on it, and would be seen twice.
pub const LOOPBACK: &str = "lo";

/// The modes of ports on interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PortModeArgument {
    /// AF_XDP: the device reads and writes the frames itself.
    XdpZeroCopy,
    /// AF_XDP, copied by the kernel, XDP in the driver.
    XdpCopyNative,
    /// AF_XDP, copied by the kernel, on every interface.
    XdpCopyGeneric,
    /// Packet sockets.
    PacketRing,
}

impl From<PortModeArgument> for Mode {
    fn from(name: PortModeArgument) -> Self {
        match name {
            PortModeArgument::XdpZeroCopy => Self::XdpZeroCopy,
            PortModeArgument::XdpCopyNative => Self::XdpCopyNative,
            PortModeArgument::XdpCopyGeneric => Self::XdpCopyGeneric,
            PortModeArgument::PacketRing => Self::PacketRing,
        }
    }
}
