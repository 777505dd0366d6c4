//! The command line; manual page and completions are made from the same definitions.

mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    ArgMatches, Args, Command as Definition, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell;
use nocopy::filter::{self, Program};

use nocopy_bench::BenchArguments;
use nocopy_profile::ProfileArguments;
use nocopy_transfer::arguments::{
    CallArguments, ModeName, PingArguments, RecvArguments, SendArguments, ServeArguments,
};
use nocopy_transfer::endpoint::{Scheme, Target};

use crate::Failure;
use crate::record::Field;
use nocopy_report::quantity;
pub(crate) use run::RunArguments;

/// Measure and move packets without the copies you did not ask for.
#[derive(Debug, Parser)]
#[command(name = "nocopy", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Those of this process; wrong ones end it, with exit code 2.
    pub(crate) fn read() -> Self {
        Self::try_read(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn try_read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let mut all = Self::command();
        let matches = all.try_get_matches_from_mut(words)?;
        let arguments = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut all))?;
        let place = match &arguments.command {
            Command::Send(send) => Some(Place::of(&send.target)),
            Command::Recv(recv) => Some(Place::at(recv.address.scheme())),
            _ => None,
        };
        if let (Some(place), Some((name, given))) = (place, matches.subcommand())
            && let Some(definition) = all.find_subcommand_mut(name)
        {
            check_place(place, given, definition)?;
        }
        Ok(arguments)
    }
}

/// Where packets, datagrams or streams go to or come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Interface,
    Udp,
    Tcp,
}

impl Place {
    fn of(target: &Target) -> Self {
        match target {
            Target::Interface(_) => Self::Interface,
            Target::Udp(_) => Self::Udp,
            Target::Tcp(_) => Self::Tcp,
        }
    }

    fn at(scheme: Scheme) -> Self {
        match scheme {
            Scheme::Tcp => Self::Tcp,
            Scheme::Udp | Scheme::Message | Scheme::Xdp => Self::Udp,
        }
    }
}

/// Groups of options, by the names of their types; where they mean something; and what they are about.
const GROUPS: [(&str, &[Place], &str); 6] = [
    ("FrameArguments", &[Place::Interface], "it is about packets on an interface, and the target is a host"),
    (
        "HostArguments",
        &[Place::Udp, Place::Tcp],
        "it is about what is sent to a host: name it as udp://HOST:PORT or tcp://HOST:PORT",
    ),
    ("DatagramArguments", &[Place::Udp], "it is about datagrams to a host: name it as udp://HOST:PORT"),
    ("StreamArguments", &[Place::Tcp], "it is about streams to a host: name it as tcp://HOST:PORT"),
    ("DatagramReception", &[Place::Udp], "it is about datagrams: receive at udp://ADDRESS:PORT"),
    ("StreamReception", &[Place::Tcp], "it is about streams: receive at tcp://ADDRESS:PORT"),
];

/// Refuses options that mean nothing for the place.
fn check_place(place: Place, given: &ArgMatches, definition: &mut Definition) -> Result<(), clap::Error> {
    let refused =
        GROUPS.iter().filter(|(_, places, _)| !places.contains(&place)).find_map(|(group, _, why)| {
            let group = definition.get_groups().find(|known| known.get_id() == group)?;
            let mut options = group.get_args();
            let foreign =
                options.find(|id| given.value_source(id.as_str()) == Some(ValueSource::CommandLine))?;
            Some((foreign.clone(), why))
        });
    let Some((foreign, why)) = refused else { return Ok(()) };
    let option = definition.get_arguments().find(|option| *option.get_id() == foreign);
    let option = option.and_then(|option| option.get_long()).unwrap_or(foreign.as_str());
    let message = format!("'--{option}' cannot be used here: {why}");
    Err(definition.error(ErrorKind::ArgumentConflict, message))
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a negative result, 2 an error.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare AF_XDP with the kernel's other ways, on real packets.
    ///
    /// Makes a private lab (a veth pair between two unnamed network namespaces, gone with the process), runs
    /// every method in turn, many times, and prints medians with a confidence interval on each ratio.
    Bench(BenchArguments),
    /// Part of `bench`: one side of a stream.
    #[command(hide = true)]
    BenchPeer {
        /// What to do, as the bench says it.
        task: String,
    },
    /// Part of `bench`: a program that injects frames by libpcap.
    #[command(hide = true)]
    BenchInject {
        /// Where to.
        interface: String,
        /// The frame, in hexadecimal digits.
        frame: String,
    },
    /// Show results that were written as JSON, or compare those of two runs or two machines.
    ///
    /// Of one file: the tables that were printed when it was measured. Of two: each row of both, the ratio of their medians, and whether
    /// it can be told apart from 1.
    Report(ReportArguments),
    /// Say what this machine and its interfaces would let a port do, and what would open what is closed.
    ///
    /// Looks, and changes nothing: it prints the commands that would. Exit code 1 if a port cannot be opened: on INTERFACE, or without
    /// one, on any interface of this machine.
    Doctor(DoctorArguments),
    /// Show what is counted for an interface, live: packets, drops, and AF_XDP sockets of every process.
    ///
    /// Under the names of the kernel and the driver, as rates and totals; a table on a terminal, one line a counter elsewhere.
    /// Looks, and changes nothing. Ends when interrupted.
    Stats(StatsArguments),
    /// Print the packets of an interface, one a line.
    ///
    /// Looks on, and the host keeps its traffic, unless told to take it. Ends when interrupted, with a summary on standard error.
    Sniff(SniffArguments),
    /// Record the packets of an interface into a file, without loss.
    ///
    /// The host keeps its traffic. The kernel's blocks of packets become a pcapng file where they lie, and the disk reads them there.
    /// Ends when interrupted, and says what was received, written and lost. Exit code 1 if packets were lost.
    Record(RecordArguments),
    /// Part of `record`: cuts its file back if it is killed.
    #[command(hide = true)]
    RecordGuard,
    /// Send packets out of an interface, made or replayed from a file; or UDP datagrams or a TCP stream to a host.
    ///
    /// Ends after a count or a time, at the end of the file, or when interrupted, and prints what was handed over, completed and
    /// lost. On an interface, completed is not delivered: only the receiver knows that. To udp://HOST:PORT or tcp://HOST:PORT, where
    /// 'nocopy recv' receives, both ends tell what arrived. Exit code 1 if less was sent than asked for, or arrived than was sent.
    /// Nothing is encrypted: there is no TLS.
    Send(SendArguments),
    /// Receive UDP datagrams or a TCP stream: of 'nocopy send', or with --raw of any program.
    ///
    /// Ends when the sender is done, after a count or a time, or when interrupted, and prints what arrived, was lost, came twice or
    /// out of order. Exit code 1 if anything was lost or damaged, or the sender broke off. Nothing is encrypted: there is no TLS.
    Recv(RecvArguments),
    /// Measure how long messages take there and back: by the message protocol, UDP, TCP, or UDP over AF_XDP.
    ///
    /// 'nocopy serve' answers there. One message is under way at a time. Ends after a count or a time, or when interrupted, and prints
    /// percentiles and a histogram. Exit code 1 if an answer is missing or changed. Nothing is encrypted: there is no TLS.
    Ping(PingArguments),
    /// Answer messages: those of 'nocopy ping' with themselves, requests of 'nocopy call' with themselves or what a program makes of them.
    ///
    /// Ends when interrupted, and prints what was answered. Anybody who reaches the port is answered, and nothing is encrypted.
    Serve(ServeArguments),
    /// Send a request to 'nocopy serve', or any endpoint of the message protocol, and print the response.
    Call(CallArguments),
    /// Say where the time and the copies of a program's network calls go: TCP and UDP, both directions.
    ///
    /// Counts at the kernel's tracepoints and samples its clock while the program runs on as it is. Ends after a time, with the command,
    /// or when interrupted. Looks, and changes nothing; what it costs itself it measures and prints.
    Profile(ProfileArguments),
    /// Part of `profile`: waits until it is watched, and becomes the command.
    #[command(hide = true)]
    ProfileStart {
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Run a program that uses libpcap, such as tcpdump, with nocopy in place of libpcap.
    ///
    /// Preloads a library with libpcap's functions into COMMAND and all it starts; what nocopy cannot do is left to the system's libpcap.
    /// The host keeps its traffic, unless told to take it. Passes signals on, and ends with COMMAND's exit code, 128 + N where signal N ended
    /// it; 125 if nocopy itself failed, 126 if COMMAND cannot be run, 127 if it is not found.
    Run(RunArguments),
    /// Print the manual page.
    Man {
        /// Of this command instead of nocopy itself.
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
pub(crate) struct ReportArguments {
    /// Results of 'nocopy bench --json' or 'nocopy profile sweep --json'.
    #[arg(value_name = "A.json")]
    pub(crate) results: PathBuf,
    /// Compare them with these.
    #[arg(value_name = "B.json")]
    pub(crate) others: Option<PathBuf>,
    /// Write FILE too, a page with charts, for any browser.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Overwrite FILE if it exists.
    #[arg(long, requires = "html")]
    pub(crate) force: bool,
    /// Print the comparison as JSON.
    #[arg(long, requires = "others")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Show every gate of this interface; without it, one line for each interface.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// Print the shell commands that open what is closed, and run none.
    #[arg(long)]
    pub(crate) fix: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    /// Seconds from one refresh to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// End after N refreshes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print the totals as they are now, and end.
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    pub(crate) once: bool,
    /// Show also what has never counted anything.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print a line of JSON for each refresh.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the totals as they are now as OpenMetrics text, and end.
    #[arg(long, conflicts_with_all = ["interval", "count", "json"])]
    pub(crate) openmetrics: bool,
}

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
    /// The filter, as it was given.
    pub(crate) fn words(&self) -> Option<String> {
        (!self.words.is_empty()).then(|| self.words.join(" "))
    }

    /// The filter, compiled.
    pub(crate) fn program(&self) -> Result<Option<Program>, Failure> {
        if let Some(path) = &self.bytecode {
            let text = std::fs::read_to_string(path)
                .map_err(|source| nocopy_report::Failure::Input { path: path.clone(), source })?;
            let parsed = Program::parse(&text);
            return parsed.map(Some).map_err(|source| Failure::Bytecode { path: path.clone(), source });
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
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 200ms, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// Look at no more than N bytes of each packet.
    #[arg(short, long, value_name = "N", value_parser = quantity::bytes)]
    pub(crate) snap: Option<u64>,
    /// Print the link-level header.
    #[arg(short = 'e', long)]
    pub(crate) link: bool,
    /// Print each packet's bytes, too.
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
    /// Only what comes in.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) incoming: bool,
    /// Only what the host sends.
    #[arg(long)]
    pub(crate) outgoing: bool,
    /// Leave the interface as it is: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Take the packets away from the host: all of them, or those that match.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) take: bool,
    /// Take them in this mode or not at all.
    #[arg(long, value_name = "MODE", requires = "take", value_parser = taking_mode())]
    pub(crate) mode: Option<ModeName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeFormat {
    /// Clock time, here.
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
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// Record into FILE; with rotation, into files whose names have a number and a time added.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,
    /// Permissions of the files, octal; unless given, nobody else may read them.
    #[arg(long, value_name = "OCTAL", value_parser = quantity::permissions)]
    pub(crate) permissions: Option<u32>,
    /// What is written.
    #[arg(long, value_enum, default_value_t = RecordFormat::Pcapng)]
    pub(crate) format: RecordFormat,
    /// In payloads, the place of a counter whose gaps are counted: bytes from the beginning, width in bytes (1, 2, 4, 8), byte order.
    #[arg(long, value_name = "OFFSET:WIDTH:be|le", value_parser = Field::parse)]
    pub(crate) sequence: Option<Field>,
    /// Take the packets from the host instead of looking at them: through AF_XDP.
    #[arg(long)]
    pub(crate) take: bool,
    /// Only what comes in, and not what the host sends.
    #[arg(long)]
    pub(crate) incoming: bool,
    /// Leave the interface as it is: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Keep at most so many bytes of a packet.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144), default_value = "262144")]
    pub(crate) snap: u32,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// Begin a new file before this one is larger; at least 1 MiB.
    #[arg(long, value_name = "BYTES", value_parser = rotate_size)]
    pub(crate) rotate_size: Option<u64>,
    /// Begin a new file after so long.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) rotate_time: Option<Duration>,
    /// Keep the last N files, and delete those before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Memory for packets that are not written yet.
    #[arg(long, value_name = "BYTES", value_parser = buffer_size, default_value = "256MiB")]
    pub(crate) buffer: u64,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordFormat {
    /// Packets, with nanosecond times and drop counts.
    Pcapng,
    /// What UDP datagrams carry, back to back.
    Payload,
}

fn rotate_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).and_then(|bytes| match bytes {
        ..1_048_576 => Err("less than 1 MiB".into()),
        _ => Ok(bytes),
    })
}

fn buffer_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).and_then(|bytes| match bytes {
        1_048_576..=3_221_225_472 => Ok(bytes),
        _ => Err("not from 1MiB to 3GiB".into()),
    })
}

/// Of those, the ones in which the host does not have what a port has.
fn taking_mode() -> impl TypedValueParser<Value = ModeName> {
    let taking = ModeName::value_variants().iter().filter(|mode| **mode != ModeName::PacketRing);
    let names = PossibleValuesParser::new(taking.filter_map(ValueEnum::to_possible_value));
    names.map(|name| ModeName::from_str(&name, false).expect("one of them"))
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds from 0.01 to 86400".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_another_kind_of_target_are_refused() {
        let refused = |words: &[&str]| {
            let words = ["nocopy", "send"].iter().chain(words);
            let error = Arguments::try_read(words).map(|_| ()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
            error.to_string()
        };
        for option in
            ["--flows=2", "--vlan=3", "--queue=0", "--replay=x", "--payload=zeros", "--source-port=7"]
        {
            let said = refused(&["udp://localhost:9", option]);
            let name = option.split('=').next().unwrap();
            assert!(said.contains(&format!("'{name}'")) && said.contains("interface"), "{said}");
        }
        let host = ["--stdin", "--file=x", "--method=zerocopy", "--verify", "--raw", "--connect-timeout=1s"];
        for option in host.iter().chain(&["--interface=x"]) {
            let said = refused(&["eth0", option]);
            assert!(said.contains("udp://HOST:PORT"), "{said}");
        }
        for option in ["--streams=2", "--congestion=cubic"] {
            assert!(refused(&["udp://a:9", option]).contains("tcp://HOST:PORT"));
        }
        assert!(refused(&["tcp://a:9", "--interface=x"]).contains("udp://HOST:PORT"));
        let at = |words: &[&str]| Arguments::try_read(["nocopy", "recv"].iter().chain(words)).is_ok();
        assert!(at(&["tcp://:9", "--receive=recv:64KiB"]) && at(&["udp://:9", "--count=1"]));
        assert!(!at(&["udp://:9", "--receive=recv"]) && !at(&["tcp://:9", "--count=1"]));
        let both = ["--count=1", "--size=100", "--rate=5pps", "-4", "--json"];
        for target in ["udp://localhost:9", "tcp://localhost:9", "eth0"] {
            assert!(Arguments::try_read(["nocopy", "send", target].iter().chain(&both)).is_ok(), "{target}");
        }
    }

    /// Proves that the groups, which have their names from the types, have all options of their kind.
    #[test]
    fn the_groups_of_options_are_there() {
        let all = Arguments::command();
        let counts =
            [("send", 0, 17), ("send", 1, 6), ("send", 2, 1), ("send", 3, 2), ("recv", 4, 2), ("recv", 5, 1)];
        for (command, index, count) in counts {
            let (name, ..) = GROUPS[index];
            let group =
                all.find_subcommand(command).unwrap().get_groups().find(|group| group.get_id() == name);
            assert_eq!(group.unwrap().get_args().count(), count, "{name}");
        }
    }

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn packets_are_taken_in_every_mode_but_that_which_leaves_them_to_the_host() {
        for mode in ModeName::value_variants() {
            let name = mode.to_possible_value().unwrap();
            let parsed =
                Arguments::try_parse_from(["nocopy", "sniff", "a", "--take", "--mode", name.get_name()]);
            match parsed.map(|arguments| arguments.command) {
                Ok(Command::Sniff(sniff)) => assert_eq!(sniff.mode, Some(*mode)),
                _ => assert_eq!(*mode, ModeName::PacketRing),
            }
        }
    }

    #[test]
    fn interface_and_peer_come_together() {
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a"]).is_err());
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a", "--peer", "b"]).is_ok());
    }
}
