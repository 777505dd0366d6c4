//! The receive analysis of the study of 2011 on which this experiment is based (docs/profile.md), on this
//! machine: the study's buffers, and the processor time by its rows.
//!
//! ```text
//!   categories of the profile ─▶ rows of the study ─┐
//!   cells with SO_RCVBUF fixed ─▶ SweepResult ──────┴▶ ReceiveAnalysis ─▶ table
//! ```

use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_profile::KernelTypes;
use nocopy_profile::sweep::{CellSettings, receive_analysis_of};
use nocopy_report::progress::Progress;
use nocopy_report::receive_analysis::ReceiveAnalysis;

use super::{FIXED_BUFFER_BYTES, SweepPlan, measure_round, run_transfer, transfer_amount};
use crate::Failure;
use crate::stage::SitePair;

const BUFFERS_BYTES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The amount of the study, and the least for slow machines.
const AMOUNT_BYTES: u64 = 256 << 20;
const AMOUNT_BYTES_MIN: u64 = 1 << 20;

/// Bytes moved before the measurement, to find out how fast this machine is.
const TRIAL_BYTES: u64 = 2 << 20;

/// The least number of rounds that should fit into the time; the amount of a transfer follows from it.
const ROUNDS_WANTED: u32 = 3;

/// More often than the default, because the time is short and the parts are small; throughput is measured in
/// transfers without profiling.
const SAMPLES_PER_SECOND: u32 = 487;

/// Measures a TCP receiver as the study of 2011 did: a given amount by `recv` with `MSG_WAITALL` into buffers
/// from 1 KiB to 4 MiB, with `SO_RCVBUF` fixed at 64 KiB, over a private veth pair with GRO. It makes as many
/// rounds as fit into `budget`, but at least one; each moves the amount with profiling and without, for every
/// buffer. It ends after the round in which `go_on` became false.
///
/// The calling thread needs [`super::CAPABILITIES`].
///
/// # Errors
/// An error of the lab, of the kernel's type information, of the BPF programs or of the two processes.
pub(crate) fn measure_receive_analysis(
    budget: Duration,
    progress: &Progress,
    go_on: &dyn Fn() -> bool,
) -> Result<ReceiveAnalysis, Failure> {
    let start = Instant::now();
    let kernel = KernelTypes::read()?;
    let stage = SitePair::with_single_segments(Lab::builder().gro_right(true))?;
    let cells: Vec<_> = BUFFERS_BYTES.map(study_cell).into();
    let trial = run_transfer(&stage, transfer_amount(cells[0], TRIAL_BYTES), None)?;
    let bytes = choose_amount_bytes(trial.elapsed, budget, cells.len());
    let mut plan = SweepPlan { bytes, rounds: 0, samples_per_second: SAMPLES_PER_SECOND, cells };
    let mut measured = plan.empty_samples();
    loop {
        let begin = Instant::now();
        progress.add_expected_steps(plan.cells.len() as u64);
        measure_round(&plan, plan.rounds, &kernel, |_| &stage, &mut measured, progress)?;
        plan.rounds += 1;
        // The next round would take as long as this one.
        if !go_on() || start.elapsed() + begin.elapsed() > budget {
            return Ok(receive_analysis_of(&plan.sweep_result(String::new(), &measured)));
        }
    }
}

fn study_cell(buffer_bytes: usize) -> CellSettings {
    CellSettings { buffer_bytes, receive_buffer_bytes: Some(FIXED_BUFFER_BYTES), gro: true }
}

/// The bytes that each transfer moves, so that the desired rounds fit into the time: a power of two. `trial`
/// is how long [`TRIAL_BYTES`] took with the smallest buffer, which is the slowest.
fn choose_amount_bytes(trial: Duration, budget: Duration, cells: usize) -> u64 {
    // With profiling and without.
    let transfers = ROUNDS_WANTED * 2 * u32::try_from(cells).expect("a few");
    let fitting =
        TRIAL_BYTES as f64 * (budget / transfers).div_duration_f64(trial.max(Duration::from_nanos(1)));
    let mut bytes = AMOUNT_BYTES;
    while bytes > AMOUNT_BYTES_MIN && bytes as f64 > fitting {
        bytes /= 2;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amount_follows_the_available_time() {
        let minute = Duration::from_secs(60);
        let bytes =
            |trial_ms| choose_amount_bytes(Duration::from_millis(trial_ms), minute, BUFFERS_BYTES.len());
        // 42 transfers, 1.43 s each.
        assert_eq!(bytes(1), AMOUNT_BYTES);
        assert_eq!(bytes(11), AMOUNT_BYTES);
        assert_eq!(bytes(12), AMOUNT_BYTES / 2);
        assert_eq!(bytes(1_000), 2 << 20);
        assert_eq!(bytes(1_000_000), AMOUNT_BYTES_MIN);
        assert_eq!(choose_amount_bytes(Duration::ZERO, minute, 7), AMOUNT_BYTES);
    }
}
