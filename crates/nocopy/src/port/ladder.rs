//! The ladder: for an interface and a purpose, the modes are tried from the fastest to the slowest until one
//! works.

use std::io;
use std::sync::Arc;

use super::drivers::{self, PAGE_BYTES, QuirkEffect};
use super::{Mode, OpenError, PortBuilder, Purpose, Refusal};
use crate::facts::features;
use crate::port::xdp;
use crate::sys::interface::Interface;

/// The usual order, from the fastest to the slowest.
pub(crate) const LADDER: [Mode; 4] =
    [Mode::XdpZeroCopy, Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

/// The modes to try, and the reason if the order is not the usual one.
#[derive(Debug)]
pub(super) struct ModeOrder {
    pub(super) modes: Vec<Mode>,
    pub(super) why: Option<&'static str>,
    purpose: Purpose,
}

impl ModeOrder {
    /// Whether another mode may work if no AF_XDP mode does.
    pub(super) fn may_continue_after(&self, error: &OpenError) -> bool {
        let others_there = matches!(
            error,
            OpenError::QueueTaken { .. }
                | OpenError::Xdp(
                    xdp::Error::Occupied { .. }
                        | xdp::Error::OtherFilter { .. }
                        | xdp::Error::OneBuffer { .. }
                )
        );
        let not_for_us = matches!(
            error,
            OpenError::Capability { .. }
                | OpenError::Kernel { .. }
                | OpenError::PinnedMemory { .. }
                | OpenError::Xdp(xdp::Error::Capability { .. } | xdp::Error::Kernel { .. })
        );
        // A capture does not mind other users of the packets.
        not_for_us || (others_there && self.purpose == Purpose::Capture)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenStep {
    /// Frames of this size are not possible in this mode; the kernel was not asked.
    Frames {
        bytes: u32,
    },
    /// A program attached there would not feed the socket; the kernel was not asked.
    Members,
    Attach,
    Bind,
    /// The socket was bound, but a frame sent as proof did not return.
    Proof,
    Socket,
    /// AF_XDP was refused as a whole, with a complete reason.
    Whole,
}

impl OpenStep {
    /// The meaning of the reason for a mode that was refused at this step, and what would make the mode
    /// available; `None` if unknown.
    fn remedy(
        self,
        mode: Mode,
        reason: &io::Error,
        interface: &Interface,
        multi_buffer: bool,
    ) -> Option<String> {
        // The subject of a sentence.
        let (interface, driver) = (&interface.name, interface.driver_phrase());
        if let Self::Frames { bytes } = self {
            let lower = || format!("lower it with 'ip link set dev {interface} mtu 1500'");
            return Some(if bytes < PAGE_BYTES { format!("use frames of {PAGE_BYTES} B") } else { lower() });
        }
        if self == Self::Members {
            return Some(format!("open a port on each member of {interface}"));
        }
        if self == Self::Proof {
            return Some(format!("'nocopy doctor {interface}' shows what is known of {driver}"));
        }
        Some(match (self, mode, reason.raw_os_error()?) {
            (Self::Attach, _, libc::EOPNOTSUPP) => {
                format!(
                    "{driver} has no native XDP, or not with its present settings (offloads); 'nocopy doctor' shows which"
                )
            }
            (Self::Attach, _, libc::ERANGE) => {
                format!(
                    "the MTU is larger than {driver} supports with XDP; 'ip link set dev {interface} mtu 1500'"
                )
            }
            (Self::Attach, _, libc::EINVAL) => {
                format!(
                    "{driver} accepts no XDP with its present settings; the kernel log may say why: 'dmesg'"
                )
            }
            (Self::Socket, _, libc::EPERM | libc::EACCES) => {
                "run as root, or grant CAP_NET_RAW with 'setcap cap_net_raw+ep PROGRAM'".to_owned()
            }
            (Self::Bind, _, libc::EINVAL) if multi_buffer => {
                format!(
                    "packets of several frames need Linux {}; open without 'multi_buffer'",
                    features::MULTI_BUFFER.kernel
                )
            }
            (Self::Bind, Mode::XdpZeroCopy, libc::EOPNOTSUPP) if multi_buffer => {
                format!(
                    "{driver} has no AF_XDP zero-copy in this kernel, or not for packets of several frames"
                )
            }
            (Self::Bind, Mode::XdpZeroCopy, libc::EOPNOTSUPP) => {
                format!("{driver} has no AF_XDP zero-copy in this kernel; a newer kernel or another card may")
            }
            _ => return None,
        })
    }
}

impl PortBuilder {
    pub(super) fn mode_order(&self, interface: &Interface) -> ModeOrder {
        let [zero_copy, native, generic, ring] = LADDER;
        let fed_by_sockets = interface.loopback
            || drivers::has_quirk_effect(interface.driver.as_deref(), QuirkEffect::FedBySockets);
        let (modes, why) = match self.purpose {
            _ if self.mode.is_some() => (self.mode.into_iter().collect(), None),
            Purpose::Capture if fed_by_sockets => (
                vec![ring, zero_copy, native, generic],
                Some(
                    "the packet ring first: packets come from sockets on this machine, and XDP would copy them once more",
                ),
            ),
            Purpose::Capture => (vec![zero_copy, native, ring, generic], None),
            Purpose::Exchange | Purpose::Send => (LADDER.to_vec(), None),
        };
        ModeOrder { modes, why, purpose: self.purpose }
    }

    pub(super) fn refusal_at_step(
        &self,
        interface: &Interface,
        mode: Mode,
        step: OpenStep,
        reason: io::Error,
    ) -> Refusal {
        let remedy = step.remedy(mode, &reason, interface, self.multi_buffer);
        Refusal { mode, reason: Arc::new(reason), remedy }
    }

    pub(super) fn no_mode_error(&self, refusals: Vec<Refusal>) -> OpenError {
        OpenError::NoMode { interface: self.interface.clone(), queue: self.queue, refusals }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_try_other_modes_despite_another_filter() {
        let interface = "eth0".to_owned();
        let other_filter = OpenError::Xdp(xdp::Error::OtherFilter { interface });
        let order = |purpose| ModeOrder { modes: LADDER.to_vec(), why: None, purpose };
        assert!(order(Purpose::Capture).may_continue_after(&other_filter));
        assert!(!order(Purpose::Exchange).may_continue_after(&other_filter));
    }
}
