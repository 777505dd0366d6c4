//! The rows of one array, sent as datagrams.

use std::time::Duration;

use nocopy::Cause;
use nocopy_report::figure::Figure;
use serde::Serialize;

use super::evidence::of_printed_ledger;
use super::interpreter::Interpreter;
use super::program::{Program, ReportCell, RunningProgram};
use super::{ARRAY_ROWS, DATAGRAM_BYTES, NAME};
use crate::Failure;
use crate::baseline::datagram_sender::PORT;
use crate::datagram::DatagramSpec;
use crate::evidence::result_evidence;
use crate::series::{Sample, Series, Trial};
use crate::traffic::run_trial;
use crate::window::{TrialPhase, WindowReading};
use crate::workload::udp_send::SinkTestbed;

const BASELINE: &str = "sendto";

const SENDTO: Program = Program { method: BASELINE, text: include_str!("programs/sendto.py") };
const SEND_TO: Program = Program { method: "send_to", text: include_str!("programs/nocopy_send_to.py") };

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct SendTask {
    to: String,
    port: u16,
    bytes: usize,
    rows: usize,
}

pub(super) fn build_series<'a>(testbed: &'a SinkTestbed, interpreter: &'a Interpreter) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let run = Box::new(move |duration| run_program(testbed, interpreter, program, duration));
        Trial { method: program.method, variant: None, baselines, run }
    };
    Series {
        workload: NAME,
        title: format!("{NAME}, {DATAGRAM_BYTES}-byte datagrams sent"),
        sink: Some(testbed.sink.name()),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: vec![trial(SENDTO, &[]), trial(SEND_TO, &[BASELINE])],
    }
}

fn run_program(
    testbed: &SinkTestbed,
    interpreter: &Interpreter,
    program: Program,
    duration: Duration,
) -> Result<Sample, Failure> {
    let stage = &testbed.stage;
    let datagrams = DatagramSpec::singly(DATAGRAM_BYTES);
    let receiver_kind = testbed.sink.receiver_kind().into_iter();
    let receive =
        receiver_kind.map(|kind| kind.open(&stage.receiver, datagrams)).collect::<Result<_, _>>()?;
    let to = stage.receiver.ipv4.to_string();
    let task = SendTask { to, port: PORT, bytes: DATAGRAM_BYTES, rows: ARRAY_ROWS };
    let failed = || Failure::step(program.method, "run the program", "try --python with another interpreter");
    let running =
        stage.sender.run_pinned(|| RunningProgram::start(interpreter, program, &task)).map_err(failed())?;
    let report = ReportCell::default();
    let follow = running.into_work(&report, TrialPhase::Drain);
    let mut traffic = run_trial(stage, duration, None, vec![follow], receive).map_err(failed())?;
    let report = report.into_report();
    let sent = traffic.senders[0];
    traffic.senders[0] = WindowReading { cpu: report.cpu, ..sent };
    let evidence = of_printed_ledger(&report.output, "sent")
        .unwrap_or_else(|| result_evidence(nocopy::Evidence::Copied(Cause::SocketCall)));
    Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
}
