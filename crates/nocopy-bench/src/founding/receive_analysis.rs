//! The receive analysis of 2011: TCP into buffers of several lengths, and where the receiver's processor time goes.

use std::time::Duration;

use rustix::thread::CapabilitySet;

use crate::Failure;
use crate::bench::Bench;
use crate::plan::Plan;
use crate::sweep;
use crate::workload::{LOOPBACK, Method, Workload};

const NAME: &str = "tcp-receive-analysis";

/// For all buffers and rounds.
const TIME: Duration = Duration::from_secs(75);

/// If the length of a window is given: several for each buffer.
const WINDOWS: u32 = 30;

/// TCP into buffers of many lengths.
#[derive(Debug)]
pub(crate) struct ReceiveAnalysis;

impl Workload for ReceiveAnalysis {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "2011: TCP received into buffers of many lengths, and where the receiver's time goes"
    }

    fn methods(&self) -> &'static [Method] {
        &[("recv", "recv() with MSG_WAITALL into a buffer of 1 KiB to 4 MiB, with SO_RCVBUF of 64 KiB")]
    }

    fn lab_only(&self) -> Option<&'static str> {
        Some(LOOPBACK)
    }

    fn capabilities(&self, _plan: &Plan) -> CapabilitySet {
        sweep::CAPABILITIES
    }

    fn measure(&self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        let time = bench.plan.window.map_or(bench.plan.halved(TIME), |window| window * WINDOWS);
        let analysis = sweep::founding(time, &bench.progress, &|| !bench.is_interrupted());
        // A signal of the terminal also reaches its processes, which then fail.
        let interrupted = bench.is_interrupted().then_some(Failure::Interrupted);
        match analysis {
            Ok(analysis) => bench.add_receive_analysis(analysis)?,
            Err(failure) => return Err(interrupted.unwrap_or(failure)),
        }
        interrupted.map_or(Ok(()), Err)
    }
}
