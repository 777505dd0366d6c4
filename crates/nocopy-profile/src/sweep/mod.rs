//! `nocopy profile sweep`: an amount is received by TCP into buffers of every length, with and without being profiled.
//!
//! ```text
//!   cells: buffer × receive buffer × GRO ─▶ rounds: each cell with and without, in turns ─▶ medians, overhead, sums of figures
//! ```

mod cell;
mod page;
#[cfg(test)]
#[path = "../../../nocopy-report/src/page/reading.rs"]
mod reading;
mod result;
mod table;
mod throughput;

use nocopy_lab::Lab;

use super::instrument::{CAPABILITIES, Instrument, Kernel, SAMPLES_PER_SECOND};
use super::target::Targets;
use crate::Failure;
use crate::arguments::SweepArguments;
use cell::{Cell, Samples, Trial};
use nocopy_bench::stage::Stage;
use nocopy_bench::stream::{Amount, CONGESTION_CONTROL, Transfer};
use nocopy_bench::warn_if_busy;
use nocopy_report::ResultFile;
use nocopy_report::machine;
use nocopy_report::progress::Progress;
use nocopy_report::{Outcome, capability, print, wall_clock};
pub use page::of as page_of;
pub use result::{CellFigures, Range, SCHEMA, Sweep};
pub use table::{text, title};
pub use throughput::of as throughput_of;

const NAME: &str = "profile sweep";

/// From what reads lines to what reads files.
const BUFFERS_BYTES: [usize; 13] = buffers();
/// Of those, every second; 64 KiB is among them.
const QUICK_STEP: usize = 2;

/// As in the experiment this is after (docs/profile.md): what one read can find is bounded by it.
const FIXED_BUFFER_BYTES: usize = 64 << 10;

/// Six: the confidence interval is one of 95 % then.
const ROUNDS: u32 = 6;
const ROUNDS_QUICK: u32 = 3;

const fn buffers() -> [usize; 13] {
    let mut all = [1 << 10; 13];
    let mut index = 1;
    while index < all.len() {
        all[index] = all[index - 1] * 2;
        index += 1;
    }
    all
}

/// What was asked for.
struct Plan {
    bytes: u64,
    rounds: u32,
    cells: Vec<Cell>,
}

impl Plan {
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
            buffers.iter().map(move |&buffer_bytes| Cell { buffer_bytes, receive_buffer_bytes, gro })
        });
        Self { bytes: arguments.bytes, rounds: arguments.rounds.unwrap_or(rounds), cells: cells.collect() }
    }
}

pub fn run(arguments: &SweepArguments) -> Result<Outcome, Failure> {
    let html = arguments.html.as_deref().map(|path| ResultFile::open(path, arguments.force)).transpose()?;
    capability::drop_all_but(CAPABILITIES.union(capability::NETWORK))?;
    let plan = Plan::new(arguments);
    let kernel = Kernel::read()?;
    let stages = [true, false].map(|gro| Stage::of_single_segments(Lab::builder().gro_right(gro)));
    let [with_gro, without_gro] = stages;
    let (with_gro, without_gro) = (with_gro?, without_gro?);
    warn_if_busy();
    let measured = measure(&plan, &kernel, |gro| if gro { &with_gro } else { &without_gro })?;
    capability::drop_all_but(capability::NONE)?;
    let cells = plan.cells.iter().zip(&measured).map(|(cell, samples)| samples.figures(*cell));
    let sweep = Sweep {
        schema: SCHEMA.into(),
        command: arguments.words(),
        measured_at: wall_clock::now(),
        machine: machine::describe("private veth pair".into()),
        bytes: plan.bytes,
        rounds: plan.rounds,
        congestion_control: CONGESTION_CONTROL.into(),
        cells: cells.collect(),
    };
    if let Some(html) = html {
        html.write(&page::of(&sweep))?;
    }
    let text = if arguments.json { sweep.json() } else { text(&sweep) };
    print::summary(&text, false, None, sweep.outcome())
}

/// All rounds, of all cells.
fn measure<'a>(
    plan: &Plan,
    kernel: &Kernel,
    stage: impl Fn(bool) -> &'a Stage,
) -> Result<Vec<Samples>, Failure> {
    let progress = Progress::default();
    progress.expect(u64::from(plan.rounds) * plan.cells.len() as u64);
    let mut all: Vec<Samples> = plan.cells.iter().map(|_| Samples::default()).collect();
    for round in 0..plan.rounds {
        for (cell, samples) in plan.cells.iter().zip(&mut all) {
            progress.start(cell.words());
            // In turns, so that neither is always the second.
            let first = round % 2 == 0;
            for is_profiled in [first, !first] {
                let kernel = is_profiled.then_some(kernel);
                samples.add(play(stage(cell.gro), cell.amount(plan.bytes), kernel)?);
            }
            progress.step();
        }
    }
    Ok(all)
}

fn play(stage: &Stage, amount: Amount, kernel: Option<&Kernel>) -> Result<Trial, Failure> {
    let moved = || nocopy_bench::Failure::step(NAME, "move the amount", "see what its process says");
    let mut transfer = Transfer::prepare(stage, amount).map_err(moved())?;
    let targets = Targets { processes: vec![transfer.receiver_id()], ports: Vec::new() };
    let instrument =
        kernel.map(|kernel| Instrument::attach(kernel, &targets, SAMPLES_PER_SECOND)).transpose()?;
    transfer.run(stage).map_err(moved())?;
    let measured = instrument.map(Instrument::read).transpose()?;
    let reading = transfer.end().map_err(moved())?;
    Ok(Trial { bytes: amount.bytes, elapsed: reading.elapsed, measured })
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
    fn only_the_buffers_that_are_named_are_measured() {
        for quick in [false, true] {
            let arguments = arguments(&[1_000_000, 4096, 4096], quick);
            let plan = Plan::new(&arguments);
            let buffers: Vec<_> = plan.cells.iter().map(|cell| cell.buffer_bytes).collect();
            assert_eq!(buffers, [4096, 1_000_000].repeat(4));
            assert!(arguments.words().contains(" --buffer 1000000 --buffer 4096"), "{}", arguments.words());
        }
    }

    #[test]
    fn every_cell_is_there_once_and_64_kib_always() {
        for (quick, count) in [(false, 13 * 4), (true, 7 * 4)] {
            let plan = Plan::new(&arguments(&[], quick));
            assert_eq!(plan.cells.len(), count);
            assert_eq!(plan.cells.iter().filter(|cell| cell.buffer_bytes == 64 << 10).count(), 4);
            assert_eq!(plan.cells.iter().map(|cell| cell.buffer_bytes).max(), Some(4 << 20));
            let names: std::collections::HashSet<_> = plan.cells.iter().map(Cell::words).collect();
            assert_eq!(names.len(), count);
        }
    }
}
