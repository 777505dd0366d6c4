//! The receive analysis of 2011: TCP into buffers of several lengths, and where the receiver's processor time
//! goes.

use std::time::Duration;

use crate::Failure;
use crate::bench::Bench;
use crate::sweep;
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "tcp-receive-analysis";

/// For all buffers and rounds.
const TIME: Duration = Duration::from_secs(75);

/// If the length of a window is given: several for each buffer.
const WINDOWS: u32 = 30;

/// TCP into buffers of many lengths.
pub(crate) const RECEIVE_ANALYSIS: Workload = Workload {
    name: NAME,
    about: "2011: TCP received into buffers of many lengths, and where the receiver's time goes",
    methods: &[("recv", "recv() with MSG_WAITALL into a buffer of 1 KiB to 4 MiB, with SO_RCVBUF of 64 KiB")],
    lab_only: Some(LOOPBACK),
    capabilities: sweep::CAPABILITIES,
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let time = bench.plan.window.map_or(bench.plan.halve_if_quick(TIME), |window| window * WINDOWS);
    let analysis = sweep::measure_receive_analysis(time, &bench.progress, &|| !bench.is_interrupted());
    // A signal of the terminal also reaches its processes, which then fail.
    let interrupted = bench.is_interrupted().then_some(Failure::Interrupted);
    match analysis {
        Ok(analysis) => bench.add_receive_analysis(analysis)?,
        Err(failure) => return Err(interrupted.unwrap_or(failure)),
    }
    interrupted.map_or(Ok(()), Err)
}
