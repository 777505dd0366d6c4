//! The card of a pair, as its table describes it.

use nocopy::integration::probe;
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use nocopy_report::result::{Card, CardMode};

use crate::Failure;

/// The modes of a port on a card, from the fastest to the slowest.
const MODES: [Mode; 4] = [Mode::XdpZeroCopy, Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

/// Asks the drivers of both ports, and opens a port in each mode on the receiving one.
pub(crate) fn describe_card(pair: &Lab) -> Result<Card, Failure> {
    let probe = |end: &End| end.namespace().run(|| probe::interface(end.interface()));
    let (from, to) = (probe(pair.left())?, probe(pair.right())?);
    let both = |from: Option<String>, to: Option<String>| match (from, to) {
        (Some(from), Some(to)) if from != to => Some(format!("{from} to {to}")),
        (from, to) => to.or(from),
    };
    let modes = MODES.map(|mode| {
        let end = pair.right();
        let opened = end.namespace().run(|| Port::builder(end.interface()).mode(mode).open());
        let refused = opened.err().map(|error| match &error {
            nocopy::port::OpenError::NoMode { refusals, .. } if !refusals.is_empty() => {
                refusals[0].to_string()
            }
            _ => error.to_string(),
        });
        CardMode { mode: mode.to_string(), refused }
    });
    Ok(Card {
        driver: both(from.driver, to.driver).unwrap_or_else(|| "unknown".into()),
        firmware: both(from.firmware, to.firmware),
        speed_mbit: to.speed_mbit,
        queues: to.receive_queues,
        modes: modes.into(),
    })
}
