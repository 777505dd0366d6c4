//! Receiving a stream by every method, with a receiver that reads every byte.

use super::{BUFFER_BYTES, NOTE, Place, length_name};
use crate::Failure;
use crate::bench::Bench;
use crate::series::{BEST_RECV, Series, Trial};
use crate::stream::{Cast, ReceiveWay, SOURCE_BYTES, SendWay, Side};
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "tcp-receive";

const BASELINE: &str = "recv";

/// From the buffer of a program that reads lines to that of a program that reads files.
const BUFFERS_BYTES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, BUFFER_BYTES, 256 << 10, 1 << 20, 4 << 20];

/// With 4148 and 8244 a segment has exactly one or two pages beside 52 bytes of headers; with the others it
/// does not.
const MTUS_BYTES: [u32; 4] = [1500, 4148, 8244, 9000];

pub(crate) const TCP_RECEIVE: Workload = Workload {
    name: NAME,
    about: "A TCP stream received in every way there is, and read",
    methods: &[
        ("recv", "recv() into one buffer, whose length is the variant"),
        (
            "mapped",
            "the library's stream, with pages that the kernel maps (TCP_ZEROCOPY_RECEIVE); what does not map is copied",
        ),
        ("auto", "the library's stream, which chooses how long chunks are, and whether they are mapped"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[NOTE],
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    bench.play(series(&Place::both()?), 40)?;
    bench.play(series_of_pages(&page_places()?), 28)
}

fn page_places() -> Result<Vec<Place>, Failure> {
    MTUS_BYTES.into_iter().map(Place::pair).collect()
}

/// Receives from an ordinary sender, into buffers of every length.
fn series(places: &[Place]) -> Vec<Series<'_>> {
    places.iter().map(of_any).collect()
}

/// Receives from an ordinary sender, at one place.
pub(crate) fn of_any(place: &Place) -> Series<'_> {
    place.series(NAME, "", trials(place))
}

/// Receives from a sender of whole pages, which could be mapped.
fn series_of_pages(places: &[Place]) -> Vec<Series<'_>> {
    let about = ", from whole pages by MSG_ZEROCOPY";
    places.iter().map(|place| place.series(NAME, about, trials_of_pages(place))).collect()
}

fn trials(place: &Place) -> Vec<Trial<'_>> {
    let by_hand = BUFFERS_BYTES.map(|buffer_bytes| {
        let cast = cast(SendWay::Plain, ReceiveWay::Recv { buffer_bytes });
        place.trial(BASELINE, Some(length_name(buffer_bytes)), &[], cast, Side::Receiver)
    });
    by_hand.into_iter().chain([ours(place, "auto", SendWay::Plain, ReceiveWay::Auto)]).collect()
}

fn trials_of_pages(place: &Place) -> Vec<Trial<'_>> {
    let by_hand = cast(SendWay::WholePages, ReceiveWay::Recv { buffer_bytes: BUFFER_BYTES });
    vec![
        place.trial(BASELINE, Some(length_name(BUFFER_BYTES)), &[], by_hand, Side::Receiver),
        ours(place, "mapped", SendWay::WholePages, ReceiveWay::Mapped),
        ours(place, "auto", SendWay::WholePages, ReceiveWay::Auto),
    ]
}

fn ours<'a>(place: &'a Place, method: &'static str, send: SendWay, receive: ReceiveWay) -> Trial<'a> {
    place.trial(method, None, &[BEST_RECV], cast(send, receive), Side::Receiver)
}

fn cast(send: SendWay, receive: ReceiveWay) -> Cast {
    Cast { send, source_bytes: SOURCE_BYTES, proxy: None, receive }
}
