//! How the facts about drivers that the drivers themselves do not report apply to a port.

use std::time::Duration;

use super::Mode;
pub(crate) use crate::facts::drivers::QuirkEffect;
use crate::facts::drivers::{DriverQuirk, KNOWN};
use crate::sys::interface::Interface;

/// How long a dropped sender waits for the frames it has given to the kernel. Cards report sent frames with
/// interrupts, and may delay these (`tx-usecs` of ethtool, some ms at most); without carrier a longer wait
/// would not help either.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a card may take to send the probe frame.
pub(super) const PROBE_FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// A page, in which a native XDP driver keeps room for `struct skb_shared_info` behind the packet.
pub(super) const PAGE_BYTES: u32 = 4096;

pub(crate) fn known_quirks(driver: Option<&str>) -> impl Iterator<Item = &'static DriverQuirk> {
    KNOWN.iter().filter(move |entry| driver.is_some_and(|driver| entry.drivers.contains(&driver)))
}

/// Whether a driver has a known fact with this effect.
pub(crate) fn has_quirk_effect(driver: Option<&str>, effect: QuirkEffect) -> bool {
    known_quirks(driver).any(|entry| entry.effect == effect)
}

/// Whether packets of an interface may have been sent without passing a card, so that their checksums may be
/// unfinished: also if its driver is not known, as that of the loopback interface.
pub(crate) fn may_have_unfinished_checksums(interface: &Interface) -> bool {
    let driver = interface.driver.as_deref();
    driver.is_none() || has_quirk_effect(driver, QuirkEffect::UnfinishedChecksums)
}

/// Whether a port in that mode can receive packets, as far as is known.
pub(crate) fn receives_in_mode(driver: Option<&str>, mode: Mode) -> bool {
    !matches!(mode, Mode::XdpZeroCopy | Mode::XdpCopyNative)
        || !has_quirk_effect(driver, QuirkEffect::GenericOnly)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::area::{Area, AreaConfig, Faults, PoolDirection};
    use crate::ring;
    use crate::sys::xsk::Descriptor;

    #[test]
    fn effects_apply_only_to_listed_drivers() {
        assert!(
            has_quirk_effect(Some("igb"), QuirkEffect::WholeKib)
                && !has_quirk_effect(Some("ice"), QuirkEffect::WholeKib)
        );
        assert!(
            !has_quirk_effect(None, QuirkEffect::ProbeFrame) && receives_in_mode(None, Mode::XdpZeroCopy)
        );
        let bond = |mode| receives_in_mode(Some("bonding"), mode);
        assert!(bond(Mode::XdpCopyGeneric) && !bond(Mode::XdpCopyNative) && !bond(Mode::XdpZeroCopy));
        assert_eq!(known_quirks(Some("mlx5_core")).count(), 1);
    }

    #[test]
    fn a_repeated_frame_address_is_a_fault_and_changes_no_owner() {
        let area = Area::new(AreaConfig { frame_count: 4, ..AreaConfig::default() }).unwrap();
        let (receive, send) =
            (area.pool(PoolDirection::Receive, 2).unwrap(), area.pool(PoolDirection::Send, 2).unwrap());
        let (mut fill, mut kernel_fill) = ring::pair::<u64>(4);
        assert_eq!(receive.refill(&mut fill), 2);
        let address = kernel_fill.ready_entries(1).next().unwrap() + 256;
        let received = Descriptor { address, len: 60, options: 0 };
        let mut faults = Faults::default();
        let first = receive.claimer().claim(received, &mut faults).unwrap().take();
        receive.count_claimed(1);
        assert!(receive.claimer().claim(received, &mut faults).is_none());
        assert_eq!((faults.not_lent, faults.total), (1, 1));
        let (mut kernel_completion, mut completion) = ring::pair::<u64>(4);
        let sent = send.lend(send.take_frame().unwrap()).unwrap();
        send.count_lent(1);
        for _ in 0..2 {
            kernel_completion.push(sent.address).unwrap();
        }
        kernel_completion.publish();
        assert_eq!(send.reap(&mut completion, u32::MAX, &mut faults, &mut Vec::new()), 1);
        assert_eq!((faults.not_lent, faults.total), (2, 2));
        drop(first);
        receive.balance();
        let balance = send.balance();
        assert!(balance.is_balanced() && balance.in_use == 0 && balance.lent_rx == 1, "{balance}");
    }
}
