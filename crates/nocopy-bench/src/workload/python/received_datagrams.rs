//! Datagrams into one array: sent in bursts, sent one by one, and resent one by one by the kernel.

use std::io;
use std::time::Duration;

use nocopy::udp::{Receiver, RowFiller};
use nocopy::{Cause, Pool};
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;
use serde::Serialize;

use super::evidence::of_printed_ledger;
use super::generated::GeneratedTrial;
use super::interpreter::Interpreter;
use super::program::{Program, ReportCell, RunningProgram};
use super::{ARRAY_ROWS, DATAGRAM_BYTES, NAME};
use crate::Failure;
use crate::baseline::datagram_receiver::RECEIVE_BUFFER_BYTES;
use crate::baseline::datagram_sender::{self, PORT};
use crate::datagram::DatagramSpec;
use crate::evidence::result_evidence;
use crate::frame::FrameTemplate;
use crate::series::{Sample, Series, Trial};
use crate::stage::SitePair;
use crate::traffic::{ThreadWork, TrafficReadings, run_trial};
use crate::udp;
use crate::window::{TrialPhase, WindowGauge};

const BASELINE: &str = "recv_into";
const RUST: &str = "rust";

const RECV_INTO: Program = Program { method: BASELINE, text: include_str!("programs/recv_into.py") };
const RECEIVE_INTO: Program =
    Program { method: "receive_into", text: include_str!("programs/nocopy_receive_into.py") };
const RECEIVE: Program = Program { method: "receive", text: include_str!("programs/nocopy_receive.py") };

/// How long the program in Rust waits before it looks whether the trial is over; as those in Python.
const PATIENCE: Duration = Duration::from_millis(10);

/// The argument of the programs.
#[derive(Debug, Serialize)]
struct ReceiveTask {
    at: String,
    port: u16,
    bytes: usize,
    rows: usize,
    receive_buffer: usize,
}

impl ReceiveTask {
    fn new(stage: &SitePair, bytes: usize) -> Self {
        Self {
            at: stage.receiver.ipv4.to_string(),
            port: PORT,
            bytes,
            rows: ARRAY_ROWS,
            receive_buffer: RECEIVE_BUFFER_BYTES,
        }
    }
}

/// With bursts that the sender hands over as one message each, or with datagrams sent one by one.
pub(super) fn build_series<'a>(
    stage: &'a SitePair,
    interpreter: &'a Interpreter,
    datagrams: DatagramSpec,
) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let trial = ReceiveTrial { stage, datagrams };
        let run = Box::new(move |duration| trial.run_program(interpreter, program, duration));
        Trial { method: program.method, variant: None, baselines, run }
    };
    let rust = Box::new(move |duration| ReceiveTrial { stage, datagrams }.run_in_rust(duration));
    let trials = vec![
        trial(RECV_INTO, &[]),
        Trial { method: RUST, variant: None, baselines: &[BASELINE], run: rust },
        trial(RECEIVE_INTO, &[BASELINE, RUST]),
        trial(RECEIVE, &[BASELINE]),
    ];
    let way = if datagrams.a_burst > 1 { "in bursts" } else { "one by one" };
    Series {
        workload: NAME,
        title: format!("{NAME}, {DATAGRAM_BYTES}-byte datagrams received, sent {way}"),
        sink: Some("an array in memory"),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials,
    }
}

/// With datagrams that the kernel resends one by one, so that no sender is the limit. They have no checksum:
/// GRO would join those that have one, and write the length of all into a header that is sent again.
pub(super) fn build_series_resent<'a>(stage: &'a SitePair, interpreter: &'a Interpreter) -> Series<'a> {
    let trial = |program: Program, baselines| {
        let run = Box::new(move |window| {
            let frame = &FrameTemplate::datagram_to_peer(stage, PORT, DATAGRAM_BYTES);
            let trial = GeneratedTrial { stage, program, frame };
            let task = ReceiveTask::new(stage, DATAGRAM_BYTES);
            let (found, output) = trial.find_highest_rate(interpreter, &task, window)?;
            Ok(Sample { evidence: printed_evidence(&output), ..found.into_sample("") })
        });
        Trial { method: program.method, variant: None, baselines, run }
    };
    Series {
        workload: NAME,
        title: format!(
            "{NAME}, {DATAGRAM_BYTES}-byte datagrams resent one by one, highest rate without loss"
        ),
        sink: Some("an array in memory"),
        payload_bytes: DATAGRAM_BYTES,
        link: None,
        figure: Figure::PacketsPerSecond,
        trials: vec![trial(RECV_INTO, &[]), trial(RECEIVE_INTO, &[BASELINE]), trial(RECEIVE, &[BASELINE])],
    }
}

#[derive(Debug, Clone, Copy)]
struct ReceiveTrial<'a> {
    stage: &'a SitePair,
    datagrams: DatagramSpec,
}

impl<'a> ReceiveTrial<'a> {
    fn run_program(
        self,
        interpreter: &Interpreter,
        program: Program,
        duration: Duration,
    ) -> Result<Sample, Failure> {
        let site = &self.stage.receiver;
        let task = ReceiveTask::new(self.stage, self.datagrams.bytes);
        let failed =
            || Failure::step(program.method, "run the program", "run it as root, and with --python PATH");
        let running =
            site.run_pinned(|| RunningProgram::start(interpreter, program, &task)).map_err(failed())?;
        let report = ReportCell::default();
        let follow = running.into_work(&report, TrialPhase::Stop);
        let mut traffic = self.run_traffic(duration, follow).map_err(failed())?;
        let report = report.into_report();
        traffic.receivers[0].cpu = report.cpu;
        let evidence = printed_evidence(&report.output);
        Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
    }

    fn run_in_rust(self, duration: Duration) -> Result<Sample, Failure> {
        let receiver = udp::open_receiver(&self.stage.receiver)?;
        let work: ThreadWork<'_> =
            Box::new(move |gauge| receive_into_rows(receiver, self.datagrams.bytes, gauge));
        let failed = Failure::step(RUST, "receive", "raise 'ulimit -l', or free memory");
        let traffic = self.run_traffic(duration, work).map_err(failed)?;
        Ok(Sample { traffic, latency: None, evidence: copied_by_socket(), wanted_share: 1.0 })
    }

    fn run_traffic(self, duration: Duration, receive: ThreadWork<'_>) -> io::Result<TrafficReadings> {
        let Self { stage, datagrams } = self;
        let send: ThreadWork<'_> = match datagrams.a_burst {
            1 => {
                let socket = datagram_sender::open_sender_socket(stage)?;
                Box::new(move |gauge| datagram_sender::send_singly(&socket, datagrams, gauge))
            }
            _ => {
                let socket = datagram_sender::open_gso_socket(stage, datagrams)?;
                Box::new(move |gauge| datagram_sender::send_segmented(&socket, datagrams, gauge))
            }
        };
        run_trial(stage, duration, None, vec![send], vec![receive])
    }
}

/// What the program's ledger says; those without one receive by socket calls.
fn printed_evidence(output: &str) -> Evidence {
    of_printed_ledger(output, "received").unwrap_or_else(copied_by_socket)
}

fn copied_by_socket() -> Evidence {
    result_evidence(nocopy::Evidence::Copied(Cause::SocketCall))
}

/// The same as the program of `receive_into`, in Rust.
fn receive_into_rows(
    mut receiver: Receiver,
    row_bytes: usize,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let pool = Pool::new(1, ARRAY_ROWS * row_bytes)?;
    let mut array = pool.take().expect("nothing was taken yet");
    array.resize(array.capacity());
    let mut rows = RowFiller::new(row_bytes);
    while gauge.may_receive() {
        let count = receiver.receive_into(&mut array, &mut rows, Some(PATIENCE))?;
        gauge.count_packets(count as u64);
    }
    Ok(())
}
