//! A stream sent in every way there is, to a receiver that copies it out and looks no further.

use super::{BUFFER_BYTES, Place};
use crate::series::{BEST_FOR_OWNED, Series, Trial};
use crate::stream::{Cast, ReceiveWay, SOURCE_BYTES, SOURCE_BYTES_WARM, SendWay, Side};
use nocopy_report::result::Link;

pub(crate) const NAME: &str = "tcp-send";

/// What everybody does without a thought.
const BASELINE: &str = "plain";

pub(crate) fn series(places: &[Place]) -> Vec<Series<'_>> {
    places.iter().flat_map(|place| [of_owned(place), of_published(place)]).collect()
}

/// What a program made and gives away: every buffer is another.
fn of_owned(place: &Place) -> Series<'_> {
    let trial = |method, send, baselines| trial(place, method, send, SOURCE_BYTES, baselines);
    let trials = vec![
        trial(BASELINE, SendWay::Plain, &[]),
        trial("zerocopy", SendWay::ZeroCopy, &[BASELINE]),
        trial("uring-zerocopy", SendWay::UringZeroCopy, &[BASELINE]),
        trial("auto", SendWay::Auto, &[BASELINE, BEST_FOR_OWNED]),
    ];
    place.series(NAME, "", trials)
}

/// What never changes and goes to one peer after the other: the same memory again and again.
fn of_published(place: &Place) -> Series<'_> {
    let trial = |method, send, baselines| trial(place, method, send, SOURCE_BYTES_WARM, baselines);
    let trials = vec![
        trial(BASELINE, SendWay::Plain, &[]),
        trial("published", SendWay::Published, &[BASELINE]),
        trial("sendfile", SendWay::Sendfile, &[BASELINE]),
        trial("vmsplice", SendWay::Vmsplice, &[BASELINE]),
    ];
    let series = place.series(NAME, ", the same 1 MiB again and again", trials);
    let link = series.link.map(|link| Link { source_bytes: Some(SOURCE_BYTES_WARM), ..link });
    Series { link, ..series }
}

fn trial<'a>(
    place: &'a Place,
    method: &'static str,
    send: SendWay,
    source_bytes: usize,
    baselines: &'static [&'static str],
) -> Trial<'a> {
    let receive = ReceiveWay::Unread { buffer_bytes: BUFFER_BYTES };
    place.trial(method, None, baselines, Cast { send, source_bytes, proxy: None, receive }, Side::Sender)
}
