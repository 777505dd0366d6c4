//! The packet driver of 2010: how many frames of each length arrive in a program, of those that the driver
//! could drop; what a gigabit of them costs; two queues on two processors; and sending.

use nocopy_lab::Lab;

use super::{keep_trials, run_series_as};
use crate::Failure;
use crate::bench::Bench;
use crate::generator::GeneratorLoad;
use crate::series::Series;
use crate::stage::{FRAME_BYTES_MAX, SitePair};
use crate::workload::{Workload, capture, packet_send};

const NAME: &str = "ntzc";

/// From the shortest frame to the longest, as Linux counts them: the four bytes of the check sequence are not
/// among them, so the longest is the paper's of 1,518 bytes.
const FRAMES_BYTES: [usize; 6] = [64, 128, 256, 512, 1024, FRAME_BYTES_MAX];

/// The shortest frames for which the paper states the cost of a gigabit a second.
const GIGABIT_FRAME_BYTES_MIN: usize = 256;

/// Bytes of a frame on the wire besides its own: check sequence, preamble, and gap (IEEE 802.3).
const WIRE_BYTES: usize = 4 + 8 + 12;

/// Frames from the card's memory to the program's.
pub(crate) const NTZC: Workload = Workload {
    name: NAME,
    about: "2010: frames of every length received by a program and dropped by the driver, two queues, and sending",
    methods: &[
        ("xdp", "a port over AF_XDP, in copy mode on veth; coalesced: it sleeps between looks"),
        ("xdp-drop", "an XDP program that drops everything: what arrives when nothing takes it"),
        ("packet-send", "send() on a packet socket, a call for each frame, as pcap_inject does"),
        ("packet-ring-fanout", "two TPACKET_V3 sockets, each with the packets of one processor; two queues"),
    ],
    lab_only: Some("two queues need a lab's interfaces"),
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let stage = SitePair::in_private_lab(Lab::builder().gro_right(capture::WITH_GRO))?;
    let at_full_rate = FRAMES_BYTES.map(|bytes| receive_series(&stage, bytes, GeneratorLoad::Full));
    run_series_as(NAME, bench, at_full_rate.into(), 26)?;
    let gigabit = FRAMES_BYTES.into_iter().filter(|&bytes| bytes >= GIGABIT_FRAME_BYTES_MIN);
    let gigabit = gigabit.map(|bytes| receive_series(&stage, bytes, gigabit_load(bytes)));
    run_series_as(NAME, bench, gigabit.collect(), 10)?;
    drop(stage);
    let two_queues = SitePair::with_two_queues(Lab::builder().gro_right(capture::WITH_GRO))?;
    let named = [("xdp", None), ("packet-ring-fanout", None)];
    let queues = capture::on_two_queues(&two_queues).into_iter().map(|series| keep_trials(series, &named));
    run_series_as(NAME, bench, queues.collect(), 8)?;
    drop(two_queues);
    let stage = SitePair::in_private_lab(Lab::builder())?;
    let sink = packet_send::CountingDropSink::open(&stage)?;
    let sent = FRAMES_BYTES.map(|bytes| {
        let series = packet_send::series_of_length(&stage, &sink, bytes);
        keep_trials(series, &[("packet-send", None), ("xdp", None)])
    });
    run_series_as(NAME, bench, sent.into(), 24)
}

/// Receives by a port that sleeps between polls; at full rate also by an XDP program that drops everything.
fn receive_series(stage: &SitePair, bytes: usize, load: GeneratorLoad) -> Series<'_> {
    let coalesced = format!("coalesced {}", load.name());
    let mut series = keep_trials(
        capture::generated_series(stage, bytes, load),
        &[("xdp", Some(&coalesced)), ("xdp-drop", None)],
    );
    series
        .trials
        .iter_mut()
        .filter(|trial| trial.method == "xdp")
        .for_each(|trial| trial.baselines = &["xdp-drop"]);
    series
}

/// The most frames of a 1 Gbit/s wire.
fn gigabit_load(frame_bytes: usize) -> GeneratorLoad {
    let frames_per_s = 1_000_000_000 / (8 * (frame_bytes + WIRE_BYTES));
    GeneratorLoad::Paced { kpps: (frames_per_s / 1000) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of RFC 2544's table for Gigabit Ethernet, in thousands; it counts the check sequence as part of
    /// a frame.
    #[test]
    fn a_gigabit_includes_framing_overhead() {
        for (with_check_sequence, kpps) in [(256, 452), (512, 234), (1518, 81)] {
            assert_eq!(gigabit_load(with_check_sequence - 4), GeneratorLoad::Paced { kpps });
        }
    }
}
