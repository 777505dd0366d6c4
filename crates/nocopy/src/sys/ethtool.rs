//! What only ethtool's generic netlink family knows of an interface, not its ioctl.

use std::io;

use super::generic::{Family, nested, text};

// linux/ethtool_netlink.h
const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_RINGS_HEADER: u16 = 1;
const ETHTOOL_A_RINGS_TCP_DATA_SPLIT: u16 = 11;
const ETHTOOL_TCP_DATA_SPLIT_DISABLED: u64 = 1;
const ETHTOOL_TCP_DATA_SPLIT_ENABLED: u64 = 2;

/// Whether the card puts the headers of TCP and the data into buffers of their own; `None` where the driver does not say,
/// since Linux 6.0.
///
/// # Errors
/// `EOPNOTSUPP` where the driver says nothing at all of its rings.
pub(crate) fn splits_headers(interface: &str) -> io::Result<Option<bool>> {
    let header = nested(ETHTOOL_A_RINGS_HEADER, &[text(ETHTOOL_A_HEADER_DEV_NAME, interface)]);
    let rings = Family::named("ethtool")?.ask(ETHTOOL_MSG_RINGS_GET, &[header])?;
    Ok(match rings.number(ETHTOOL_A_RINGS_TCP_DATA_SPLIT) {
        Some(ETHTOOL_TCP_DATA_SPLIT_ENABLED) => Some(true),
        Some(ETHTOOL_TCP_DATA_SPLIT_DISABLED) => Some(false),
        _ => None,
    })
}
