//! Messages between two programs: one way, and there and back.

use std::time::Duration;

use nocopy::Cause;
use nocopy_report::figure::Figure;
use serde::Serialize;

use super::NAME;
use super::evidence::of_printed_ledger;
use super::interpreter::Interpreter;
use super::program::{Program, ReportCell, RunningProgram};
use crate::Failure;
use crate::baseline::datagram_sender::PORT;
use crate::evidence::result_evidence;
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::run_trial;
use crate::window::TrialPhase;

const MESSAGE_BYTES: usize = 64;

/// What the programs need.
pub(super) const PACKAGES: [&str; 2] = ["nocopy.Endpoint", "pyzmq"];

/// Two programs that belong together. The one that receives messages, or answers requests, counts them.
#[derive(Debug, Clone, Copy)]
struct ProgramPair {
    receiver: Program,
    sender: Program,
}

const fn pair(method: &'static str, receiver: &'static str, sender: &'static str) -> ProgramPair {
    ProgramPair { receiver: Program { method, text: receiver }, sender: Program { method, text: sender } }
}

const PUSH_PULL: ProgramPair =
    pair("push-pull", include_str!("programs/zmq_pull.py"), include_str!("programs/zmq_push.py"));
const REQ_REP: ProgramPair =
    pair("req-rep", include_str!("programs/zmq_rep.py"), include_str!("programs/zmq_req.py"));
const MANY: ProgramPair = pair(
    "send_many",
    include_str!("programs/nocopy_receive_many.py"),
    include_str!("programs/nocopy_send_many.py"),
);
const CALL: ProgramPair =
    pair("call", include_str!("programs/nocopy_respond.py"), include_str!("programs/nocopy_call.py"));

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct MessageTask {
    /// The address of the receiver.
    at: String,
    port: u16,
    bytes: usize,
}

pub(super) fn build_series<'a>(stage: &'a SitePair, interpreter: &'a Interpreter) -> Vec<Series<'a>> {
    let trial = |pair: ProgramPair, baselines| {
        let run = Box::new(move |duration| run_pair(stage, interpreter, pair, duration));
        Trial { method: pair.receiver.method, variant: None, baselines, run }
    };
    let series = |what: &str, baseline: ProgramPair, ours: ProgramPair, baselines| Series {
        workload: NAME,
        title: format!("{NAME}, {MESSAGE_BYTES}-byte messages, {what}"),
        sink: Some("a program that counts"),
        payload_bytes: MESSAGE_BYTES,
        link: None,
        figure: Figure::MessagesPerSecond,
        trials: interpreter
            .has(PACKAGES[1])
            .then(|| trial(baseline, &[]))
            .into_iter()
            .chain([trial(ours, baselines)])
            .collect(),
    };
    vec![
        series("one way", PUSH_PULL, MANY, &["push-pull"]),
        series("there and back", REQ_REP, CALL, &["req-rep"]),
    ]
}

fn run_pair(
    stage: &SitePair,
    interpreter: &Interpreter,
    pair: ProgramPair,
    duration: Duration,
) -> Result<Sample, Failure> {
    let task = MessageTask { at: stage.receiver.ipv4.to_string(), port: PORT, bytes: MESSAGE_BYTES };
    let failed =
        || Failure::step(pair.receiver.method, "run the programs", "try --python with another interpreter");
    let start = |program| RunningProgram::start(interpreter, program, &task);
    let receiver = stage.receiver.run_pinned(|| start(pair.receiver)).map_err(failed())?;
    let sender = stage.sender.run_pinned(|| start(pair.sender)).map_err(failed())?;
    let reports = [ReportCell::default(), ReportCell::default()];
    let send = sender.into_work(&reports[0], TrialPhase::Drain);
    let receive = receiver.into_work(&reports[1], TrialPhase::Stop);
    let mut traffic = run_trial(stage, duration, None, vec![send], vec![receive]).map_err(failed())?;
    let [sent, received] = reports.map(ReportCell::into_report);
    traffic.senders[0].cpu = sent.cpu;
    traffic.receivers[0].cpu = received.cpu;
    let evidence = of_printed_ledger(&received.output, "received")
        .unwrap_or_else(|| result_evidence(nocopy::Evidence::Copied(Cause::SocketCall)));
    Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
}
