use super::table::FOREIGN_OPTIONS;
use super::*;
use crate::arguments::{Arguments, Command as ParsedCommand};
use clap::CommandFactory;
use std::os::unix::ffi::OsStrExt;

/// What is typed, and the same in our own words.
const SYNONYMS: &[(&str, &str)] = &[
    ("sniff -i eth0", "sniff eth0"),
    ("sniff -ieth0 -c5", "sniff eth0 --count=5"),
    ("sniff -nni eth0 udp port 53", "sniff eth0 udp port 53"),
    ("sniff -n -c 3 -i eth0 host 10.0.0.1", "sniff eth0 --count=3 host 10.0.0.1"),
    ("sniff --interface eth0 -n", "sniff eth0"),
    ("sniff --interface=eth0", "sniff eth0"),
    ("sniff eth0 -l --line-buffered -U --packet-buffered", "sniff eth0"),
    ("sniff eth0 --immediate-mode -K --dont-verify-checksums", "sniff eth0"),
    ("sniff eth0 -p", "sniff eth0 --no-promiscuous"),
    ("sniff eth0 --no-promiscuous-mode", "sniff eth0 --no-promiscuous"),
    ("sniff eth0 -s 0", "sniff eth0"),
    ("sniff eth0 -s0 -nn", "sniff eth0"),
    ("sniff eth0 -s 96", "sniff eth0 --snap=96"),
    ("sniff eth0 --snapshot-length=96", "sniff eth0 --snap=96"),
    ("sniff eth0 --snap 0", "sniff eth0"),
    ("sniff eth0 -Q in", "sniff eth0 --incoming"),
    ("sniff eth0 -Qout", "sniff eth0 --outgoing"),
    ("sniff eth0 --direction inout", "sniff eth0"),
    ("sniff eth0 -a duration:10", "sniff eth0 --duration=10"),
    ("sniff eth0 --autostop packets:9", "sniff eth0 --count=9"),
    ("sniff eth0 -X", "sniff eth0 --hex"),
    ("sniff eth0 -exx", "sniff eth0 --link --hex"),
    ("sniff eth0 -eXX -x", "sniff eth0 --link --hex"),
    ("sniff eth0 -XSs0 --absolute-tcp-sequence-numbers", "sniff eth0 --hex"),
    ("sniff eth0 -tt", "sniff eth0 --time=epoch"),
    ("sniff eth0 -ttttt", "sniff eth0 --relative"),
    ("sniff eth0 -- -w", "sniff eth0 -- -w"),
    ("record -i eth0 -w FILE", "record eth0 --output=FILE"),
    ("record --interface=eth0 --write FILE -nn -n -l --line-buffered", "record eth0 -o FILE"),
    (
        "record eth0 -o FILE -U --packet-buffered --immediate-mode -K --dont-verify-checksums",
        "record eth0 -o FILE",
    ),
    ("record eth0 -o FILE -v -vv -vvv --verbose -q", "record eth0 -o FILE"),
    ("record eth0 -wFILE -G 60 udp", "record eth0 -o FILE --rotate-time=60 udp"),
    ("record eth0 -w FILE -C 100 -W 5", "record eth0 -o FILE --rotate-size=100M --files=5"),
    ("record eth0 -w FILE -C 64m", "record eth0 -o FILE --rotate-size=64MiB"),
    ("record eth0 -w FILE -s0", "record eth0 -o FILE"),
    ("record eth0 -w FILE -s 128 -p", "record eth0 -o FILE --snap=128 --no-promiscuous"),
    (
        "record eth0 -w FILE --snapshot-length 128 --no-promiscuous-mode",
        "record eth0 -o FILE --snap=128 --no-promiscuous",
    ),
    ("record eth0 -w FILE --snap=0", "record eth0 -o FILE"),
    ("record eth0 -w FILE -B 4096", "record eth0 -o FILE --buffer=4MiB"),
    ("record eth0 -w FILE --buffer-size=4096", "record eth0 -o FILE --buffer=4MiB"),
    ("record eth0 -w FILE -Q in", "record eth0 -o FILE --incoming"),
    ("record eth0 -w FILE --direction=inout", "record eth0 -o FILE"),
    (
        "record eth0 -w FILE -a duration:10 --autostop packets:2",
        "record eth0 -o FILE --duration=10 --count=2",
    ),
    ("record eth0 -w FILE -b filesize:2000 -b files:3", "record eth0 -o FILE --rotate-size=2M --files=3"),
    ("record eth0 -w FILE --ring-buffer duration:60", "record eth0 -o FILE --rotate-time=60"),
    ("send -i eth0", "send eth0"),
    ("send --intf1=eth0 --topspeed x.pcap", "send eth0 --timing=flat-out --replay=x.pcap"),
    ("send -i eth0 -t -l 3 x.pcap", "send eth0 --timing=flat-out --loop=3 --replay=x.pcap"),
    ("send -ti eth0 x.pcap", "send eth0 --timing=flat-out --replay=x.pcap"),
    ("send eth0 --replay x.pcap --loop 0", "send eth0 --replay=x.pcap --loop=forever"),
    ("send eth0 -r x.pcap -M 100", "send eth0 --replay=x.pcap --rate=100Mbit/s"),
    ("send eth0 --read-file x.pcap --mbps=9.5", "send eth0 --replay=x.pcap --rate=9.5Mbit/s"),
    ("send eth0 --replay x.pcap -p 1000", "send eth0 --replay=x.pcap --rate=1000pps"),
    ("send eth0 --replay x.pcap --pps=1000", "send eth0 --replay=x.pcap --rate=1000pps"),
    ("send eth0 --replay x.pcap -x 2.0", "send eth0 --replay=x.pcap --speed=2.0"),
    ("send eth0 --replay x.pcap --multiplier=0.5", "send eth0 --replay=x.pcap --speed=0.5"),
    ("send eth0 --replay x.pcap -L 10", "send eth0 --replay=x.pcap --count=10"),
    ("send eth0 --replay x.pcap --limit 10", "send eth0 --replay=x.pcap --count=10"),
    ("send eth0 --replay x.pcap --stats 1 --quiet -q", "send eth0 --replay=x.pcap"),
    ("send eth0 -J -v -V --verbose", "send eth0 --json"),
    (
        "send tcp://a:9 -t 10 -b 100M -l 128K -P 4",
        "send tcp://a:9 --duration=10 --rate=100Mbit/s --size=128KiB --streams=4",
    ),
    (
        "send tcp://a:9 --time 10 --bitrate 1g --length 100 --parallel 2",
        "send tcp://a:9 --duration=10 --rate=1Gbit/s --size=100 --streams=2",
    ),
    ("send udp://a:9 --bandwidth=1M --len=1k", "send udp://a:9 --rate=1Mbit/s --size=1KiB"),
    ("send udp://a:9 -b 0 -k 7", "send udp://a:9 --count=7"),
    ("send udp://a:9 --blockcount=7 -J", "send udp://a:9 --count=7 --json"),
    ("send tcp://a:9 -C bbr -F x", "send tcp://a:9 --congestion=bbr --file=x"),
    ("send tcp://a:9 --linux-congestion bbr -V", "send tcp://a:9 --congestion=bbr"),
    ("send --udp a:9 -t 1", "send udp://a:9 --duration=1"),
    ("recv -s -p 5201", "recv tcp://:5201"),
    ("recv -s -p5201 -u -1 -J", "recv udp://:5201 --json"),
    ("recv --server --port=5201 --one-off", "recv tcp://:5201"),
    ("recv -l 9000", "recv tcp://:9000"),
    ("recv -lu 9000", "recv udp://:9000"),
    ("recv -lvnp 9000", "recv tcp://:9000"),
    ("recv -l -p 9000 -n -vv -o file", "recv tcp://:9000 --output=file"),
    ("recv -l 127.0.0.1 9000 -o file", "recv tcp://127.0.0.1:9000 --output=file"),
    ("recv --listen tcp://:9000", "recv tcp://:9000"),
    ("serve -s -p 9000", "serve :9000"),
    ("serve --server --port 9000 -J", "serve :9000 --json"),
    ("serve -lk 9000 -n -v -vv", "serve :9000"),
    ("serve -v nfs /srv", "serve nfs /srv"),
    ("serve --listen --keep-open 9000 -e cat", "serve :9000 --exec=cat"),
    ("ping udp://a:9 -c 3 -w 5 -n -q", "ping udp://a:9 --count=3 --duration=5"),
    ("ping xdp://a:9 -I eth0 -J", "ping xdp://a:9 --interface=eth0 --json"),
    ("stats -i eth0 -n 2 -a -j -s -S", "stats eth0 --interval=2 --all --json"),
    ("stats --interface eth0", "stats eth0"),
    ("doctor -i eth0 -j", "doctor eth0 --json"),
    ("doctor --interface=eth0", "doctor eth0"),
    ("profile -p 1 -F 99", "profile --pid=1 --frequency=99"),
    ("profile --freq=99 --pid 1", "profile --pid=1 --frequency=99"),
    ("profile --duration 1s sleep 1", "profile --duration=1s -- sleep 1"),
    ("profile sweep --json", "profile sweep --json"),
    ("run tcpdump -i eth0 -w file", "run -- tcpdump -i eth0 -w file"),
    ("run --take --report tcpdump -n", "run --take --report -- tcpdump -n"),
    ("run --library x tcpdump -- x", "run --library=x -- tcpdump -- x"),
];

/// What is typed, and words of the advice.
const HINTS: &[(&str, &str)] = &[
    ("send --file x.pcap eth0", "--replay FILE"),
    ("send eth0 --file=x.pcap", "--replay FILE"),
    ("send eth0 x.pcap", "--replay x.pcap"),
    ("send x.pcap eth0", "--replay x.pcap"),
    ("send 10.0.0.1 9000", "tcp://HOST:9000 or udp://HOST:9000"),
    ("send 10.0.0.1:9000", "tcp://HOST:PORT"),
    ("send -c 10.0.0.1 -u -b 1G", "udp://HOST:PORT"),
    ("send -c server -p 5201 -t 10", "tcp://HOST:PORT, udp://HOST:PORT"),
    ("send -c 10.0.0.1", "tcp://HOST:PORT or udp://HOST:PORT"),
    ("send -u 10.0.0.1 9000", "udp://HOST:PORT"),
    ("send udp://a:9 -b 1M/10", "without a burst"),
    ("recv 9000", "tcp://:9000 or udp://:9000"),
    ("recv 10.0.0.1:9000", "tcp://10.0.0.1:9000 or udp://10.0.0.1:9000"),
    ("stats eth0 2", "--interval 2"),
    ("record eth0 x.pcap", "--output x.pcap"),
    ("sniff", "nocopy doctor"),
    ("sniff -nn -c 3", "nocopy doctor"),
    ("record -w x.pcapng", "nocopy doctor"),
    ("record -i eth0 -w x -G 60 -W 3", "--duration"),
    ("record -i eth0 -w x -W 3", "--files N"),
    ("record -i eth0 -w x -Q out", "'--outgoing'"),
    ("record -i eth0 -w x -b packets:3", "--rotate-size"),
    ("record -i eth0 -w x -a filesize:3", "--duration or --count"),
    ("record -i eth0 -w", "-w needs a value: -w FILE"),
    ("sniff -i", "-i needs a value: -i INTERFACE"),
    ("sniff -i any", "name one"),
    ("sniff -i eth0 -nnvvXSs 0", "--link, --hex or --json"),
    ("sniff -Q both -i eth0", "--incoming or --outgoing"),
    ("tcpdump -i eth0", "nocopy sniff INTERFACE"),
    ("iperf3 -s", "nocopy recv"),
    ("nc -l 9000", "nocopy recv"),
    ("tcpreplay -i eth0 x.pcap", "--replay FILE"),
];

fn parsed_as_text(line: &str) -> Result<String, String> {
    let words = ["nocopy"].into_iter().chain(line.split(' '));
    Arguments::try_parse_words(words)
        .map(|arguments| format!("{arguments:?}"))
        .map_err(|error| error.to_string())
}

fn commands_of_option(foreign: &ForeignOption) -> impl Iterator<Item = &'static str> {
    foreign.commands.split(' ')
}

#[test]
fn synonyms_parse_as_our_options() {
    let differ = |(typed, own): &&(&str, &str)| {
        parsed_as_text(typed).is_err() || parsed_as_text(typed) != parsed_as_text(own)
    };
    let wrong: Vec<_> = SYNONYMS
        .iter()
        .filter(differ)
        .map(|(typed, own)| (typed, parsed_as_text(typed), parsed_as_text(own)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_synonym_has_a_test_line_per_command() {
    let mut missing = Vec::new();
    for foreign in FOREIGN_OPTIONS.iter().filter(|foreign| foreign.native_form().is_some()) {
        for (command, typed) in
            commands_of_option(foreign).flat_map(|name| foreign.spellings().map(move |typed| (name, typed)))
        {
            let has_it = |line: &str| {
                let mut words = line.split(' ');
                let is_host = line.contains("://") || line.contains("--udp");
                words.next() == Some(command)
                    && (foreign.target == TargetKind::Any || is_host == (foreign.target == TargetKind::Host))
                    && words.any(|word| match typed.starts_with("--") || typed.len() > 2 {
                        true => {
                            word.split('=').next() == Some(typed)
                                || word.contains(&typed[1..]) && !word.starts_with("--")
                        }
                        false => {
                            !word.starts_with("--") && word.starts_with('-') && word.contains(&typed[1..])
                        }
                    })
            };
            if !SYNONYMS.iter().any(|(line, _)| has_it(line)) {
                missing.push(format!("{command} {typed}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn options_with_another_meaning_are_refused_with_advice() {
    for (line, words) in HINTS {
        let said = parsed_as_text(line).expect_err(line);
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn each_advice_is_printed() {
    let mut wrong = Vec::new();
    for foreign in FOREIGN_OPTIONS {
        let Meaning::Hint(hint) = foreign.meaning else { continue };
        for (command, typed) in
            commands_of_option(foreign).flat_map(|name| foreign.spellings().map(move |typed| (name, typed)))
        {
            let target = match (command, foreign.target) {
                ("send", TargetKind::Host) => "tcp://a:9",
                ("recv", _) => "tcp://:9",
                ("serve" | "ping", _) => "udp://a:9",
                ("record", _) => "eth0 --output=x",
                _ => "eth0",
            };
            let value = match foreign.value {
                "HOST" => "example.org",
                "PAYLOAD" => "zeros",
                other => other,
            };
            let line = format!("{command} {target} {typed} {value}");
            let said = parsed_as_text(line.trim_end()).err().unwrap_or_default();
            if !said.contains(hint) {
                wrong.push((line, said));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_file_name_that_is_not_utf8_is_accepted() {
    let name = OsStr::from_bytes(b"caf\xe9.pcapng");
    for option in ["-w", "--write"] {
        let words = ["nocopy", "record", "eth0", option].map(OsStr::new);
        let read = Arguments::try_parse_words(words.iter().chain([&name])).unwrap();
        assert!(matches!(&read.command, ParsedCommand::Record(record) if record.output == name), "{read:?}");
    }
}

/// A short option that we have means what it means here; only its values may be another program's.
#[test]
fn no_synonym_hides_our_options() {
    let all = Arguments::command();
    for foreign in FOREIGN_OPTIONS {
        for (name, typed) in
            commands_of_option(foreign).flat_map(|name| foreign.spellings().map(move |typed| (name, typed)))
        {
            let command = all.find_subcommand(name).unwrap_or_else(|| panic!("{name}: no such command"));
            let spelled = |own: &Arg| {
                own.get_long().is_some_and(|long| typed == format!("--{long}"))
                    || own.get_short().is_some_and(|short| typed == format!("-{short}"))
            };
            let Some(own) = command.get_arguments().find(|own| spelled(own)) else { continue };
            match foreign.meaning {
                Meaning::Hint(_) => {}
                Meaning::Value(text, _) => {
                    let long = format!("--{}", own.get_long().unwrap());
                    assert!(text.starts_with(&long), "{name} {typed}: {text}");
                }
                _ => panic!("{name} {typed} is an option of ours"),
            }
        }
    }
}

#[test]
fn each_spelling_has_one_meaning() {
    for (at, foreign) in FOREIGN_OPTIONS.iter().enumerate() {
        for other in &FOREIGN_OPTIONS[at + 1..] {
            let is_together =
                commands_of_option(foreign).any(|command| other.applies_to(command, foreign.target));
            let same = foreign.spellings().find(|typed| other.spellings().any(|spelling| spelling == *typed));
            assert!(!is_together || same.is_none(), "{}: {same:?}", foreign.commands);
        }
    }
}

#[test]
fn synonyms_are_in_pages_and_completions_only() {
    let help = |name: &str| {
        let mut all = Arguments::command();
        all.find_subcommand_mut(name).unwrap().render_long_help().to_string()
    };
    assert!(!help("record").contains("-w") && !help("send").contains("--topspeed"), "{}", help("record"));
    let mut completions = Vec::new();
    let mut all = with_synonyms_as_options(Arguments::command());
    all.clone().debug_assert();
    clap_complete::generate(clap_complete::Shell::Zsh, &mut all, "nocopy", &mut completions);
    let completions = String::from_utf8(completions).unwrap().replace('\\', "");
    for words in ["tcpdump, tshark, dumpcap: --output FILE", "tcpreplay: --timing=flat-out", "--topspeed"] {
        assert!(completions.contains(words), "{words}");
    }
    let page = manual_section("record");
    assert!(
        page.contains("\\fB\\-w, \\-\\-write\\fR FILE\n\\-\\-output FILE (tcpdump, tshark, dumpcap)\n"),
        "{page}"
    );
    let page = manual_section("send");
    assert!(page.contains("not accepted: datagrams go to udp://HOST:PORT (iperf3, nc)"), "{page}");
    assert!(!page.lines().any(|line| line.starts_with('\'')), "{page}");
    assert!(manual_section("sweep").is_empty());
}
