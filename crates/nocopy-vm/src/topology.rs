//! The machines that tests run on: how their interfaces are wired, and their kernel.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How the two interfaces of a machine are made and wired; drawn in README.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// Two Intel 82576, driver `igb`.
    Igb,
    /// Two virtio network devices, driver `virtio_net`.
    Virtio,
    /// As `Virtio`, wired by taps and a bridge instead of QEMU's hub: these take packets in pieces, and
    /// segment long ones.
    VirtioTaps,
    /// A veth pair: the machine has no cards.
    Veth,
}

impl Topology {
    /// The driver's name in the kernel, and its module's.
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Igb => "igb",
            Self::Virtio | Self::VirtioTaps => "virtio_net",
            Self::Veth => "veth",
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("every topology can be named").get_name())
    }
}

/// A stock kernel of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kernel {
    /// The newest that Debian has: its drivers have zero-copy.
    Newest,
    /// That of Debian's present release (6.12): igb has no zero-copy yet. Its machines run only when it is
    /// asked for, or a test by name.
    Stable,
    /// A kernel whose igb and virtio_net have no zero-copy yet.
    Older,
    /// The newest for arm64. Its machines run only when it is asked for: they need programs that were built
    /// for them.
    Arm64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// Debian's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

impl Kernel {
    pub(crate) const fn architecture(self) -> Architecture {
        match self {
            Self::Newest | Self::Stable | Self::Older => Architecture::Amd64,
            Self::Arm64 => Architecture::Arm64,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("every kernel can be named").get_name())
    }
}
