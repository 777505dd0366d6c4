//! Messages between two hosts: there and back one at a time, and one way as fast as they go.

pub(crate) mod latency;
pub(crate) mod stream;

use crate::baseline::fi_pingpong;
use crate::baseline::tcp::CONGESTION_CONTROL;
use crate::stage::Stage;
use nocopy_report::result::Link;

const PAIR: &str = "veth";

/// What cannot be measured here, and what a reader of the tables needs to know.
pub(crate) fn notes() -> Vec<String> {
    let missing = (!fi_pingpong::is_installed()).then(|| {
        format!(
            "SKIP: message-latency {}: not installed: 'apt install libfabric-bin' or what your system calls it.",
            fi_pingpong::NAME
        )
    });
    let about = "message-*: tcp-* with cubic, TCP_NODELAY and a length in front of each message; udp-* and xdp-* do not send again what \
                 is lost, and have no row where a message does not fit one datagram or frame. One-way messages of 64 KiB and more lie \
                 ready but for their number: TCP writes both by one writev, message-udp sends them from where \
                 they lie, message-xdp copies them into frames.";
    missing.into_iter().chain([about.to_owned()]).collect()
}

fn link(stage: &Stage, source_bytes: Option<usize>) -> Link {
    Link {
        link: PAIR.into(),
        mtu_bytes: stage.mtu_bytes(),
        congestion_control: CONGESTION_CONTROL.into(),
        source_bytes,
    }
}

/// Whether a message fits one frame, with the headers of UDP over IPv4.
fn fits_a_frame(stage: &Stage, bytes: usize) -> bool {
    bytes + 20 + 8 <= stage.mtu_bytes() as usize
}
