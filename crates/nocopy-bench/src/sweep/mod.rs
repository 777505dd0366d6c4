//! `nocopy profile sweep`: an amount is received by TCP into buffers of every length, with and without being
//! profiled.
//!
//! ```text
//!   cells: buffer × receive buffer × GRO ─▶ rounds: each cell with and without, in turns ─▶ medians, overhead, sums of figures
//! ```

mod founding;

use nocopy_lab::Lab;
use nocopy_profile::sweep::{
    CellSamples, CellSettings, SCHEMA, SweepResult, SweepTrial, html_page_of, sweep_text,
};
use nocopy_profile::{KernelTypes, ProfileTargets, ProfilingWindow, SAMPLES_PER_SECOND, SweepArguments};
use nocopy_report::progress::Progress;
use nocopy_report::{Outcome, ResultFile, capability, machine, print, wall_clock};
use rustix::thread::CapabilitySet;

use crate::stage::{CONGESTION_CONTROL, SitePair};
use crate::stream::{AmountTransfer, TransferAmount};
use crate::{Failure, warn_if_busy};
pub(crate) use founding::measure_receive_analysis;

/// Capabilities for profiling and a private network.
pub(crate) const CAPABILITIES: CapabilitySet = nocopy_profile::CAPABILITIES.union(capability::NETWORK);

const NAME: &str = "profile sweep";

/// From the buffer of a program that reads lines to that of a program that copies files.
const BUFFERS_BYTES: [usize; 13] = buffer_lengths();
/// Every second one of them, including 64 KiB.
const QUICK_STEP: usize = 2;

/// As in the original experiment (docs/profile.md): it limits how much one read returns.
const FIXED_BUFFER_BYTES: usize = 64 << 10;

/// With six the confidence interval is one of 95 %.
const ROUNDS: u32 = 6;
const ROUNDS_QUICK: u32 = 3;

const fn buffer_lengths() -> [usize; 13] {
    let mut all = [1 << 10; 13];
    let mut index = 1;
    while index < all.len() {
        all[index] = all[index - 1] * 2;
        index += 1;
    }
    all
}

struct SweepPlan {
    bytes: u64,
    rounds: u32,
    samples_per_second: u32,
    cells: Vec<CellSettings>,
}

impl SweepPlan {
    fn new(arguments: &SweepArguments) -> Self {
        let (step, rounds) = if arguments.quick { (QUICK_STEP, ROUNDS_QUICK) } else { (1, ROUNDS) };
        let of_groups = [None, Some(FIXED_BUFFER_BYTES)]
            .into_iter()
            .flat_map(|receive_buffer_bytes| [true, false].map(|gro| (receive_buffer_bytes, gro)));
        let mut buffers = arguments.buffer.clone();
        if buffers.is_empty() {
            buffers.extend(BUFFERS_BYTES.into_iter().step_by(step));
        }
        buffers.sort_unstable();
        buffers.dedup();
        let cells = of_groups.flat_map(|(receive_buffer_bytes, gro)| {
            buffers.iter().map(move |&buffer_bytes| CellSettings { buffer_bytes, receive_buffer_bytes, gro })
        });
        Self {
            bytes: arguments.bytes,
            rounds: arguments.rounds.unwrap_or(rounds),
            samples_per_second: SAMPLES_PER_SECOND,
            cells: cells.collect(),
        }
    }

    /// Empty results for each cell.
    fn empty_samples(&self) -> Vec<CellSamples> {
        self.cells.iter().map(|_| CellSamples::default()).collect()
    }

    fn sweep_result(&self, command: String, measured: &[CellSamples]) -> SweepResult {
        let cells = self.cells.iter().zip(measured).map(|(cell, samples)| samples.cell_figures(*cell));
        SweepResult {
            schema: SCHEMA.into(),
            command,
            measured_at: wall_clock::now_text(),
            machine: machine::describe_machine("private veth pair".into()),
            bytes: self.bytes,
            rounds: self.rounds,
            congestion_control: CONGESTION_CONTROL.into(),
            cells: cells.collect(),
        }
    }
}

pub fn run(arguments: &SweepArguments) -> Result<Outcome, Failure> {
    let html = arguments.html.as_deref().map(|path| ResultFile::open(path, arguments.force)).transpose()?;
    capability::drop_all_but(CAPABILITIES)?;
    let plan = SweepPlan::new(arguments);
    let kernel = KernelTypes::read()?;
    let stages = [true, false].map(|gro| SitePair::with_single_segments(Lab::builder().gro_right(gro)));
    let [with_gro, without_gro] = stages;
    let (with_gro, without_gro) = (with_gro?, without_gro?);
    warn_if_busy();
    let progress = Progress::default();
    progress.add_expected_steps(u64::from(plan.rounds) * plan.cells.len() as u64);
    let mut measured = plan.empty_samples();
    for round in 0..plan.rounds {
        let stage = |gro| if gro { &with_gro } else { &without_gro };
        measure_round(&plan, round, &kernel, stage, &mut measured, &progress)?;
    }
    drop(progress);
    capability::drop_all_but(capability::NONE)?;
    let sweep = plan.sweep_result(arguments.command_line(), &measured);
    if let Some(html) = html {
        html.write(&html_page_of(&sweep))?;
    }
    let text = if arguments.json { sweep.to_json() } else { sweep_text(&sweep) };
    print::print_summary_text(&text, false, None, sweep.outcome())
}

fn measure_round<'a>(
    plan: &SweepPlan,
    round: u32,
    kernel: &KernelTypes,
    stage: impl Fn(bool) -> &'a SitePair,
    all: &mut [CellSamples],
    progress: &Progress,
) -> Result<(), Failure> {
    for (cell, samples) in plan.cells.iter().zip(all) {
        progress.show_current_step(cell.settings_words());
        // Alternating, so that neither is always the second.
        let first = round.is_multiple_of(2);
        for is_profiled in [first, !first] {
            let profiler = is_profiled.then_some((kernel, plan.samples_per_second));
            samples.add_trial(run_transfer(stage(cell.gro), transfer_amount(*cell, plan.bytes), profiler)?);
        }
        progress.complete_step();
    }
    Ok(())
}

fn transfer_amount(cell: CellSettings, bytes: u64) -> TransferAmount {
    let CellSettings { buffer_bytes, receive_buffer_bytes, .. } = cell;
    TransferAmount { bytes, buffer_bytes, receive_buffer_bytes }
}

/// One transfer; profiled with that many samples a second, if given.
fn run_transfer(
    stage: &SitePair,
    amount: TransferAmount,
    profiler: Option<(&KernelTypes, u32)>,
) -> Result<SweepTrial, Failure> {
    let moved = || Failure::step(NAME, "move the amount", "look at what its process printed");
    let mut transfer = AmountTransfer::start_receiver(stage, amount).map_err(moved())?;
    let targets = ProfileTargets { processes: vec![transfer.receiver_process_id()], ports: Vec::new() };
    let instrument = profiler
        .map(|(kernel, samples_per_second)| ProfilingWindow::open(kernel, &targets, samples_per_second))
        .transpose()?;
    transfer.run_sender(stage).map_err(moved())?;
    let measured = instrument.map(ProfilingWindow::close_and_read).transpose()?;
    let reading = transfer.end_receiver().map_err(moved())?;
    Ok(SweepTrial { bytes: amount.bytes, elapsed: reading.elapsed, measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(buffer: &[usize], quick: bool) -> SweepArguments {
        SweepArguments {
            buffer: buffer.into(),
            quick,
            rounds: None,
            bytes: 1,
            json: false,
            html: None,
            force: false,
        }
    }

    #[test]
    fn only_named_buffers_are_measured() {
        for quick in [false, true] {
            let arguments = arguments(&[1_000_000, 4096, 4096], quick);
            let plan = SweepPlan::new(&arguments);
            let buffers: Vec<_> = plan.cells.iter().map(|cell| cell.buffer_bytes).collect();
            assert_eq!(buffers, [4096, 1_000_000].repeat(4));
            assert!(
                arguments.command_line().contains(" --buffer 1000000 --buffer 4096"),
                "{}",
                arguments.command_line()
            );
        }
    }

    #[test]
    fn cells_are_unique_and_include_64_kib() {
        for (quick, count) in [(false, 13 * 4), (true, 7 * 4)] {
            let plan = SweepPlan::new(&arguments(&[], quick));
            assert_eq!(plan.cells.len(), count);
            assert_eq!(plan.cells.iter().filter(|cell| cell.buffer_bytes == 64 << 10).count(), 4);
            assert_eq!(plan.cells.iter().map(|cell| cell.buffer_bytes).max(), Some(4 << 20));
            let names: std::collections::HashSet<_> =
                plan.cells.iter().map(CellSettings::settings_words).collect();
            assert_eq!(names.len(), count);
        }
    }
}
