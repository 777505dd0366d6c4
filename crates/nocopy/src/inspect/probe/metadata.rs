//! XDP features of a driver other than moving packets.

use std::io;

use nocopy_proto::errno::ErrorCause;

use super::{Gate, GateState};
use crate::sys::netdev::{RECEIVE_METADATA, SEND_METADATA, XdpFeatures};

pub(super) fn metadata_gates(features: &io::Result<XdpFeatures>) -> [Gate; 3] {
    const NAMES: [&str; 3] = ["packets in several buffers", "receive metadata", "send metadata"];
    match features {
        Ok(features) => [
            multi_buffer_gate(NAMES[0], *features),
            offered_features_gate(NAMES[1], features.receive_metadata, &RECEIVE_METADATA),
            offered_features_gate(NAMES[2], features.send_metadata, &SEND_METADATA),
        ],
        Err(error) => NAMES.map(|name| {
            Gate::new(name, GateState::Unknown, format!("the kernel does not report it{}", ErrorCause(error)))
        }),
    }
}

fn multi_buffer_gate(name: &'static str, features: XdpFeatures) -> Gate {
    let words = match (features.has_multi_buffer(), features.zero_copy_buffers) {
        (false, _) => "no: a packet must fit one".to_owned(),
        (true, Some(count)) if features.has_zero_copy() => {
            format!("XDP programs take them; in zero-copy at most {count}")
        }
        (true, _) => "XDP programs take them".to_owned(),
    };
    Gate::from_condition(name, features.has_multi_buffer(), words)
        .with_fix_unless_open("an MTU whose packets fit one buffer")
}

/// A gate that is open if the driver offers any of `names`; bit N of `bits` stands for the Nth name.
fn offered_features_gate(name: &'static str, bits: Option<u64>, names: &[&'static str]) -> Gate {
    let Some(bits) = bits else {
        return Gate::new(name, GateState::Unknown, "the kernel does not say (before Linux 6.8)");
    };
    let has: Vec<&str> =
        (0..).zip(names).filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| *name).collect();
    let words = if has.is_empty() { "the driver offers none".to_owned() } else { has.join(", ") };
    Gate::from_condition(name, !has.is_empty(), words)
        .with_fix_unless_open("timestamps and checksums by software work everywhere")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_features_are_named_and_none_closes_the_gate() {
        let gate = |bits| offered_features_gate("send metadata", bits, &SEND_METADATA);
        assert_eq!(
            (gate(Some(5)).state, gate(Some(5)).found),
            (GateState::Open, "timestamp, launch time".to_owned())
        );
        // A bit of a later kernel has no name yet.
        assert_eq!(gate(Some(1 << 40)).state, GateState::Closed);
        assert_eq!(gate(None).state, GateState::Unknown);
    }
}
