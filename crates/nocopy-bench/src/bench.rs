//! The rounds: every trial of every series once in each, in rotated order.

use std::time::{Duration, Instant};

use nocopy_report::figure::Figure;
use nocopy_report::progress::Progress;
use nocopy_report::receive_analysis::ReceiveAnalysis;
use nocopy_report::result::Card;
use nocopy_report::result::{Report, Row};
use nocopy_report::result_lines::{Completeness, ResultLines, RunHeader};
use nocopy_report::{Interrupt, ResultFile};

use crate::cpu;
use crate::plan::BenchPlan;
use crate::series::{self, Sample, Series, Trial};
use crate::{Failure, WINDOW_MIN};

/// Time of a trial besides its window: opening sockets, attaching, warming up, draining.
const TRIAL_OVERHEAD: Duration = Duration::from_millis(90);
const WINDOW_MAX: Duration = Duration::from_millis(500);

/// How often a window is measured again because of signals.
const INTERRUPTIONS_MAX: u32 = 100;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundLimits {
    /// The most rounds.
    pub count: u32,
    pub window: Duration,
    /// The time for all rounds; there are fewer rounds if it is not enough.
    pub time: Duration,
}

/// By series, trial and round.
type SamplesByTrial = Vec<Vec<Vec<Sample>>>;

#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub plan: &'a BenchPlan,
    interrupt: &'a Interrupt,
    header: RunHeader,
    pub rows: Vec<Row>,
    receive_analysis: Option<ReceiveAnalysis>,
    card: Option<Card>,
    /// Why parts were left out.
    pub skips: Vec<String>,
    /// A file that also receives the rows.
    lines: Option<ResultLines>,
    pub progress: Progress,
}

impl<'a> Bench<'a> {
    /// Begins a bench, which also writes its results to a file, if given.
    pub(crate) fn begin(
        plan: &'a BenchPlan,
        header: RunHeader,
        file: Option<ResultFile>,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Failure> {
        let lines = file.map(|file| ResultLines::begin_with_header(file, &header)).transpose()?;
        Ok(Self {
            plan,
            interrupt,
            header,
            rows: Vec::new(),
            receive_analysis: None,
            card: None,
            skips: Vec::new(),
            lines,
            progress: Progress::default(),
        })
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.was_interrupted()
    }

    /// The results, how the bench ended, and whether they could be written.
    pub(crate) fn end(
        self,
        measured: &Result<(), Failure>,
        mut notes: Vec<String>,
    ) -> (Report, Result<(), Failure>) {
        let ended = match measured {
            Ok(()) => Completeness::Complete,
            Err(failure) => {
                let rows = self.rows.len();
                notes.insert(0, format!("INCOMPLETE: it ended early, with {rows} rows: {failure}"));
                Completeness::Interrupted
            }
        };
        notes.extend(self.skips);
        let written = self.lines.map_or(Ok(()), |lines| lines.write_end(ended, &notes));
        let report = self.header.into_report(notes, self.rows);
        let report = Report { receive_analysis: self.receive_analysis, card: self.card, ..report };
        (report, written.map_err(Failure::from))
    }

    pub(crate) fn add_receive_analysis(&mut self, analysis: ReceiveAnalysis) -> Result<(), Failure> {
        self.lines.as_mut().map_or(Ok(()), |lines| lines.write_receive_analysis(&analysis))?;
        self.receive_analysis = Some(analysis);
        Ok(())
    }

    pub(crate) fn add_card(&mut self, card: Card) -> Result<(), Failure> {
        self.lines.as_mut().map_or(Ok(()), |lines| lines.write_card(&card))?;
        self.card = Some(card);
        Ok(())
    }

    /// Measures series in rounds, each of all series, within about `seconds`.
    pub(crate) fn run_series(&mut self, all: Vec<Series<'_>>, seconds: u64) -> Result<(), Failure> {
        self.run_series_renamed(all, seconds, |_| {})
    }

    /// As `run_series`, with rows renamed by `name`.
    pub(crate) fn run_series_renamed(
        &mut self,
        mut all: Vec<Series<'_>>,
        seconds: u64,
        name: impl Fn(&mut Row),
    ) -> Result<(), Failure> {
        match self.plan_rounds(&mut all, seconds) {
            Some(rounds) => self.run_rounds(&all, rounds, name),
            None => Ok(()),
        }
    }

    /// As `run_series`, with rows of the same rounds for several figures, whatever the series measure.
    pub(crate) fn run_series_for_figures(
        &mut self,
        mut all: Vec<Series<'_>>,
        figures: &[Figure],
        seconds: u64,
    ) -> Result<(), Failure> {
        let Some(rounds) = self.plan_rounds(&mut all, seconds) else { return Ok(()) };
        let (samples, outcome) = self.collect_samples(&all, rounds);
        for figure in figures {
            all.iter_mut().for_each(|series| series.figure = *figure);
            self.add_rows(&all, &samples, |_| {})?;
        }
        outcome
    }

    /// Removes what is not to be measured, and returns the rounds of each series; `None`: nothing is left.
    fn plan_rounds(&self, all: &mut Vec<Series<'_>>, seconds: u64) -> Option<RoundLimits> {
        let (plan, time) = (self.plan, self.plan.halve_if_quick(Duration::from_secs(seconds)));
        for series in &mut *all {
            series.trials.retain(|trial| plan.includes_method(trial.method));
        }
        all.retain(|series| !series.trials.is_empty());
        let trials = Some(count_trials(all)).filter(|trials| *trials > 0)?;
        let by_time = || window_length(time, plan.rounds, trials);
        let window = plan.window.unwrap_or_else(by_time);
        self.progress.add_expected_steps(u64::from(plan.rounds) * trials as u64);
        Some(RoundLimits { count: plan.rounds, window, time })
    }

    /// Adds the rows of the rounds, named by `name`; also after an interruption.
    pub(crate) fn run_rounds(
        &mut self,
        all: &[Series<'_>],
        rounds: RoundLimits,
        name: impl Fn(&mut Row),
    ) -> Result<(), Failure> {
        let (samples, outcome) = self.collect_samples(all, rounds);
        self.add_rows(all, &samples, name)?;
        outcome
    }

    /// The samples of each trial of each series, also after an interruption.
    fn collect_samples(
        &self,
        all: &[Series<'_>],
        rounds: RoundLimits,
    ) -> (SamplesByTrial, Result<(), Failure>) {
        let mut samples: SamplesByTrial =
            all.iter().map(|series| series.trials.iter().map(|_| Vec::new()).collect()).collect();
        let outcome = self.measure_rounds(all, rounds, &mut samples);
        (samples, outcome)
    }

    fn add_rows(
        &mut self,
        all: &[Series<'_>],
        samples: &SamplesByTrial,
        name: impl Fn(&mut Row),
    ) -> Result<(), Failure> {
        for mut row in
            all.iter().zip(samples).flat_map(|(series, samples)| series::result_rows(series, samples))
        {
            name(&mut row);
            self.lines.as_mut().map_or(Ok(()), |lines| lines.write_row(&row))?;
            self.rows.push(row);
        }
        Ok(())
    }

    /// At least one round; fewer than planned rather than longer than allowed.
    fn measure_rounds(
        &self,
        all: &[Series<'_>],
        rounds: RoundLimits,
        samples: &mut SamplesByTrial,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        for round in 0..rounds.count {
            for (series, samples) in all.iter().zip(&mut *samples) {
                self.run_round(series, round as usize, rounds.window, samples)?;
            }
            let a_round = start.elapsed() / (round + 1);
            if start.elapsed() + a_round > rounds.time + rounds.time / 10 {
                self.progress.skip_steps(u64::from(rounds.count - 1 - round) * count_trials(all) as u64);
                break;
            }
        }
        Ok(())
    }

    fn run_round(
        &self,
        series: &Series<'_>,
        round: usize,
        window: Duration,
        samples: &mut [Vec<Sample>],
    ) -> Result<(), Failure> {
        let count = series.trials.len();
        for index in (0..count).map(|offset| (round + offset) % count) {
            let trial = &series.trials[index];
            let variant = trial.variant.as_deref().unwrap_or_default();
            self.progress.show_current_step(format!("{}: {} {variant}", series.title, trial.method));
            samples[index].push(self.take_sample(trial, window)?);
            self.progress.complete_step();
        }
        Ok(())
    }

    /// One sample. If a signal interrupted a call in the window (the bench was stopped and continued), the
    /// window is measured again.
    fn take_sample(&self, trial: &Trial<'_>, window: Duration) -> Result<Sample, Failure> {
        let mut interruptions = 0;
        loop {
            if let Some(cable) = &self.plan.cable {
                cable.lab.wait_for_carrier()?; // some drivers reset the link when a program comes or goes
            }
            let (start, stolen) = (Instant::now(), cpu::stolen_time());
            let mut sample = (trial.run)(window);
            if let (Ok(sample), Ok(before), Ok(after)) = (&mut sample, stolen, cpu::stolen_time()) {
                let whole =
                    start.elapsed() * u32::try_from(self.header.machine.processors).unwrap_or(1).max(1);
                sample.traffic.stolen_percent = 100.0 * (after - before).as_secs_f64() / whole.as_secs_f64();
            }
            match sample {
                _ if self.interrupt.was_interrupted() => return Err(Failure::Interrupted),
                Err(failure) if failure.is_interrupted() && interruptions < INTERRUPTIONS_MAX => {
                    interruptions += 1;
                }
                done => return done,
            }
        }
    }
}

fn count_trials(all: &[Series<'_>]) -> usize {
    all.iter().map(|series| series.trials.len()).sum()
}

fn window_length(budget: Duration, rounds: u32, trials: usize) -> Duration {
    let share = budget / rounds.saturating_mul(u32::try_from(trials).unwrap_or(u32::MAX)).max(1);
    share.saturating_sub(TRIAL_OVERHEAD).clamp(WINDOW_MIN, WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_the_budget_within_limits() {
        let budget = Duration::from_secs(30);
        let window = window_length(budget, 9, 8);
        assert!((window + TRIAL_OVERHEAD) * 72 <= budget);
        assert_eq!(window_length(budget, 1000, 22), WINDOW_MIN);
        assert_eq!(window_length(budget, 1, 1), WINDOW_MAX);
    }
}
