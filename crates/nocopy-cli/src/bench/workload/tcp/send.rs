//! A stream sent in every way there is, to a receiver that copies it out and looks no further.

use super::{BUFFER_BYTES, Place};
use crate::bench::series::{BEST_FOR_OWNED, Series, Trial};
use crate::bench::stream::{Cast, ReceiveWay, SendWay, Side};

pub(crate) const NAME: &str = "tcp-send";

/// What everybody does without a thought.
const BASELINE: &str = "plain";

pub(crate) fn series(places: &[Place]) -> Vec<Series<'_>> {
    places.iter().map(|place| place.series(NAME, "", trials(place))).collect()
}

fn trials(place: &Place) -> Vec<Trial<'_>> {
    vec![
        trial(place, BASELINE, SendWay::Plain, &[]),
        trial(place, "zerocopy", SendWay::ZeroCopy, &[BASELINE]),
        trial(place, "uring-zerocopy", SendWay::UringZeroCopy, &[BASELINE]),
        trial(place, "auto", SendWay::Auto, &[BASELINE, BEST_FOR_OWNED]),
        trial(place, "published", SendWay::Published, &[BASELINE]),
        trial(place, "sendfile", SendWay::Sendfile, &[BASELINE]),
        trial(place, "vmsplice", SendWay::Vmsplice, &[BASELINE]),
    ]
}

fn trial<'a>(
    place: &'a Place,
    method: &'static str,
    send: SendWay,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let receive = ReceiveWay::Unread { buffer_bytes: BUFFER_BYTES };
    place.trial(method, None, baselines, Cast { send, proxy: None, receive }, Side::Sender)
}
