//! `nocopy record`: packets into files, without loss.

mod blocks;
mod collector;
mod files;
pub(crate) mod guard;
mod ports;
mod progress;
pub(crate) mod sequence;
mod sink;
mod summary;
mod target;

use std::io;
use std::time::Duration;

use nocopy::Capture;
use nocopy::filter::Program;
use nocopy::port::Queues;
use nocopy_proto::errno::ErrorCause;
use nocopy_proto::pcapng::{self, Interface};

use crate::Failure;
use crate::arguments::{RecordArguments, RecordFormat};
use blocks::BlockRecording;
use collector::Collector;
use files::Files;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, input_file, print};
use ports::PortRecording;
use progress::Progress;
use sequence::Gaps;
use sink::Sink;
use summary::{Loss, Summary};
use target::Target;

pub(crate) fn run(arguments: &RecordArguments) -> Result<Outcome, Failure> {
    check_arguments(arguments)?;
    // Before signals are caught: it may be in a pipe that nothing is written to.
    let filter = arguments.filter.program()?;
    let interrupt = Interrupt::catch()?;
    let target = Target::of(arguments);
    let source = PacketSource::open(arguments, filter.as_ref(), target)?;
    capability::drop_all_but(capability::NONE)?;
    let mut sink = Sink::new(Files::new(arguments, &interrupt), file_header(arguments, target))?;
    let recorded = match source {
        PacketSource::Blocks(blocks) => {
            record(BlockRecording::new(blocks, arguments, target), &mut sink, arguments, interrupt)
        }
        PacketSource::Ports(queues) => {
            record(PortRecording::new(queues, arguments, target), &mut sink, arguments, interrupt)
        }
    }?;
    report(arguments, sink, recorded)
}

#[derive(Debug)]
enum PacketSource {
    Blocks(Capture),
    Ports(Queues),
}

impl PacketSource {
    fn open(arguments: &RecordArguments, filter: Option<&Program>, target: Target) -> Result<Self, Failure> {
        match arguments.take {
            true => ports::open(arguments, filter).map(Self::Ports),
            false => blocks::open(arguments, filter, target).map(Self::Blocks),
        }
    }
}

trait Recording {
    fn run(&mut self, sink: &mut Sink, progress: &mut Progress) -> io::Result<()>;
    /// Stops taking packets; returns the losses.
    fn stop(&mut self, sink: &mut Sink, interrupt: &Interrupt) -> io::Result<Loss>;
    /// The memory into which packets are copied, if they are.
    fn collector(&mut self) -> Option<&mut Collector>;
    fn describe(&mut self) -> Description;
}

#[derive(Debug)]
struct Description {
    mode: String,
    evidence: String,
    balance: Option<String>,
    fill_max: f64,
}

#[derive(Debug)]
struct RecordingResult {
    elapsed: Duration,
    loss: Loss,
    gaps: Option<Gaps>,
    description: Description,
    ended: CommandEnd,
    /// The error that ended it, if any.
    failed: io::Result<()>,
}

fn record(
    mut recording: impl Recording,
    sink: &mut Sink,
    arguments: &RecordArguments,
    interrupt: Interrupt,
) -> Result<RecordingResult, Failure> {
    let mut progress = Progress::new(arguments, interrupt);
    let failed = recording.run(sink, &mut progress);
    let (ended, elapsed) = (progress.ended(), progress.elapsed());
    let as_failure = |source| source_failure(arguments, source);
    let loss = recording.stop(sink, progress.interrupt()).map_err(as_failure)?;
    let (mut padding_bytes, mut gaps) = (None, None);
    if let Some(collector) = recording.collector() {
        (padding_bytes, gaps) = (collector.finish(sink).map_err(as_failure)?, collector.gaps());
    }
    let description = recording.describe();
    // Before waiting packets are written, which takes as long as the disk: meanwhile open ports could keep
    // packets from the host.
    drop(recording);
    sink.finish(progress.interrupt());
    if let Some(bytes) = padding_bytes {
        sink.truncate(bytes);
    }
    Ok(RecordingResult { elapsed, loss, gaps, description, ended, failed })
}

/// Prints the summary; the outcome says whether the recording is complete.
fn report(arguments: &RecordArguments, sink: Sink, result: RecordingResult) -> Result<Outcome, Failure> {
    let RecordingResult { elapsed, loss, gaps, description, ended, failed } = result;
    let has_reader_ended = sink.has_lost_reader();
    let summary = Summary {
        interface: &arguments.interface,
        ended: match (&failed, &sink.failed) {
            (Err(_), _) => CommandEnd::Failed,
            (Ok(()), Some(_)) if has_reader_ended => CommandEnd::ByReceiver,
            (Ok(()), Some(_)) => CommandEnd::Failed,
            (Ok(()), None) => ended,
        },
        elapsed,
        mode: description.mode,
        evidence: description.evidence,
        balance: description.balance,
        write_method: write_method(&sink),
        loss,
        written: sink.written,
        not_written: sink.not_written,
        cause: sink.failed.as_ref().map(io::Error::to_string),
        gaps,
        fill_max: description.fill_max,
        files: &sink.files,
    };
    let (path, is_in_order) = (sink.files.path().to_owned(), sink.writer().is_in_order());
    let failure = match (sink.failed.filter(|_| !has_reader_ended), failed) {
        (Some(source), _) if is_in_order => Some(Failure::RecordStream { path, source }),
        (Some(source), _) => Some(Failure::RecordWrite { path, source }),
        (None, Err(source)) => Some(source_failure(arguments, source)),
        (None, Ok(())) => None,
    };
    print::finish(&summary, arguments.json, failure)
}

fn check_arguments(arguments: &RecordArguments) -> Result<(), Failure> {
    let needs = |option, needed, action| Err(Failure::Needs { option, needed, action });
    let has_rotation = arguments.rotate_size.is_some() || arguments.rotate_time.is_some();
    if has_rotation && input_file::is_standard(&arguments.output) {
        return Err(Failure::RotatedOutput);
    }
    if arguments.sequence.is_some() && arguments.format != RecordFormat::Payload {
        return needs("--sequence", "--format payload", "the counter is looked for in payloads");
    }
    if arguments.files.is_some() && !has_rotation {
        return needs("--files", "--rotate-size or --rotate-time", "without rotation there is one file");
    }
    Ok(())
}

fn source_failure(arguments: &RecordArguments, source: io::Error) -> Failure {
    Failure::RecordSource { interface: arguments.interface.clone(), source }
}

fn file_header(arguments: &RecordArguments, target: Target) -> Vec<u8> {
    let application = concat!("nocopy ", env!("CARGO_PKG_VERSION"));
    let text = arguments.filter.words();
    let interface = Interface {
        name: &arguments.interface,
        filter: text.as_deref(),
        snap_bytes: arguments.snap,
        application,
    };
    match arguments.format {
        RecordFormat::Pcapng => pcapng::head(&interface, target.unit_bytes(arguments.format)),
        RecordFormat::Payload => Vec::new(),
    }
}

fn write_method(sink: &Sink) -> String {
    let mut text = sink.writer().method().to_string();
    if let Some(reason) = sink.writer().ring_refused() {
        text += &format!("; io_uring: refused{}", ErrorCause(reason));
    }
    if let Some(reason) = &sink.guard_error {
        text += &format!("; no process would have shortened a file after kill -9{}", ErrorCause(reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::path::Path;

    use clap::{Args, FromArgMatches};
    use nocopy::integration::disk::{SECTOR_BYTES, SectorBuffer, Sectors};

    use super::sink::{Amount, Piece};
    use super::*;

    /// A source that gives one piece, and notes the length of the file when it is closed.
    struct OnePieceSource<'a> {
        file: &'a Path,
        bytes_when_closed: &'a Cell<Option<u64>>,
    }

    impl Recording for OnePieceSource<'_> {
        fn run(&mut self, sink: &mut Sink, _progress: &mut Progress) -> io::Result<()> {
            let sectors = Sectors::Memory(SectorBuffer::new(SECTOR_BYTES)?);
            sink.push(Piece {
                sectors,
                amount: Amount { packets: 1, bytes: 60 },
                received_at: nocopy_report::boot_clock::BootInstant::now(),
            });
            Ok(())
        }

        fn stop(&mut self, _sink: &mut Sink, _interrupt: &Interrupt) -> io::Result<Loss> {
            Ok(Loss { received: 1, ..Loss::default() })
        }

        fn collector(&mut self) -> Option<&mut Collector> {
            None
        }

        fn describe(&mut self) -> Description {
            Description { mode: String::new(), evidence: String::new(), balance: None, fill_max: 0.0 }
        }
    }

    impl Drop for OnePieceSource<'_> {
        fn drop(&mut self) {
            self.bytes_when_closed.set(Some(fs::metadata(self.file).unwrap().len()));
        }
    }

    #[test]
    fn the_source_is_closed_before_waiting_data_is_written() {
        let path = std::env::temp_dir().join(format!("nocopy-record-order-{}", std::process::id()));
        let words = ["record", "nc0", "--format", "payload", "--force", "-o", path.to_str().unwrap()];
        let matches = RecordArguments::augment_args(clap::Command::new("record")).get_matches_from(words);
        let arguments = RecordArguments::from_arg_matches(&matches).unwrap();
        let interrupt = Interrupt::catch().unwrap();
        let files = Files::new(&arguments, &interrupt);
        let mut sink = Sink::new(files, file_header(&arguments, Target::Disk)).unwrap();
        let bytes_when_closed = Cell::new(None);
        let source = OnePieceSource { file: &path, bytes_when_closed: &bytes_when_closed };
        record(source, &mut sink, &arguments, interrupt).unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        fs::remove_file(&path).unwrap();
        assert_eq!(sink.written.packets, 1);
        assert!(bytes_when_closed.get().unwrap() < bytes, "{bytes_when_closed:?} of {bytes}");
    }
}
