//! Settings of an interface that only ethtool's generic netlink family reports, not its ioctl.

use std::io;

use super::generic::{GenericFamily, GenericReply, nested_attribute, text_attribute};

// linux/ethtool_netlink.h
#[cfg(feature = "port")]
const ETHTOOL_MSG_LINKMODES_GET: u8 = 4;
const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
/// The number is the same in every request.
const ETHTOOL_A_HEADER: u16 = 1;
#[cfg(feature = "port")]
const ETHTOOL_A_LINKMODES_SPEED: u16 = 5;
const ETHTOOL_A_RINGS_TCP_DATA_SPLIT: u16 = 11;
const ETHTOOL_A_RINGS_HDS_THRESH: u16 = 17;
const ETHTOOL_TCP_DATA_SPLIT_DISABLED: u64 = 1;
const ETHTOOL_TCP_DATA_SPLIT_ENABLED: u64 = 2;

/// Whether a card puts TCP headers and data into separate buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeaderSplit {
    /// Whether it does; `None` if the driver does not report it, and before Linux 6.0.
    pub(crate) on: Option<bool>,
    /// Only packets longer than this are split; `None` if there is no such limit, and before Linux 6.14.
    pub(crate) threshold_bytes: Option<u64>,
}

/// How an interface splits headers off. Errors: `EOPNOTSUPP` if the driver reports nothing about its rings.
pub(crate) fn header_split(interface: &str) -> io::Result<HeaderSplit> {
    let rings = request_about(interface, ETHTOOL_MSG_RINGS_GET)?;
    let on = match rings.number_value(ETHTOOL_A_RINGS_TCP_DATA_SPLIT) {
        Some(ETHTOOL_TCP_DATA_SPLIT_ENABLED) => Some(true),
        Some(ETHTOOL_TCP_DATA_SPLIT_DISABLED) => Some(false),
        _ => None,
    };
    Ok(HeaderSplit { on, threshold_bytes: rings.number_value(ETHTOOL_A_RINGS_HDS_THRESH) })
}

/// The speed of an interface's link in Mbit/s, if the driver reports it.
#[cfg(feature = "port")]
pub(crate) fn speed_mbit(interface: &str) -> Option<u32> {
    let modes = request_about(interface, ETHTOOL_MSG_LINKMODES_GET).ok()?;
    let speed = u32::try_from(modes.number_value(ETHTOOL_A_LINKMODES_SPEED)?).ok()?;
    Some(speed).filter(|speed| !matches!(*speed, 0 | u32::MAX)) // SPEED_UNKNOWN
}

fn request_about(interface: &str, command: u8) -> io::Result<GenericReply> {
    let header = nested_attribute(ETHTOOL_A_HEADER, &[text_attribute(ETHTOOL_A_HEADER_DEV_NAME, interface)]);
    GenericFamily::look_up("ethtool")?.request(command, &[header])
}
