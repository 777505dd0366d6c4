//! Options of the commands that move data between hosts.

mod ping;
mod recv;
mod send;

use clap::ValueEnum;
use nocopy::Mode;

pub use ping::{CallArguments, PingArguments, ServeArguments};
pub use recv::RecvArguments;
pub use send::{
    ChecksumName, FrameArguments, GeneratorName, HostArguments, MethodName, PayloadArgument, Rounds,
    SendArguments, SendTarget, TimingName,
};

/// The loopback interface: packets sent on it also arrive on it, and would be seen twice.
pub const LOOPBACK: &str = "lo";

/// The modes of ports on interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// AF_XDP: the device reads and writes the frames itself.
    XdpZeroCopy,
    /// AF_XDP, copied by the kernel, XDP in the driver.
    XdpCopyNative,
    /// AF_XDP, copied by the kernel, on every interface.
    XdpCopyGeneric,
    /// Packet sockets.
    PacketRing,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::XdpZeroCopy => Self::XdpZeroCopy,
            ModeName::XdpCopyNative => Self::XdpCopyNative,
            ModeName::XdpCopyGeneric => Self::XdpCopyGeneric,
            ModeName::PacketRing => Self::PacketRing,
        }
    }
}
