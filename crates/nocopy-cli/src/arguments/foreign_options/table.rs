//! What people type who come from other programs. The synonyms, the advice in errors, the manual pages and
//! the completions are made from this table.

use super::TargetKind::{Any, Host, Interface};
use super::{ForeignOption, Meaning, TargetKind, ValueMeaning};

const SNIFF: &str = "sniff";
const RECORD: &str = "record";
const CAPTURES: &str = "sniff record";

const TCPDUMP: &str = "tcpdump";
const SHARK: &str = "tshark, dumpcap";
const REPLAY: &str = "tcpreplay";
const IPERF: &str = "iperf3";
const NETCAT: &str = "nc";
const LISTENERS: &str = "iperf3, nc";

#[rustfmt::skip] // a row is a line
pub(super) static FOREIGN_OPTIONS: &[ForeignOption] = &[
    // Captures.
    row(CAPTURES, "tcpdump, tshark, dumpcap", "-i --interface", "INTERFACE", Any, Meaning::Target),
    row(CAPTURES, TCPDUMP, "-n -nn", "", Any, Meaning::Default("addresses and ports are numbers, unless --names is given")),
    row(CAPTURES, TCPDUMP, "-l --line-buffered", "", Any, Meaning::Default("lines are printed as packets come")),
    row(SNIFF, TCPDUMP, "-U --packet-buffered", "", Any, Meaning::Default("lines are printed as packets come")),
    row(RECORD, TCPDUMP, "-U --packet-buffered", "", Any, Meaning::Default("packets are in the file after 0.1 s")),
    row(CAPTURES, TCPDUMP, "--immediate-mode", "", Any, Meaning::Default("packets are not held back")),
    row(CAPTURES, TCPDUMP, "-K --dont-verify-checksums", "", Any, Meaning::Default("checksums are not verified")),
    row(CAPTURES, TCPDUMP, "-p --no-promiscuous-mode", "", Any, Meaning::Word("--no-promiscuous")),
    row(CAPTURES, "tcpdump, tshark, dumpcap", "-s --snapshot-length --snap", "BYTES", Any, Meaning::Value("--snap BYTES; 0: all", snap_option)),
    row(CAPTURES, TCPDUMP, "-Q --direction", "in|out|inout", Any, Meaning::Value("--incoming, --outgoing", direction_option)),
    row(CAPTURES, SHARK, "-a --autostop", "duration:SECONDS|packets:N", Any, Meaning::Value("--duration, --count", autostop_option)),
    row(CAPTURES, SHARK, "-f", "FILTER", Any, Meaning::Hint("write the filter after the interface, without an option")),
    row(CAPTURES, "tshark", "-Y", "FILTER", Any, Meaning::Hint("write a filter of pcap-filter(7) after the interface")),
    row(CAPTURES, TCPDUMP, "-F", "FILE", Any, Meaning::Hint("write the filter after the interface, as \"$(cat FILE)\"; --bytecode FILE takes what 'tcpdump -ddd' prints")),
    row(CAPTURES, TCPDUMP, "-r --read-file", "FILE", Any, Meaning::Hint("packets are captured from an interface; 'tcpdump -r FILE' prints a file, 'nocopy send INTERFACE --replay FILE' sends it")),
    row(CAPTURES, TCPDUMP, "-D --list-interfaces", "", Any, Meaning::Hint("'nocopy doctor' lists the interfaces")),
    row(CAPTURES, TCPDUMP, "-d -dd -ddd", "", Any, Meaning::Hint("'tcpdump -ddd FILTER' prints a filter's code, and --bytecode FILE takes it")),
    row(CAPTURES, TCPDUMP, "-Z --relinquish-privileges", "USER", Any, Meaning::Hint("leave it out: nocopy gives up its privileges once the capture is open")),
    row(CAPTURES, TCPDUMP, "-I --monitor-mode", "", Any, Meaning::Hint("'nocopy run -- tcpdump -I …' captures in monitor mode, by the system's libpcap")),
    row(SNIFF, TCPDUMP, "-X -XX -xx", "", Any, Meaning::Word("--hex")),
    row(SNIFF, TCPDUMP, "-S --absolute-tcp-sequence-numbers", "", Any, Meaning::Default("sequence numbers are the packet's own")),
    row(SNIFF, TCPDUMP, "-tt", "", Any, Meaning::Word("--time=epoch")),
    row(SNIFF, TCPDUMP, "-ttttt", "", Any, Meaning::Word("--relative")),
    row(SNIFF, TCPDUMP, "-t -ttt -tttt", "", Any, Meaning::Hint("use --time local, utc, epoch or relative")),
    row(SNIFF, TCPDUMP, "-v -vv -vvv --verbose", "", Any, Meaning::Hint("use --link, --hex or --json for more about each packet")),
    row(SNIFF, TCPDUMP, "-A", "", Any, Meaning::Hint("use --hex, which prints the characters, too")),
    row(SNIFF, "tshark", "-V", "", Any, Meaning::Hint("use --hex or --json for more about each packet")),
    row(SNIFF, "tshark", "-T", "FORMAT", Any, Meaning::Hint("use --json")),
    row(SNIFF, TCPDUMP, "-w --write", "FILE", Any, Meaning::Hint("'nocopy record INTERFACE --output FILE' writes packets into a file")),
    row(SNIFF, TCPDUMP, "-C -G -W -b", "N", Any, Meaning::Hint("'nocopy record' writes files: --rotate-size, --rotate-time, --files")),
    row(SNIFF, TCPDUMP, "-B --buffer-size", "KIB", Any, Meaning::Hint("leave it out; 'nocopy record' has --buffer")),
    row(RECORD, "tcpdump, tshark, dumpcap", "-w --write", "FILE", Any, Meaning::Option("--output")),
    row(RECORD, TCPDUMP, "-G", "SECONDS", Any, Meaning::Option("--rotate-time")),
    row(RECORD, TCPDUMP, "-C", "MEGABYTES", Any, Meaning::Value("--rotate-size", rotate_size_option)),
    row(RECORD, TCPDUMP, "-W", "N", Any, Meaning::Value("--files N, with -C, without -G", kept_files_option)),
    row(RECORD, TCPDUMP, "-B --buffer-size", "KIB", Any, Meaning::Value("--buffer", buffer_size_option)),
    row(RECORD, SHARK, "-b --ring-buffer", "filesize:KB|files:N|duration:SECONDS", Any, Meaning::Value("--rotate-size, --files, --rotate-time", ring_buffer_option)),
    row(RECORD, TCPDUMP, "-v -vv -vvv --verbose -q", "", Any, Meaning::Default("progress is shown on a terminal, and a summary printed")),
    row(RECORD, TCPDUMP, "-z", "COMMAND", Any, Meaning::Hint("leave it out: a file is complete once the next one exists; run COMMAND then")),
    row(RECORD, "dumpcap", "-P", "", Any, Meaning::Hint("files are pcapng, which the programs that read pcap read, too; 'editcap -F pcap' converts them")),
    row(RECORD, TCPDUMP, "-x -X -A -e", "", Any, Meaning::Hint("'nocopy sniff' prints packets")),
    // Packets from files.
    row("send", "tcpreplay", "-i --intf1", "INTERFACE", Interface, Meaning::Target),
    row("send", "tcpreplay, iperf3", "-i --intf1 --interval", "N", Host, Meaning::Hint("leave it out: routes lead to a host, and the rate is shown on a terminal")),
    row("send", REPLAY, "-t --topspeed", "", Interface, Meaning::Word("--timing=flat-out")),
    row("send", REPLAY, "-M --mbps", "N", Interface, Meaning::Value("--rate", rate_option_from_mbps)),
    row("send", REPLAY, "-p --pps", "N", Interface, Meaning::Value("--rate", rate_option_from_pps)),
    row("send", REPLAY, "-l --loop", "N", Interface, Meaning::Value("--loop N; 0: forever", loop_option)),
    row("send", REPLAY, "-x --multiplier", "FACTOR", Interface, Meaning::Option("--speed")),
    row("send", REPLAY, "-L --limit", "N", Interface, Meaning::Option("--count")),
    row("send", "tcpdump, tshark", "-r --read-file", "FILE", Interface, Meaning::Option("--replay")),
    row("send", "", "--file", "FILE", Interface, Meaning::Hint("use --replay FILE for the packets of a capture file, or --payload file:FILE for the content of generated packets")),
    row("send", "", "--stdin", "", Interface, Meaning::Hint("use --replay FILE for the packets of a capture file; standard input goes to a host: udp://HOST:PORT, tcp://HOST:PORT")),
    row("send", "", "--replay", "FILE", Host, Meaning::Hint("use --file FILE for the bytes of a file, or name an INTERFACE for the packets of a capture file")),
    row("send", "", "--payload", "PAYLOAD", Host, Meaning::Hint("use --file FILE or --stdin for bytes of your own")),
    row("send", "", "--interface", "INTERFACE", Interface, Meaning::Hint("leave it out: the INTERFACE is the target already")),
    row("send", REPLAY, "-o --oneatatime", "", Interface, Meaning::Hint("use --rate 1pps")),
    row("send", REPLAY, "-I --intf2", "INTERFACE", Interface, Meaning::Hint("send on one interface; start a second 'nocopy send' for the other")),
    row("send", REPLAY, "-q --quiet", "", Interface, Meaning::Default("only a summary is printed")),
    row("send", REPLAY, "--stats", "SECONDS", Interface, Meaning::Default("the rate is shown on a terminal")),
    row("send", REPLAY, "--unique-ip", "", Interface, Meaning::Hint("packets are sent as they are in the file; --flows generates several flows")),
    row("send", REPLAY, "-K --preload-pcap", "", Interface, Meaning::Hint("leave it out")),
    row("send", REPLAY, "-w --write", "FILE", Interface, Meaning::Hint("'nocopy record INTERFACE --output FILE' writes packets into a file")),
    // To hosts.
    row("send", IPERF, "-c --client", "HOST", Any, Meaning::Hint("a host is the target: tcp://HOST:PORT or udp://HOST:PORT")),
    row("send", "iperf3, nc", "-u", "", Any, Meaning::Hint("datagrams go to udp://HOST:PORT")),
    row("send", "iperf3, nc", "-p --port", "PORT", Host, Meaning::Hint("the port is part of the target: tcp://HOST:PORT, udp://HOST:PORT")),
    row("send", IPERF, "-t --time", "SECONDS", Host, Meaning::Option("--duration")),
    row("send", IPERF, "-b --bitrate --bandwidth", "RATE", Host, Meaning::Value("--rate; 0: none", rate_option_from_bitrate)),
    row("send", IPERF, "-l --length --len", "BYTES", Host, Meaning::Value("--size", size_option_from_iperf)),
    row("send", IPERF, "-k --blockcount", "N", Host, Meaning::Option("--count")),
    row("send", IPERF, "-P --parallel", "N", Host, Meaning::Option("--streams")),
    row("send", IPERF, "-C --linux-congestion", "NAME", Host, Meaning::Option("--congestion")),
    row("send", IPERF, "-F", "FILE", Host, Meaning::Option("--file")),
    row("send", IPERF, "-J", "", Any, Meaning::Word("--json")),
    row("send", IPERF, "-V --verbose -v", "", Any, Meaning::Default("a summary is printed")),
    row("send", IPERF, "-n --bytes", "BYTES", Host, Meaning::Hint("use --count N, which counts pieces of --size bytes")),
    row("send", IPERF, "-R --reverse --bidir", "", Host, Meaning::Hint("start 'nocopy send' at the other end, and 'nocopy recv' here")),
    row("send", "iperf3, nc", "-w --window", "N", Host, Meaning::Hint("use --connect-timeout or --duration for nc's timeout; the receiver has iperf3's window: 'nocopy recv --buffer'")),
    row("send", IPERF, "-Z --zerocopy", "", Host, Meaning::Hint("leave it out: --method auto measures which way is fastest")),
    row("send", IPERF, "-B --bind", "ADDRESS", Host, Meaning::Hint("leave it out: routes choose the address of this host")),
    row("send", IPERF, "-s --server", "", Any, Meaning::Hint("'nocopy recv' is the receiving end")),
    row("send", NETCAT, "-q -N", "", Host, Meaning::Hint("leave it out: 'nocopy send' ends when its input ends")),
    // From hosts.
    row("recv serve", LISTENERS, "-s --server -l --listen", "", Any, Meaning::Default("it waits for others")),
    row("recv serve", LISTENERS, "-p --port", "PORT", Any, Meaning::Port),
    row("recv", LISTENERS, "-u", "", Any, Meaning::Datagrams),
    row("recv serve", NETCAT, "-n -v -vv", "", Any, Meaning::Default("addresses are numbers, and a summary is printed")),
    row("recv", IPERF, "-1 --one-off", "", Any, Meaning::Default("it ends with its sender")),
    row("recv serve", IPERF, "-J", "", Any, Meaning::Word("--json")),
    row("recv", NETCAT, "-k --keep-open", "", Any, Meaning::Hint("'nocopy recv' ends with its sender; start it in a loop: 'while nocopy recv …; do :; done'")),
    row("recv", "nc, iperf3", "-w", "N", Any, Meaning::Hint("use --idle TIME for nc's timeout, or --buffer BYTES for iperf3's window")),
    row("recv", IPERF, "-i --interval", "SECONDS", Any, Meaning::Hint("leave it out: progress is shown on a terminal")),
    row("recv serve", IPERF, "-D --daemon", "", Any, Meaning::Hint("start it in the background by your shell or by systemd")),
    row("recv serve", IPERF, "-B --bind", "ADDRESS", Any, Meaning::Hint("the address is part of the target: tcp://ADDRESS:PORT, udp://ADDRESS:PORT")),
    row("recv serve", LISTENERS, "-4 -6", "", Any, Meaning::Hint("give an address of that family: tcp://0.0.0.0:PORT, tcp://[::]:PORT")),
    row("serve", NETCAT, "-k --keep-open", "", Any, Meaning::Default("every client is answered")),
    row("serve", NETCAT, "-e", "PROGRAM", Any, Meaning::Option("--exec")),
    row("serve", NETCAT, "-u", "", Any, Meaning::Hint("datagrams are answered at udp://[ADDRESS]:PORT")),
    // Others.
    row("ping", "ping", "-w", "SECONDS", Any, Meaning::Option("--duration")),
    row("ping", "ping", "-I", "INTERFACE", Any, Meaning::Option("--interface")),
    row("ping", "ping", "-n -q", "", Any, Meaning::Default("addresses are numbers, and only a summary is printed")),
    row("ping", "ping", "-f", "", Any, Meaning::Hint("leave it out: without --interval a message follows each answer at once")),
    row("ping", "ping", "-4 -6", "", Any, Meaning::Hint("give an address of that family")),
    row("ping", IPERF, "-J", "", Any, Meaning::Word("--json")),
    row("stats", "ifstat, iftop, nload", "-i --interface", "INTERFACE", Any, Meaning::Target),
    row("doctor", "ethtool", "-i --interface", "INTERFACE", Any, Meaning::Target),
    row("stats", "watch", "-n", "SECONDS", Any, Meaning::Option("--interval")),
    row("stats", "ifstat", "-a", "", Any, Meaning::Word("--all")),
    row("stats doctor", "ip", "-j", "", Any, Meaning::Word("--json")),
    row("stats", "ip, ethtool", "-s -S", "", Any, Meaning::Default("all counters are shown")),
    row("profile", "perf, strace", "-p", "PID", Any, Meaning::Option("--pid")),
    row("profile", "perf", "-F --freq", "HZ", Any, Meaning::Option("--frequency")),
];

/// Other programs, and names of commands that are not ours.
#[rustfmt::skip] // as above
pub(super) static PROGRAMS: &[(&str, &str)] = &[
    ("tcpdump tshark wireshark dump capture packets", "'nocopy sniff INTERFACE' prints packets, 'nocopy record INTERFACE --output FILE' writes them into a file"),
    ("dumpcap rec save write", "'nocopy record INTERFACE --output FILE' writes packets into a file"),
    ("tcpreplay replay play pktgen", "'nocopy send INTERFACE --replay FILE' sends the packets of a file, 'nocopy send INTERFACE' generates packets"),
    ("iperf iperf3 netperf nuttcp", "'nocopy recv tcp://:PORT' at one end, 'nocopy send tcp://HOST:PORT' at the other; 'nocopy bench' compares methods"),
    ("nc ncat netcat socat", "'nocopy recv --raw tcp://:PORT --output -', 'nocopy send --raw tcp://HOST:PORT --stdin'"),
    ("receive listen server", "'nocopy recv' receives, 'nocopy serve' answers"),
    ("client connect", "'nocopy send', 'nocopy call' and 'nocopy ping' go to a host"),
    ("strace perf trace top", "'nocopy profile' shows a program's network calls, 'nocopy stats' the counters of interfaces"),
    ("ethtool ifstat iftop monitor watch", "'nocopy stats' shows the counters of interfaces, 'nocopy doctor' what they can"),
    ("interfaces links list check", "'nocopy doctor' lists the interfaces, and what they can"),
    ("scp rsync copy get put", "'nocopy cp' copies files from an NFS server or to one"),
    ("mount nfs", "'nocopy serve nfs DIR' serves a directory, 'nocopy ls', 'cat' and 'cp' use a server"),
    ("exec preload wrap", "'nocopy run -- COMMAND' runs a program with nocopy's libraries"),
];

const fn row(
    commands: &'static str,
    programs: &'static str,
    typed: &'static str,
    value: &'static str,
    target: TargetKind,
    meaning: Meaning,
) -> ForeignOption {
    ForeignOption { commands, programs, typed, value, target, meaning }
}

fn option_with_value(option: &str, value: impl std::fmt::Display) -> ValueMeaning {
    ValueMeaning::Word(format!("{option}={value}"))
}

/// tcpdump's 0 is the longest.
fn snap_option(bytes: &str, _: &[&str]) -> ValueMeaning {
    if bytes == "0" { ValueMeaning::Nothing } else { option_with_value("--snap", bytes) }
}

fn direction_option(direction: &str, _: &[&str]) -> ValueMeaning {
    match direction {
        "in" => ValueMeaning::Word("--incoming".into()),
        "out" => ValueMeaning::Word("--outgoing".into()),
        "inout" => ValueMeaning::Nothing,
        _ => ValueMeaning::Hint("use --incoming or --outgoing"),
    }
}

fn autostop_option(condition: &str, _: &[&str]) -> ValueMeaning {
    match condition.split_once(':') {
        Some(("duration", seconds)) => option_with_value("--duration", seconds),
        Some(("packets", count)) => option_with_value("--count", count),
        _ => ValueMeaning::Hint("use --duration or --count"),
    }
}

fn ring_buffer_option(condition: &str, _: &[&str]) -> ValueMeaning {
    match condition.split_once(':') {
        Some(("filesize", kilobytes)) => option_with_value("--rotate-size", format_args!("{kilobytes}k")),
        Some(("files", count)) => option_with_value("--files", count),
        Some(("duration", seconds)) => option_with_value("--rotate-time", seconds),
        _ => ValueMeaning::Hint("use --rotate-size, --rotate-time and --files"),
    }
}

/// tcpdump's `-C`: millions of bytes, or with a letter its own power of 1024.
fn rotate_size_option(size: &str, _: &[&str]) -> ValueMeaning {
    match size.ends_with(|letter: char| letter.is_ascii_digit()) {
        true => option_with_value("--rotate-size", format_args!("{size}M")),
        false => option_with_value("--rotate-size", with_binary_prefix(size)),
    }
}

fn kept_files_option(count: &str, words: &[&str]) -> ValueMeaning {
    let has = |letter: &str| words.iter().any(|word| word.starts_with(letter));
    match (has("-G"), has("-C") || has("--rotate-size")) {
        (true, _) => ValueMeaning::Hint(
            "with -G tcpdump ends after so many files: use --duration for that, or --files N to keep the last N",
        ),
        (false, false) => ValueMeaning::Hint("use --files N, with --rotate-size or --rotate-time"),
        (false, true) => option_with_value("--files", count),
    }
}

fn buffer_size_option(size: &str, _: &[&str]) -> ValueMeaning {
    option_with_value("--buffer", format_args!("{size}KiB"))
}

fn rate_option_from_mbps(rate: &str, _: &[&str]) -> ValueMeaning {
    option_with_value("--rate", format_args!("{rate}Mbit/s"))
}

fn rate_option_from_pps(rate: &str, _: &[&str]) -> ValueMeaning {
    option_with_value("--rate", format_args!("{rate}pps"))
}

fn loop_option(count: &str, _: &[&str]) -> ValueMeaning {
    option_with_value("--loop", if count == "0" { "forever" } else { count })
}

fn rate_option_from_bitrate(rate: &str, _: &[&str]) -> ValueMeaning {
    match rate {
        "0" => ValueMeaning::Nothing,
        _ if rate.contains('/') => ValueMeaning::Hint("use --rate RATE, without a burst"),
        _ => option_with_value("--rate", format_args!("{rate}bit/s")),
    }
}

fn size_option_from_iperf(size: &str, _: &[&str]) -> ValueMeaning {
    option_with_value("--size", with_binary_prefix(size))
}

/// A size whose letter is a power of 1024.
fn with_binary_prefix(size: &str) -> String {
    match size.strip_suffix(|letter: char| "kmgtKMGT".contains(letter)) {
        Some(number) => format!("{number}{}i", &size[number.len()..]),
        None => size.to_owned(),
    }
}
