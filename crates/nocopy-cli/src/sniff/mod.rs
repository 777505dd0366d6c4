//! `nocopy sniff`: the packets of an interface, one a line.

mod clock;
mod export;
mod source;
mod summary;

use std::io::{self, BufWriter, Write};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::arguments::SniffArguments;
use export::PacketExporter;
use nocopy_report::live::LiveLine;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print, quantity};
use source::{PacketSource, ReceiveResult};
use summary::{CaptureEnd, PacketCounts};

/// How long to wait for packets before looking whether it is time to end, or to draw the live line.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Bytes of printed lines that are written at once while packets keep arriving.
const OUTPUT_BYTES: usize = 64 << 10;

pub(crate) fn run(arguments: &SniffArguments) -> Result<Outcome, Failure> {
    let filter = arguments.filter.filter_program()?;
    capability::drop_all_but(capability::NETWORK)?;
    let interrupt = Interrupt::catch()?;
    let mut source = PacketSource::open(arguments, filter.as_ref())?;
    capability::drop_all_but(capability::NONE)?;
    print::print_status(format_args!("listening on {}: {}", arguments.interface, source.description()));
    let mut sniffer = Sniffer::new(arguments, source, interrupt);
    let mut output = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout().lock());
    let ended = sniffer.print_packets_until_end(&mut output);
    if !ended.as_ref().is_err_and(Failure::is_broken_pipe) {
        sniffer.print_summary(*ended.as_ref().unwrap_or(&CommandEnd::Failed), &mut output)?;
    }
    ended.map(|_| Outcome::Positive)
}

struct Sniffer<'a> {
    arguments: &'a SniffArguments,
    source: PacketSource,
    interrupt: Interrupt,
    exporter: PacketExporter,
    count: PacketCounts,
    began: Instant,
}

impl<'a> Sniffer<'a> {
    fn new(arguments: &'a SniffArguments, source: PacketSource, interrupt: Interrupt) -> Self {
        let (exporter, count) = (PacketExporter::new(arguments), PacketCounts::default());
        Self { arguments, source, interrupt, exporter, count, began: Instant::now() }
    }

    /// Prints packets until `--count` is reached, the time is over, the user interrupts, or the interface
    /// fails.
    fn print_packets_until_end(&mut self, output: &mut impl Write) -> Result<CommandEnd, Failure> {
        let mut live = self.arguments.quiet.then(|| LiveRates::new(&mut self.source));
        let ended = loop {
            let timeout = match self.time_left() {
                _ if self.interrupt.was_interrupted() => break CommandEnd::Interrupted,
                _ if self.is_count_reached() => break CommandEnd::Count,
                None => break CommandEnd::Duration,
                Some(timeout) => timeout,
            };
            // Printed lines are flushed before each wait, and only then.
            if self.receive_batch(Duration::ZERO, output)? == ReceiveResult::Nothing {
                output.flush().map_err(nocopy_report::Failure::Print)?;
                self.receive_batch(timeout.min(WAIT_MAX), output)?;
            }
            if let Some(live) = &mut live {
                live.update(&mut self.source, &self.count);
            }
        };
        output.flush().map_err(nocopy_report::Failure::Print)?;
        Ok(ended)
    }

    fn is_count_reached(&self) -> bool {
        self.arguments.count.is_some_and(|count_max| self.count.packets >= count_max)
    }

    /// `None` when the time is up.
    fn time_left(&self) -> Option<Duration> {
        match self.arguments.duration {
            Some(duration) => duration.checked_sub(self.began.elapsed()),
            None => Some(Duration::MAX),
        }
    }

    fn receive_batch(
        &mut self,
        timeout: Duration,
        output: &mut impl Write,
    ) -> Result<ReceiveResult, Failure> {
        let Self { arguments, source, exporter, count, .. } = self;
        source.receive_packets(timeout, &mut |packet| {
            if arguments.count.is_some_and(|count_max| count.packets >= count_max) {
                return Ok(());
            }
            count.count_packet(&packet);
            Ok(exporter.print_packet(&packet, output).map_err(nocopy_report::Failure::Print)?)
        })
    }

    /// Prints the summary, also after an error.
    fn print_summary(&mut self, ended: CommandEnd, output: &mut impl Write) -> Result<(), Failure> {
        let Self { arguments, source, count, began, .. } = self;
        let end = CaptureEnd {
            interface: &arguments.interface,
            ended,
            elapsed: began.elapsed(),
            drops: source.drop_counters(),
        };
        let text = nocopy_report::summary::summary_text(&count.capture_summary(&end, source), arguments.json);
        if arguments.json {
            let written = output.write_all(text.as_bytes()).and_then(|()| output.flush());
            return Ok(written.map_err(nocopy_report::Failure::Print)?);
        }
        print::print_status(text.trim_end());
        Ok(())
    }
}

/// The rates since they were last drawn.
struct LiveRates {
    line: LiveLine,
    packets: u64,
    bytes: u64,
    dropped: u64,
}

impl LiveRates {
    fn new(source: &mut PacketSource) -> Self {
        Self { line: LiveLine::default(), packets: 0, bytes: 0, dropped: source.drop_counters().dropped() }
    }

    fn update(&mut self, source: &mut PacketSource, count: &PacketCounts) {
        let Self { line, packets, bytes, dropped } = self;
        line.update(Instant::now(), |since| {
            let seconds = since.as_secs_f64();
            let rate = |now: u64, before: &mut u64| {
                now.saturating_sub(std::mem::replace(before, now)) as f64 / seconds
            };
            let packet_rate = quantity::short_number(rate(count.packets, packets));
            let bit_rate = quantity::short_number(rate(count.bytes, bytes) * 8.0);
            let lost = source.drop_counters().dropped();
            let drop_rate = quantity::short_number(rate(lost, dropped));
            format!("{packet_rate} packets/s  {bit_rate} bit/s  {drop_rate} drops/s  {lost} dropped in all")
        });
    }
}
