//! The command line; manual page and completions are made from the same definitions.

pub(crate) mod foreign_options;
mod run;
mod serve;
mod target;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nocopy::filter::{self, Program};

use nocopy_bench::{BenchArguments, ChildKind};
use nocopy_nfs::command::{CatArguments, CpArguments, LsArguments};
use nocopy_profile::ProfileArguments;
use nocopy_transfer::arguments::{
    CallArguments, PingArguments, PortModeArgument, RecvArguments, SendArguments,
};

use crate::Failure;
use crate::record::sequence::SequenceField;
use nocopy_report::{input_file, quantity};
pub(crate) use run::RunArguments;
pub(crate) use serve::{ServeChoice, ServiceArguments};

/// Measure and move packets without the copies you did not ask for.
#[derive(Debug, Parser)]
#[command(name = "nocopy", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The arguments of this process. Wrong arguments end the process with exit code 2.
    pub(crate) fn parse_or_exit() -> Self {
        Self::try_parse_words(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn try_parse_words(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, clap::Error> {
        let mut all = Self::command();
        let typed: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let name = typed.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        let Some(command) = all.find_subcommand(name) else {
            let matches =
                all.try_get_matches_from_mut(&typed).map_err(foreign_options::add_foreign_program_advice)?;
            return Self::from_arg_matches(&matches).map_err(|error| error.format(&mut all));
        };
        let translated = foreign_options::translate_words(&typed, command);
        let as_options: Vec<OsString> =
            translated.words.iter().map(|word| target::target_url_as_option(word, command)).collect();
        let matches = all.try_get_matches_from_mut(&as_options);
        let matches = matches.map_err(|error| match all.find_subcommand(name) {
            Some(command) => {
                let error = target::add_target_tip(error, command, &as_options);
                foreign_options::add_foreign_option_hint(error, command, &typed, &translated)
            }
            None => error,
        })?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut all))
    }
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a negative result, 2 an error.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare nocopy with other ways to move data on this machine, with real packets.
    ///
    /// Sends over a private network (a veth pair between two network namespaces of its own, which end with
    /// the process), runs every method in turn, many times, and prints medians, and each ratio with its 95 %
    /// confidence interval. Needs root.
    Bench(BenchArguments),
    /// Part of `bench`: a process that it starts.
    #[command(hide = true)]
    BenchChild {
        /// What it does.
        kind: ChildKind,
        /// The task, written by the bench.
        task: String,
    },
    /// Show results that 'nocopy bench' or 'nocopy profile sweep' wrote as JSON, or compare two of them.
    ///
    /// One file: the tables that were printed when it was measured. Two files: for each row in both, the
    /// ratio of the medians, and whether it differs significantly from 1.
    Report(ReportArguments),
    /// Show which fast paths (AF_XDP, zero-copy, io_uring) this machine and its interfaces allow, and how to
    /// enable the others.
    ///
    /// Changes nothing: it prints the commands that would. A port is how nocopy sends and receives the
    /// packets of an interface. Exit code 1 if no port can be opened on INTERFACE, or without INTERFACE on
    /// any interface of this machine.
    Doctor(DoctorArguments),
    /// Show the counters of interfaces, live: packets, drops, and AF_XDP sockets of every process.
    ///
    /// On a terminal a table of rates by interface, queue and socket. Keys: s sorts by the next column, r
    /// reverses the order, a shows all lines or only those that counted something, q quits. At the end it
    /// prints one line with the totals of the run. Without a terminal each counter is a line, under the names
    /// of the kernel and the driver. Changes nothing. Ends when interrupted.
    Stats(StatsArguments),
    /// Print the packets of an interface, one a line.
    ///
    /// The host keeps its traffic, unless --take is given. Ends when interrupted, with a summary on standard
    /// error. Needs root or CAP_NET_RAW.
    Sniff(SniffArguments),
    /// Record the packets of an interface into a file, without loss.
    ///
    /// The host keeps its traffic. The memory that the kernel writes packets to is written to the disk as a
    /// pcapng file, without another copy. Ends when interrupted, and prints what was received, written and
    /// lost. Exit code 1 if packets were lost.
    Record(RecordArguments),
    /// Part of `record`: cuts its file back if it is killed.
    #[command(hide = true)]
    RecordGuard,
    /// Send generated or recorded packets on an interface, or UDP datagrams or a TCP stream to a host.
    ///
    /// Ends after a count or a time, at the end of the file, or when interrupted, and prints what was handed
    /// over, completed and lost. On an interface, completed is not delivered: only the receiver knows that.
    /// To udp://HOST:PORT or tcp://HOST:PORT, where 'nocopy recv' receives, both ends print what arrived.
    /// Exit code 1 if less was sent than asked for, or arrived than was sent. Nothing is encrypted: there is
    /// no TLS.
    Send(Box<SendArguments>),
    /// Receive UDP datagrams or a TCP stream from 'nocopy send', or with --raw from any program.
    ///
    /// Ends when the sender is done, after a count or a time, or when interrupted, and prints what arrived,
    /// was lost, came twice or out of order. Exit code 1 if anything was lost or damaged, or the sender ended
    /// early. Nothing is encrypted: there is no TLS.
    Recv(RecvArguments),
    /// Measure round-trip times to 'nocopy serve': by messages, UDP, TCP, or UDP over AF_XDP.
    ///
    /// 'nocopy serve' must run at the other end. One message is in flight at a time. Ends after a count or a
    /// time, or when interrupted, and prints percentiles and a histogram. Exit code 1 if an answer is missing
    /// or changed. Nothing is encrypted: there is no TLS.
    Ping(PingArguments),
    /// Answer 'nocopy ping' and 'nocopy call': send each message back, or what a program makes of it; or
    /// serve a directory by NFS.
    ///
    /// Ends when interrupted, and prints what was answered. Every client that reaches the port is answered,
    /// and nothing is encrypted. 'nocopy serve nfs DIR' serves a directory instead.
    Serve(ServeChoice),
    /// Send a request to 'nocopy serve', or to any program that speaks nocopy's message protocol, and print
    /// the response.
    Call(CallArguments),
    /// List directories of an NFS server, without a mount: nfs://HOST/PATH.
    ///
    /// NFS version 3 over TCP. Needs no privileges; as root it uses a source port below 1024, which some
    /// servers demand. Nothing is encrypted.
    Ls(LsArguments),
    /// Print files of an NFS server, without a mount: nfs://HOST/PATH.
    ///
    /// Many reads are in flight; the bytes are printed in their order. Nothing is encrypted.
    Cat(CatArguments),
    /// Copy files from an NFS server or to one, without a mount: nfs://HOST/PATH.
    ///
    /// A file is copied to NAME.nocopy-part and renamed when it is complete and on the disk. If the server
    /// restarts in between, data that it lost is sent again. Prints what was copied. Exit code 1 if anything
    /// could not be copied. Nothing is encrypted.
    Cp(CpArguments),
    /// Show where a program's network calls (TCP and UDP, both directions) spend time and copy bytes.
    ///
    /// BPF programs count at the kernel's tracepoints and sample the processors while the program runs
    /// unchanged. Ends after a time, with the command, or when interrupted. Measures and prints its own
    /// overhead, too. Needs root.
    Profile(ProfileArguments),
    /// Part of `profile`: waits until it is watched, and becomes the command.
    #[command(hide = true)]
    ProfileStart {
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run a program unchanged with nocopy: one that uses libpcap, such as tcpdump, or with --batch-udp one
    /// that sends datagrams.
    ///
    /// Preloads (LD_PRELOAD) a library with libpcap's functions into COMMAND and all it starts; what nocopy
    /// cannot do is left to the system's libpcap. The host keeps its traffic, unless --take is given. With
    /// --batch-udp another library is preloaded, which joins datagrams of equal length and destination to
    /// bursts (UDP_SEGMENT). Passes signals on, and ends with COMMAND's exit code, 128 + N where signal N
    /// ended it; 125 if nocopy itself failed, 126 if COMMAND cannot be run, 127 if it is not found.
    Run(RunArguments),
    /// Print the manual page.
    Man {
        /// Print the page of this command instead of that of nocopy.
        command: Option<String>,
        /// Write the pages of nocopy and of all its commands into this directory instead.
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
        output: Option<PathBuf>,
    },
    /// Print the completions for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("pages").args(["html", "markdown"]).multiple(true))]
pub(crate) struct ReportArguments {
    /// Results of 'nocopy bench --json' or 'nocopy profile sweep --json'.
    #[arg(value_name = "A.json")]
    pub(crate) results: PathBuf,
    /// Compare them with these results.
    #[arg(value_name = "B.json")]
    pub(crate) others: Option<PathBuf>,
    /// Write FILE too, a page with charts, for any browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write FILE too, a page of Markdown tables, for the documents of a repository.
    #[arg(long, value_name = "FILE", conflicts_with = "others")]
    pub(crate) markdown: Option<PathBuf>,
    /// Overwrite FILE if it exists.
    #[arg(long, requires = "pages")]
    pub(crate) force: bool,
    /// Print the comparison as JSON.
    #[arg(long, requires = "others")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Show every condition of the fast paths for this interface; without it, one line for each interface.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// Print the shell commands that enable what is missing, and run none of them.
    #[arg(long)]
    pub(crate) fix: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// The interface, of this network namespace; without it, all of them.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// From one refresh to the next: 1s, 500ms, 1m.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_refresh_interval)]
    pub(crate) interval: Duration,
    /// End after N refreshes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print the totals as they are now, and end.
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    pub(crate) once: bool,
    /// Show also counters that are still 0.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print a line of JSON for each interface and refresh.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the totals as they are now as OpenMetrics text, and end.
    #[arg(long, conflicts_with_all = ["interval", "count", "json"])]
    pub(crate) openmetrics: bool,
}

/// More than the longest filter of the kernel has.
const BYTECODE_BYTES_MAX: usize = 1 << 20;

/// Which packets a capture is of.
#[derive(Debug, Args)]
pub(crate) struct FilterArguments {
    /// Only packets that match, in the words of pcap-filter(7): 'udp port 9000 and host 10.0.0.1'.
    #[arg(value_name = "FILTER")]
    words: Vec<String>,
    /// Only packets that match the filter in FILE, compiled as by 'tcpdump -ddd'.
    #[arg(long, value_name = "FILE", conflicts_with = "words")]
    bytecode: Option<PathBuf>,
}

impl FilterArguments {
    pub(crate) fn filter_expression(&self) -> Option<String> {
        (!self.words.is_empty()).then(|| self.words.join(" "))
    }

    pub(crate) fn filter_program(&self) -> Result<Option<Program>, Failure> {
        if let Some(path) = &self.bytecode {
            let text = input_file::read_or_refuse_long(path, BYTECODE_BYTES_MAX)?;
            let parsed = Program::parse(&String::from_utf8_lossy(&text));
            return parsed
                .map(Some)
                .map_err(|source| Failure::Bytecode { path: input_file::display_name(path), source });
        }
        match self.words.join(" ") {
            words if words.trim().is_empty() => Ok(None),
            words => Ok(Some(filter::compile(&words)?)),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SniffArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE", value_parser = parse_interface_name)]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 200ms, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Read no more than N bytes of each packet.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_bytes)]
    pub(crate) snap: Option<u64>,
    /// Print the link-level header.
    #[arg(short = 'e', long)]
    pub(crate) link: bool,
    /// Print the bytes of each packet, too, in hexadecimal.
    #[arg(short = 'x', long)]
    pub(crate) hex: bool,
    /// Print well-known ports by name.
    #[arg(long)]
    pub(crate) names: bool,
    /// Print no packets, but rates while it runs (on a terminal), and the summary.
    #[arg(short, long, conflicts_with_all = ["link", "hex", "names", "time", "relative"])]
    pub(crate) quiet: bool,
    /// How to print times.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "local")]
    pub(crate) time: TimeFormat,
    /// Print times since the first packet: '--time relative'.
    #[arg(long, conflicts_with = "time")]
    pub(crate) relative: bool,
    /// Print a line of JSON for each packet, and for the summary.
    #[arg(long, conflicts_with_all = ["time", "relative"])]
    pub(crate) json: bool,
    /// Only incoming packets, not those that the host sends.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) incoming: bool,
    /// Only packets that the host sends.
    #[arg(long)]
    pub(crate) outgoing: bool,
    /// Do not make the interface promiscuous: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Take the packets from the host, which then does not see them: all of them, or those that match FILTER.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) take: bool,
    /// With --take: use this mode, and fail if it is not available (default: the fastest that is).
    #[arg(long, value_name = "MODE", requires = "take", value_parser = take_mode_parser())]
    pub(crate) mode: Option<PortModeArgument>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeFormat {
    /// Clock time, in the time zone of this machine.
    Local,
    /// Clock time, in UTC.
    Utc,
    /// Seconds since 1970.
    Epoch,
    /// Seconds since the first packet.
    Relative,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE", value_parser = parse_interface_name)]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// Record into FILE ('-': standard output); with rotation, into files whose names have a number and a
    /// time added. A pipe gets each packet within 0.1 s.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,
    /// Permissions of the files, octal, such as 640 (default: 600, only the owner may read them).
    #[arg(long, value_name = "OCTAL", value_parser = quantity::parse_permissions)]
    pub(crate) permissions: Option<u32>,
    /// What is written.
    #[arg(long, value_enum, default_value_t = RecordFormat::Pcapng)]
    pub(crate) format: RecordFormat,
    /// Count the gaps of a sequence number in UDP payloads: its place in bytes from the start of the payload,
    /// its width in bytes (1, 2, 4 or 8), its byte order.
    #[arg(long, value_name = "OFFSET:WIDTH:be|le", value_parser = SequenceField::parse)]
    pub(crate) sequence: Option<SequenceField>,
    /// Take the packets from the host, which does not see them then: through AF_XDP.
    #[arg(long)]
    pub(crate) take: bool,
    /// Only incoming packets, not those that the host sends.
    #[arg(long)]
    pub(crate) incoming: bool,
    /// Do not make the interface promiscuous: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Keep at most this many bytes of each packet.
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<u32>(1..=256 << 10), default_value = "256KiB")]
    pub(crate) snap: u32,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Begin a new file before the file is larger than this; at least 1MiB.
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<u64>(1 << 20..=1 << 60))]
    pub(crate) rotate_size: Option<u64>,
    /// Begin a new file after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub(crate) rotate_time: Option<Duration>,
    /// Keep the last N files, and delete older ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Memory for packets that are received and not written yet.
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<u64>(1 << 20..=3 << 30), default_value = "256MiB")]
    pub(crate) buffer: u64,
    /// Print the summary as JSON; on standard error if --output is '-'.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordFormat {
    /// Packets, with nanosecond times and drop counts.
    Pcapng,
    /// The payloads of UDP datagrams, back to back.
    Payload,
}

/// An interface whose packets are captured.
fn parse_interface_name(name: &str) -> Result<String, String> {
    match name {
        "any" => {
            Err("all interfaces together are not captured: name one, or start one command for each".into())
        }
        name => Ok(name.into()),
    }
}

/// The modes in which packets are taken from the host.
fn take_mode_parser() -> impl TypedValueParser<Value = PortModeArgument> {
    let taking =
        PortModeArgument::value_variants().iter().filter(|mode| **mode != PortModeArgument::PacketRing);
    let names = PossibleValuesParser::new(taking.filter_map(ValueEnum::to_possible_value));
    names.map(|name| PortModeArgument::from_str(&name, false).expect("one of them"))
}

fn parse_refresh_interval(text: &str) -> Result<Duration, String> {
    quantity::parse_duration(text).and_then(|interval| match interval.as_millis() {
        10..=86_400_000 => Ok(interval),
        _ => Err("not from 10ms to 1d".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use nocopy_transfer::arguments::SendMethodArgument;

    /// The error of a command line; `None` if it is accepted.
    fn parse_error_text(line: &str) -> Option<String> {
        let error = Arguments::try_parse_words(["nocopy"].into_iter().chain(line.split(' '))).err()?;
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
        Some(error.to_string())
    }

    #[test]
    fn options_of_another_kind_of_target_are_refused() {
        let (frames, host) = ("packets on an interface", "datagrams and streams to a host");
        let (datagrams, stream) = ("datagrams to a host", "streams to a host");
        for (line, words) in [
            ("send udp://a:9 --flows=2", &["--flows", "--udp", frames][..]),
            ("send udp://a:9 --replay=x", &["--replay", "--udp", "--file FILE"]),
            ("send --payload=zeros udp://a:9", &["--payload", "--udp", "--file FILE"]),
            ("send tcp://a:9 --vlan=3", &["--vlan", "--tcp", frames]),
            ("send tcp://a:9 --queue=0", &["--queue", "--tcp", frames]),
            ("send tcp://a:9 --source-port=7", &["--source-port", "--tcp", frames]),
            ("send eth0 --stdin", &["--stdin", "INTERFACE", "--replay FILE"]),
            ("send eth0 --file=x", &["--file", "INTERFACE", "--replay FILE"]),
            ("send eth0 --method=zerocopy", &["--method", "INTERFACE", host]),
            ("send eth0 --verify", &["--verify", "INTERFACE", host]),
            ("send eth0 --raw", &["--raw", "INTERFACE", host]),
            ("send eth0 --connect-timeout=1s", &["--connect-timeout", "INTERFACE", host]),
            ("send eth0 --interface=x", &["--interface", "INTERFACE", "leave it out"]),
            ("send tcp://a:9 --interface=x", &["--interface", "--tcp", datagrams]),
            ("send udp://a:9 --streams=2", &["--streams", "--udp", stream]),
            ("send eth0 --congestion=cubic", &["--congestion", "INTERFACE", stream]),
            ("recv udp://:9 --receive=recv", &["--receive", "--udp", "streams"]),
            ("recv tcp://:9 -c1", &["--count", "--tcp", "datagrams"]),
            ("recv tcp://:9 --interface=x", &["--interface", "--tcp", "datagrams"]),
        ] {
            let said = parse_error_text(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(said.contains("cannot be used with '") && said.contains("tip: "), "{line}: {said}");
            assert!(words.iter().all(|word| said.contains(word)), "{line}: {said}");
        }
    }

    #[test]
    fn methods_require_their_target_and_options() {
        for (line, words) in [
            ("send tcp://a:9 --method=gso", &["--udp <HOST:PORT>", "--method"][..]),
            ("send tcp://a:9 --method=xdp-copy", &["--udp <HOST:PORT>", "--interface"]),
            ("send udp://a:9 --method=xdp-udp", &["--interface <INTERFACE>"]),
            ("send udp://a:9 --method=plain", &["--tcp <HOST:PORT>", "--method"]),
            ("send udp://a:9 --method=published", &["--tcp <HOST:PORT>", "--method"]),
            ("send tcp://a:9 --method=sendfile", &["--file <FILE>"]),
        ] {
            let said = parse_error_text(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(said.contains("not provided"), "{line}: {said}");
            assert!(words.iter().all(|word| said.contains(word)), "{line}: {said}");
        }
        let methods = SendMethodArgument::value_variants().iter().map(|method| method.name());
        for method in methods {
            let goes = |target: &str| parse_error_text(&format!("send {target} --method={method}")).is_none();
            let targets = ["udp://a:9", "udp://a:9 --interface=x", "tcp://a:9", "tcp://a:9 --file=x"];
            assert!(targets.into_iter().any(goes), "{method} goes nowhere");
        }
    }

    #[test]
    fn exactly_one_valid_target_is_required() {
        for (line, word) in [
            ("send", "<INTERFACE|--udp <HOST:PORT>|--tcp <HOST:PORT>>"),
            ("send eth0 udp://a:9", "cannot be used with"),
            ("send udp://a:9 tcp://a:9", "cannot be used with"),
            ("send udp://a:9 udp://b:9", "cannot be used multiple times"),
            ("send sctp://a:9", "udp://HOST:PORT or tcp://HOST:PORT"),
            ("send file://x", "udp://HOST:PORT or tcp://HOST:PORT"),
            ("send udp://", "--udp <HOST:PORT>"),
            ("send tcp://:9", "a host and a port"),
            ("send udp://a", "HOST:PORT"),
            ("recv", "udp://[ADDRESS]:PORT"),
            ("recv eth0", "udp://[ADDRESS]:PORT"),
            ("recv xdp://:9", "udp://[ADDRESS]:PORT"),
            ("recv udp://:9 tcp://:9", "cannot be used with"),
        ] {
            let said = parse_error_text(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(said.contains(word), "{line}: {said}");
        }
    }

    #[test]
    fn the_error_for_a_missing_target_omits_the_method() {
        for line in ["send", "recv", "ping", "call", "serve"] {
            let said = parse_error_text(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(said.contains("not provided") && !said.contains("--method"), "{line}: {said}");
        }
    }

    #[test]
    fn conflicting_or_incomplete_options_are_refused() {
        for (line, words) in [
            ("send tcp://a:9 --streams=2 --raw", ["--streams", "--raw"]),
            ("send tcp://a:9 --streams=2 --stdin", ["--streams", "--stdin"]),
            ("send tcp://a:9 --file=x --stdin", ["--file", "--stdin"]),
            ("send udp://a:9 --raw --verify", ["--raw", "--verify"]),
            ("send eth0 --replay=x --flows=2", ["--replay", "--flows"]),
            ("send eth0 --speed=2x", ["--replay", "not provided"]),
            ("recv udp://:9 --raw --verify", ["--raw", "--verify"]),
            ("recv udp://:9 --force", ["--output", "not provided"]),
        ] {
            let said = parse_error_text(line).unwrap_or_else(|| panic!("{line} is accepted"));
            assert!(words.iter().all(|word| said.contains(word)), "{line}: {said}");
        }
    }

    #[test]
    fn compatible_options_are_accepted() {
        for line in [
            "send eth0 --count=1 --size=100 --rate=5pps -4 --json",
            "send udp://a:9 --count=1 --size=100 --rate=5pps -4 --json",
            "send tcp://a:9 --count=1 --size=100 --rate=5pps -4 --json",
            "send --udp a:9 --raw",
            "send --tcp=[::1]:9 --streams=2 --file=x --method=sendfile",
            "send udp://a:9 --interface=x --method=xdp-udp",
            "send tcp://a:9 --raw --connect-timeout=1s",
            "send eth0 --flows=2 --payload=text:udp://a:9",
            "recv tcp://:9 --receive=recv:64KiB",
            "recv udp://:0 --count=1 --interface=x --raw",
            "recv --udp [::1]:9",
            "ping udp://a:9",
            "serve tcp://:9 udp://:9",
            "serve nfs /srv --listen 10.0.0.1:2049 --allow 10.0.0.0/8 --allow fd00::1 --state /var/x --stable --portmap",
            "ls -l nfs://server/srv nfs://[fd00::1]:2050/ --json --user 1000:100",
            "cat nfs://server/srv/file?nfsport=1&mountport=2 --connections 4 --timeout 1s --hard",
            "cp -r --resume --verify --json nfs://server/srv/a nfs://server/srv/b /tmp",
        ] {
            assert_eq!(parse_error_text(line), None, "{line}");
        }
    }

    #[test]
    fn clap_accepts_the_argument_definitions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn take_accepts_every_mode_but_the_packet_ring() {
        for mode in PortModeArgument::value_variants() {
            let name = mode.to_possible_value().unwrap();
            let parsed =
                Arguments::try_parse_from(["nocopy", "sniff", "a", "--take", "--mode", name.get_name()]);
            match parsed.map(|arguments| arguments.command) {
                Ok(Command::Sniff(sniff)) => assert_eq!(sniff.mode, Some(*mode)),
                _ => assert_eq!(*mode, PortModeArgument::PacketRing),
            }
        }
    }

    #[test]
    fn bench_interface_requires_a_peer() {
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a"]).is_err());
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a", "--peer", "b"]).is_ok());
    }
}
