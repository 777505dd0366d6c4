//! Messages between two hosts: there and back one at a time, and one way as fast as they go.

pub(crate) mod beside;
pub(crate) mod latency;
pub(crate) mod stream;

use crate::Failure;
use crate::stage::{CONGESTION_CONTROL, SitePair};
use nocopy_lab::Builder;
use nocopy_report::result::LinkDescription;

/// What the methods have in common.
const NOTE: &str = "message-*: TCP connections have reno; tcp-* with TCP_NODELAY and a length in front of each message; udp-* and xdp-* do not send again what \
     is lost, and have no row where a message does not fit one datagram or frame. One-way messages of 64 KiB and more lie \
     ready but for their number: TCP writes both by one writev, message-udp sends them from where \
     they lie, message-xdp copies them into frames.";

fn link_description(stage: &SitePair, source_bytes: Option<usize>) -> LinkDescription {
    LinkDescription {
        link: stage.link_name().into(),
        mtu_bytes: stage.mtu_bytes(),
        congestion_control: CONGESTION_CONTROL.into(),
        source_bytes,
    }
}

/// Two sites whose TCP connections all have the same congestion control: those beside datagrams, too.
pub(crate) fn make_site_pair(lab: Builder) -> Result<SitePair, Failure> {
    SitePair::in_private_lab(lab)?.with_congestion_control()
}

/// Whether a message fits one frame, with the headers of UDP over IPv4.
fn fits_a_frame(stage: &SitePair, bytes: usize) -> bool {
    bytes + 20 + 8 <= stage.mtu_bytes() as usize
}
