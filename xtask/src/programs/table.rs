//! The programs: how each is started, and how its output is read. All lines are of sh(1), and run in a
//! directory of its own.

/// Rounds of the traffic (`traffic.py`).
pub(super) const ROUNDS: u64 = 60;

#[derive(Debug)]
pub(super) struct CapturingProgram {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// Run at the left end, before anything else.
    pub(super) before: &'static str,
    /// Starts it at the right end: `$run` is for a command, which it runs with `nocopy run` or without.
    pub(super) line: &'static str,
    /// What it prints once it captures. Empty: it prints nothing, and captures once it has opened a capture
    /// and sleeps.
    pub(super) ready: &'static str,
    /// Packets that match: of each round, and others.
    pub(super) matching: [u64; 2],
    pub(super) output: OutputSource,
    pub(super) end: ProgramEnd,
    /// Whether its handle is closed, by itself or by its exit; otherwise a signal kills it.
    pub(super) closes: bool,
    /// It gives up the privileges that taking needs before it opens its capture: with `--take`, too, it
    /// captures passively.
    pub(super) is_passive: bool,
    /// It shows packets only when others follow: of a host that is left out.
    pub(super) needs_more_traffic: bool,
}

/// Where its output is read.
#[derive(Debug)]
pub(super) struct OutputSource {
    /// Asks it, while it runs, what it has seen. Empty: its files tell.
    pub(super) query: &'static str,
    /// Prints how many of these packets have been shown so far.
    pub(super) count: &'static str,
    /// Prints how many packets it has seen, when it has ended. Empty: as `count`.
    pub(super) final_count: &'static str,
    /// Prints the output that is compared.
    pub(super) shown: &'static str,
    /// What `shown` leaves out, since it differs between any two runs.
    pub(super) without: &'static str,
}

/// How it ends, when it has seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramEnd {
    Interrupted,
    /// A line asks it to.
    Asked(&'static str),
    /// By itself: there is no traffic but its own.
    Itself,
}

impl CapturingProgram {
    pub(super) fn expected_packets(&self) -> u64 {
        let rounds = if self.end == ProgramEnd::Itself { 0 } else { ROUNDS };
        self.matching[0] * rounds + self.matching[1]
    }

    const fn with_query(mut self, query: &'static str) -> Self {
        self.output.query = query;
        self
    }

    const fn with_final_count(mut self, final_count: &'static str) -> Self {
        self.output.final_count = final_count;
        self
    }
}

const fn capturing_program(
    [name, package]: [&'static str; 2],
    matching: [u64; 2],
    [line, ready]: [&'static str; 2],
    [count, shown]: [&'static str; 2],
    without: &'static str,
) -> CapturingProgram {
    CapturingProgram {
        name,
        package,
        before: "",
        line,
        ready,
        matching,
        output: OutputSource { query: "", count, final_count: "", shown, without },
        end: ProgramEnd::Interrupted,
        closes: true,
        is_passive: false,
        needs_more_traffic: false,
    }
}

const P0F_SHOWN: &str = "sed 's/^.[^]]*. //' log";
const SOFTFLOWD_ASKED: &str = "softflowctl -c ctl dump-flows > flows";
const SOFTFLOWD: [&str; 2] = [
    "grep -v '10.77.0.9[89]' flows | grep -o 'packets[<>]:[0-9]*' | awk -F: '{n += $2} END {print n}'",
    "grep -v '10.77.0.9[89]' flows | grep -o '\\[.*packets[<>]:[0-9]*' | sort",
];

/// Ends a daemon when it is asked to end, and ends after it.
macro_rules! daemon {
    ($start:literal, $process:literal) => {
        concat!(
            "exec $run sh -c '",
            $start,
            "; daemon=$(",
            $process,
            "); trap \"kill -INT $daemon\" INT; \
            while readlink /proc/$daemon/exe; do sleep 0.1; done' > /dev/null 2>&1"
        )
    };
}

pub(super) const ALL: &[CapturingProgram] = &[
    CapturingProgram {
        needs_more_traffic: true,
        ..capturing_program(
            ["iftop", "iftop"],
            [8, 0],
            [
                // Without input, and without the end of it, which keeps it busy.
                "mkfifo in; exec $run stdbuf -oL iftop -t -n -N -P -i nc1 -B -L 500 -f 'tcp or host 10.77.0.98' <> in > out 2> err",
                "Listening on",
            ],
            [
                // The last whole table. Each connection has 226 bytes in one direction and 306 in the other.
                "awk 'BEGIN {RS = \"====+\\n\"} /cumulative/ {all = last; last = $0} END {print all}' out > last; \
                 grep -c -E ' (226B|306B)$' last | awk '{print 4 * $1}'",
                "grep '10.77.0.2[01]' last | sed 's/^ *[0-9]* *//' | awk '{print $1, $2, $NF}' | sort; grep interface err",
            ],
            "rates, the order of lines, the host that is sent more",
        )
    },
    capturing_program(
        ["ngrep", "ngrep"],
        [2, 1],
        ["exec $run ngrep -l -q -d nc1 . 'udp and not port 67' > out 2> err", "match"],
        ["grep -c '^U ' out", "cat out err"],
        "nothing",
    ),
    capturing_program(
        ["tcpflow", "tcpflow"],
        [8, 0],
        ["exec $run tcpflow -i nc1 -o flows tcp > out 2> err", "listening on"],
        [
            "ls flows | grep -c 'c1$' | awk '{print 8 * $1}'",
            "cd flows; for flow in 0*; do echo $flow; cat $flow; done; grep -o \"packets='[0-9]*'\" report.xml; cat ../err",
        ],
        "times and resources in report.xml",
    )
    .with_final_count("sed -n 's/.*<total_packets>\\([0-9]*\\)<.*/\\1/p' flows/report.xml"),
    capturing_program(
        ["p0f", "p0f"],
        [8, 0],
        ["exec $run p0f -i nc1 -f $root/etc/p0f/p0f.fp -o log > out 2> err", "main event loop"],
        ["grep -c 'mod=http response' log | awk '{print 8 * $1}'", "grep -v Closed out; sed 's/^.[^]]*. //' log"],
        "times, the number of descriptors that it closes at its start",
    )
    .with_final_count("sed -n 's/.*Processed \\([0-9]*\\) packets.*/\\1/p' out"),
    capturing_program(
        ["p0f, as a daemon", "p0f"],
        [4, 0],
        [
            daemon!(
                "p0f -d -i nc1 -f $root/etc/p0f/p0f.fp -o log > out 2> err",
                "sed -n \"s/.*PID \\([0-9]*\\).*/\\1/p\" out"
            ),
            "Daemon process created",
        ],
        ["grep -c -E 'mod=(syn|http)' log", P0F_SHOWN],
        "times",
    ),
    capturing_program(
        ["argus", "argus-server"],
        [13, 1],
        ["exec $run argus -F /dev/null -i nc1 -S 1 -w file > out 2> err", "is up"],
        [
            "racluster -F /dev/null -n -r file -s spkts dpkts - not man | awk '{n += $1 + $2} END {print n}'",
            "racluster -F /dev/null -n -r file -s proto saddr sport dir daddr dport spkts dpkts sbytes dbytes state - not man | sort",
        ],
        "times, the order of flows (read by racluster)",
    ),
    CapturingProgram {
        end: ProgramEnd::Asked("softflowctl -c ctl shutdown"),
        needs_more_traffic: true,
        ..capturing_program(
            ["softflowd", "softflowd"],
            [12, 1],
            ["exec $run softflowd -d -i nc1 -c ctl -p pid > out 2> err", "starting data collection"],
            SOFTFLOWD,
            "times, the order of flows, the host that is sent more",
        )
        .with_query(SOFTFLOWD_ASKED)
    },
    CapturingProgram {
        needs_more_traffic: true,
        ..capturing_program(
            ["softflowd, as a daemon", "softflowd"],
            [12, 1],
            [
                // Its package's service makes the directory that the daemon changes its root to.
                daemon!(
                    "mkdir -p /run/softflowd/chroot; softflowd -i nc1 -c $PWD/ctl -p $PWD/pid > out 2> err; while ! softflowctl -c ctl statistics; do sleep 0.1; done > out",
                    "cat pid"
                ),
                "Packets processed",
            ],
            SOFTFLOWD,
            "times, the order of flows, the host that is sent more",
        )
        .with_query(SOFTFLOWD_ASKED)
    },
    capturing_program(
        ["darkstat", "darkstat"],
        [12, 1],
        ["exec $run darkstat -i nc1 --no-daemon --no-dns --verbose -p 667 -b 127.0.0.1 > out 2> err", "set uid/gid"],
        [
            "sed -n 's/.*id=\"tp\">\\([0-9,]*\\)<.*/\\1/p' page | tr -d ,",
            "grep -E 'captured|<td' page | grep -v -E '[0-9] secs?<|never'",
        ],
        "times",
    )
    .with_query("python3 -E -c \"
import urllib.request
for path in '', 'hosts/?full=yes':
    print(urllib.request.urlopen('http://127.0.0.1:667/' + path).read().decode())\" > page"),
    capturing_program(
        ["arpwatch", "arpwatch"],
        [1, 0],
        ["touch arp.dat; exec $run stdbuf -oL arpwatch -d -i nc1 -f arp.dat > out 2> err", ""],
        ["grep -c 'new station' out", "grep -v timestamp out; cut -f 1,2,4 arp.dat"],
        "times",
    ),
    CapturingProgram {
        before: "for host in $(seq 101 120); do ip address add 10.77.0.$host/32 dev nc0; done",
        end: ProgramEnd::Itself,
        is_passive: true,
        ..capturing_program(
            ["arp-scan", "arp-scan"],
            [0, 20],
            ["exec $run arp-scan -q -x -I nc1 -t 20000 -r 1 10.77.0.101-10.77.0.120 > out 2> err", ""],
            ["wc -l < out", "sort out"],
            "the order of answers",
        )
    },
    CapturingProgram {
        end: ProgramEnd::Itself,
        ..capturing_program(
            ["nmap", "nmap"],
            [0, 20],
            [
                "exec $run nmap -n -Pn -sS -r --packet-trace -p 7001-7020 -e nc1 --send-eth --initial-rtt-timeout 30s \
                 --min-rtt-timeout 30s --max-rtt-timeout 60s 10.77.0.1 > out 2> err",
                "",
            ],
            [
                "grep -c 'RCVD.* TCP .* RA ' out",
                "grep RCVD out | grep -o '10.77.0.1:[0-9]*.*10.77.0.2\\| RA ' | sort; grep -E 'tcp ports|/tcp|Host is' out | sed 's/ (.*latency)//'; cat err",
            ],
            "times, ports and numbers that it chooses, the order of answers",
        )
    },
    CapturingProgram {
        end: ProgramEnd::Asked("echo q > keys"),
        ..capturing_program(
            ["tcptrack", "tcptrack"],
            [1, 0],
            [
                "mkfifo keys; TERM=vt52 exec script -qefc 'stty rows 90 cols 94; exec $run tcptrack -i nc1 -r 600' out <> keys > err",
                "Client",
            ],
            ["python3 -E screen.py out | grep -c CLOSED", "python3 -E screen.py out | sort"],
            "idle times and rates, the order of connections",
        )
    },
    CapturingProgram {
        closes: false,
        ..capturing_program(
            ["dhcpdump", "dhcpdump"],
            [1, 0],
            ["exec $run stdbuf -oL dhcpdump -i nc1 > out 2> err", ""],
            ["grep -c 'OP: 1 ' out", "grep -v TIME: out"],
            "times",
        )
    },
    CapturingProgram {
        is_passive: true,
        ..capturing_program(
            ["tshark", "tshark"],
            [8, 0],
            [
                "exec $run tshark -l -n -i nc1 -f tcp -T fields -e frame.len -e ip.src -e tcp.srcport -e tcp.flags \
                 -e tcp.seq_raw -e http.request.uri > out 2> err",
                "File: ",
            ],
            ["wc -l < out", "cat out; grep captured err"],
            "nothing",
        )
    },
    CapturingProgram {
        is_passive: true,
        ..capturing_program(
            ["dumpcap", "wireshark-common"],
            [12, 1],
            ["exec $run dumpcap -q -i nc1 -f ip -w file > out 2> err", "File: "],
            ["tcpdump -n -r file 2> /dev/null | wc -l", "tcpdump -n -e -t -xx -r file 2> /dev/null; grep -i packets err"],
            "times",
        )
    },
    capturing_program(
        ["tcpdump", "tcpdump"],
        [13, 1],
        ["exec $run tcpdump -l -n -e -t -i nc1 > out 2> err", "listening on"],
        ["grep -c . out", "cat out err"],
        "nothing",
    ),
];
