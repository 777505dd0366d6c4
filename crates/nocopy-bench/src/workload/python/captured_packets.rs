//! Packets captured and counted by source: the highest rate without loss.

use nocopy_report::figure::Figure;
use serde::Serialize;

use super::generated::GeneratedTrial;
use super::interpreter::Interpreter;
use super::program::Program;
use super::{ARRAY_ROWS, NAME};
use crate::frame::FrameTemplate;
use crate::series::{Series, Trial};
use crate::stage::SitePair;

/// What the programs need.
pub(super) const PACKAGES: [&str; 4] = ["nocopy.Capture", "scapy", "pcapy-ng", "dpkt"];

const FRAME_BYTES: usize = 64;

const PACKET_SOCKET: Program =
    Program { method: "packet-socket", text: include_str!("programs/packet_socket.py") };
const SCAPY: Program = Program { method: "scapy", text: include_str!("programs/scapy_sniff.py") };
const PCAPY: Program = Program { method: "pcapy-dpkt", text: include_str!("programs/pcapy_dpkt.py") };
const CAPTURE: Program = Program { method: "capture", text: include_str!("programs/nocopy_capture.py") };

/// Of each program: small compared with what comes in a step, so that it must keep up.
const BUFFER_BYTES: usize = 4 << 20;

const CAUSE: &str = "packet socket: the kernel copies each packet into its ring or into the program's memory";

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct CaptureTask<'a> {
    interface: &'a str,
    bytes: usize,
    rows: usize,
    buffer: usize,
}

pub(super) fn build_series<'a>(stage: &'a SitePair, interpreter: &'a Interpreter) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let run = Box::new(move |window| {
            let interface = &*stage.receiver.interface;
            let task = CaptureTask { interface, bytes: FRAME_BYTES, rows: ARRAY_ROWS, buffer: BUFFER_BYTES };
            let frame = &FrameTemplate::to_other_host(stage, FRAME_BYTES);
            let trial = GeneratedTrial { stage, program, frame };
            let (found, _) = trial.find_highest_rate(interpreter, &task, window)?;
            Ok(found.into_sample(CAUSE))
        });
        Trial { method: program.method, variant: None, baselines, run }
    };
    let has = |packages: &[&str]| packages.iter().all(|package| interpreter.has(package));
    let mut trials = vec![trial(PACKET_SOCKET, &[])];
    trials.extend(has(&["scapy"]).then(|| trial(SCAPY, &[])));
    trials.extend(has(&["pcapy-ng", "dpkt"]).then(|| trial(PCAPY, &[])));
    trials.push(trial(CAPTURE, &[PACKET_SOCKET.method, SCAPY.method, PCAPY.method]));
    Series {
        workload: NAME,
        title: format!("{NAME}, {FRAME_BYTES}-byte frames counted by source, highest rate without loss"),
        sink: Some("a count for each source"),
        payload_bytes: FRAME_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}
