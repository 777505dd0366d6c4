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
use nocopy_proto::pcapng::{self, InterfaceDescription};

use crate::Failure;
use crate::arguments::{RecordArguments, RecordFormat};
use blocks::BlockRecorder;
use collector::PacketCollector;
use files::RecordingFiles;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, input_file, print};
use ports::PortRecorder;
use progress::RecordingProgress;
use sequence::SequenceCounters;
use sink::RecordingSink;
use summary::{LossCounters, RecordingSummary};
use target::RecordingTarget;

pub(crate) fn run(arguments: &RecordArguments) -> Result<Outcome, Failure> {
    check_arguments(arguments)?;
    // Before signals are caught: it may be in a pipe that nothing is written to.
    let filter = arguments.filter.filter_program()?;
    let interrupt = Interrupt::catch()?;
    let target = RecordingTarget::from_arguments(arguments);
    let source = PacketSource::open(arguments, filter.as_ref(), target)?;
    capability::drop_all_but(capability::NONE)?;
    let mut sink =
        RecordingSink::new(RecordingFiles::new(arguments, &interrupt), file_header(arguments, target))?;
    let recorded = match source {
        PacketSource::Blocks(blocks) => {
            record(BlockRecorder::new(blocks, arguments, target), &mut sink, arguments, interrupt)
        }
        PacketSource::Ports(queues) => {
            record(PortRecorder::new(queues, arguments, target), &mut sink, arguments, interrupt)
        }
    }?;
    print_summary(arguments, sink, recorded)
}

#[derive(Debug)]
enum PacketSource {
    Blocks(Capture),
    Ports(Queues),
}

impl PacketSource {
    fn open(
        arguments: &RecordArguments,
        filter: Option<&Program>,
        target: RecordingTarget,
    ) -> Result<Self, Failure> {
        match arguments.take {
            true => ports::open_ports(arguments, filter).map(Self::Ports),
            false => blocks::open_capture(arguments, filter, target).map(Self::Blocks),
        }
    }
}

trait PacketRecorder {
    fn run(&mut self, sink: &mut RecordingSink, progress: &mut RecordingProgress) -> io::Result<()>;
    /// Stops taking packets; returns the losses.
    fn stop(&mut self, sink: &mut RecordingSink, interrupt: &Interrupt) -> io::Result<LossCounters>;
    /// The memory into which packets are copied, if they are.
    fn collector(&mut self) -> Option<&mut PacketCollector>;
    fn describe(&mut self) -> RecordingDescription;
}

#[derive(Debug)]
struct RecordingDescription {
    mode: String,
    evidence: String,
    balance: Option<String>,
    fill_max: f64,
}

#[derive(Debug)]
struct RecordingResult {
    elapsed: Duration,
    loss: LossCounters,
    gaps: Option<SequenceCounters>,
    description: RecordingDescription,
    ended: CommandEnd,
    /// The error that ended it, if any.
    failed: io::Result<()>,
}

fn record(
    mut recording: impl PacketRecorder,
    sink: &mut RecordingSink,
    arguments: &RecordArguments,
    interrupt: Interrupt,
) -> Result<RecordingResult, Failure> {
    let mut progress = RecordingProgress::new(arguments, interrupt);
    let failed = recording.run(sink, &mut progress);
    let (ended, elapsed) = (progress.end_reason(), progress.elapsed());
    let as_failure = |source| source_failure(arguments, source);
    let loss = recording.stop(sink, progress.interrupt()).map_err(as_failure)?;
    let (mut padding_bytes, mut gaps) = (None, None);
    if let Some(collector) = recording.collector() {
        (padding_bytes, gaps) = (collector.finish(sink).map_err(as_failure)?, collector.sequence_counters());
    }
    let description = recording.describe();
    // Before waiting packets are written, which takes as long as the disk: meanwhile open ports could keep
    // packets from the host.
    drop(recording);
    sink.finish_writing(progress.interrupt());
    if let Some(bytes) = padding_bytes {
        sink.remove_padding(bytes);
    }
    Ok(RecordingResult { elapsed, loss, gaps, description, ended, failed })
}

/// Prints the summary; the outcome says whether the recording is complete.
fn print_summary(
    arguments: &RecordArguments,
    sink: RecordingSink,
    result: RecordingResult,
) -> Result<Outcome, Failure> {
    let RecordingResult { elapsed, loss, gaps, description, ended, failed } = result;
    let has_reader_ended = sink.has_lost_reader();
    let summary = RecordingSummary {
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
        write_method: describe_write_method(&sink),
        loss,
        written: sink.written,
        not_written: sink.not_written,
        cause: sink.failed.as_ref().map(io::Error::to_string),
        gaps,
        fill_max: description.fill_max,
        files: &sink.files,
    };
    let (path, writes_to_stream) = (sink.files.current_path().to_owned(), sink.writer().writes_to_stream());
    let failure = match (sink.failed.filter(|_| !has_reader_ended), failed) {
        (Some(source), _) if writes_to_stream => Some(Failure::RecordStream { path, source }),
        (Some(source), _) => Some(Failure::RecordWrite { path, source }),
        (None, Err(source)) => Some(source_failure(arguments, source)),
        (None, Ok(())) => None,
    };
    print::print_summary(&summary, arguments.json, failure)
}

fn check_arguments(arguments: &RecordArguments) -> Result<(), Failure> {
    let needs = |option, needed, action| Err(Failure::Needs { option, needed, action });
    let has_rotation = arguments.rotate_size.is_some() || arguments.rotate_time.is_some();
    if has_rotation && input_file::is_standard_stream(&arguments.output) {
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

fn file_header(arguments: &RecordArguments, target: RecordingTarget) -> Vec<u8> {
    let application = concat!("nocopy ", env!("CARGO_PKG_VERSION"));
    let text = arguments.filter.filter_expression();
    let interface = InterfaceDescription {
        name: &arguments.interface,
        filter: text.as_deref(),
        snap_bytes: arguments.snap,
        application,
    };
    match arguments.format {
        RecordFormat::Pcapng => pcapng::file_head(&interface, target.alignment_bytes(arguments.format)),
        RecordFormat::Payload => Vec::new(),
    }
}

fn describe_write_method(sink: &RecordingSink) -> String {
    let mut text = sink.writer().method().to_string();
    if let Some(reason) = sink.writer().io_uring_refusal() {
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

    use super::sink::{FilePiece, PacketAmount};
    use super::*;

    /// A source that gives one piece, and notes the length of the file when it is closed.
    struct OnePieceRecorder<'a> {
        file: &'a Path,
        bytes_when_closed: &'a Cell<Option<u64>>,
    }

    impl PacketRecorder for OnePieceRecorder<'_> {
        fn run(&mut self, sink: &mut RecordingSink, _progress: &mut RecordingProgress) -> io::Result<()> {
            let sectors = Sectors::Memory(SectorBuffer::new(SECTOR_BYTES)?);
            sink.push_piece(FilePiece {
                sectors,
                amount: PacketAmount { packets: 1, bytes: 60 },
                received_at: nocopy_report::boot_clock::BootInstant::now(),
            });
            Ok(())
        }

        fn stop(&mut self, _sink: &mut RecordingSink, _interrupt: &Interrupt) -> io::Result<LossCounters> {
            Ok(LossCounters { received: 1, ..LossCounters::default() })
        }

        fn collector(&mut self) -> Option<&mut PacketCollector> {
            None
        }

        fn describe(&mut self) -> RecordingDescription {
            RecordingDescription {
                mode: String::new(),
                evidence: String::new(),
                balance: None,
                fill_max: 0.0,
            }
        }
    }

    impl Drop for OnePieceRecorder<'_> {
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
        let files = RecordingFiles::new(&arguments, &interrupt);
        let mut sink = RecordingSink::new(files, file_header(&arguments, RecordingTarget::Disk)).unwrap();
        let bytes_when_closed = Cell::new(None);
        let source = OnePieceRecorder { file: &path, bytes_when_closed: &bytes_when_closed };
        record(source, &mut sink, &arguments, interrupt).unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        fs::remove_file(&path).unwrap();
        assert_eq!(sink.written.packets, 1);
        assert!(bytes_when_closed.get().unwrap() < bytes, "{bytes_when_closed:?} of {bytes}");
    }
}
