//! The measured programs, and their tasks: small and bounded.

#[derive(Debug)]
pub(super) struct SenderProgram {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// Commands that prepare its directory.
    pub(super) before: &'static str,
    pub(super) receiver: &'static str,
    pub(super) sender: &'static str,
    /// The client that makes a server send; the server is stopped when it has ended. Without it the sender
    /// ends by itself.
    pub(super) load: Option<(LinkEnd, &'static str)>,
    /// Ports of the receiver and of a server that must be open before the measurement begins.
    pub(super) ports: [Option<u16>; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkEnd {
    /// The sender is at the left end.
    Left,
    Right,
}

const fn program_with_receiver(
    name: &'static str,
    package: &'static str,
    receiver: (&'static str, u16),
    sender: &'static str,
) -> SenderProgram {
    SenderProgram {
        name,
        package,
        before: "",
        receiver: receiver.0,
        sender,
        load: None,
        ports: [Some(receiver.1), None],
    }
}

const fn program_with_client(
    name: &'static str,
    package: &'static str,
    before: &'static str,
    sender: (&'static str, u16),
    load: &'static str,
) -> SenderProgram {
    let load = Some((LinkEnd::Right, load));
    SenderProgram {
        name,
        package,
        before,
        receiver: "",
        sender: sender.0,
        load,
        ports: [None, Some(sender.1)],
    }
}

/// A sink that receives everything and prints nothing.
const SINK: (&str, u16) = ("exec socat -u UDP-RECV:9000,rcvbuf=4000000 OPEN:/dev/null", 9000);

/// `$under` and `$count` are for the suite `left-alone`.
pub(super) const UNBOUND: SenderProgram = program_with_client(
    "unbound, local data",
    "unbound",
    "cat > conf <<END
server:
  interface: $left
  access-control: 0.0.0.0/0 allow
  chroot: \"\"
  username: \"\"
  pidfile: \"\"
  directory: \"$PWD\"
  use-syslog: no
  do-daemonize: no
  module-config: \"iterator\"
  local-data: \"name.example. A 192.0.2.1\"
END",
    ("exec $under unbound -d -c $PWD/conf", 53),
    "exec python3.11 queries.py $left ${count:-20000} name.example",
);

pub(super) const FFMPEG_RAW: SenderProgram = program_with_receiver(
    "ffmpeg, RTP of raw video",
    "ffmpeg",
    SINK,
    "exec $under ffmpeg -loglevel error -re -f lavfi -i testsrc=size=640x360:rate=25 -frames:v ${count:-50} -pix_fmt yuv420p -c:v rawvideo -f rtp rtp://$right:9000?pkt_size=1400",
);

/// It sends no datagrams.
pub(super) const REDIS: SenderProgram = program_with_client(
    "redis-server",
    "redis-tools",
    "",
    ("exec $under redis-server --bind $left --port 6379 --save '' --appendonly no --protected-mode no", 6379),
    "exec redis-benchmark -h $left -t get -c 16 -n $count -q",
);

/// The lines are of sh(1). `$left` and `$right` are the addresses of the two ends, `$lib` is where libraries
/// lie.
pub(super) const ALL: &[SenderProgram] = &[
    program_with_receiver("iperf3 -u -b 0", "iperf3", ("exec iperf3 -s", 5201), "exec iperf3 -c $right -u -b 0 -l 1400 -k 30000"),
    program_with_receiver("iperf3 -u -b 500M", "iperf3", ("exec iperf3 -s", 5201), "exec iperf3 -c $right -u -b 500M -l 1400 -k 30000"),
    program_with_receiver("iperf -u -b 500m", "iperf", ("exec iperf -s -u", 5001), "exec iperf -c $right -u -b 500m -l 1400 -n 42000000"),
    program_with_receiver("nuttcp -u -Ru", "nuttcp", ("exec nuttcp -S --nofork", 5000), "exec nuttcp -u -Ru -l1400 -n30000 $right"),
    program_with_receiver("nuttcp -u -R500m", "nuttcp", ("exec nuttcp -S --nofork", 5000), "exec nuttcp -u -R500m -l1400 -n30000 $right"),
    program_with_receiver(
        "sockperf throughput",
        "sockperf",
        ("exec sockperf server -i $right", 11111),
        "exec sockperf throughput -i $right -m 1400 -t 1",
    ),
    program_with_receiver(
        "sockperf ping-pong",
        "sockperf",
        ("exec sockperf server -i $right", 11111),
        "exec sockperf ping-pong -i $right -m 64 -t 1",
    ),
    program_with_receiver("socat from a file", "socat", SINK, "exec socat -u -b1400 OPEN:/dev/zero,readbytes=42000000 UDP-SENDTO:$right:9000"),
    SenderProgram {
        before: "head -c 20000000 /dev/zero > file; mkdir -p got",
        ..program_with_receiver(
            "uftp -R -1",
            "uftp",
            ("exec uftpd -d -I nc1 -D $PWD/got -M 239.255.1.1", 1044),
            "exec uftp -R -1 -I nc0 -M 239.255.1.1 -P 239.255.1.2 file",
        )
    },
    SenderProgram {
        before: "head -c 20000000 /dev/zero > file",
        ..program_with_receiver(
            "udp-sender",
            "udpcast",
            ("ip address flush dev nc1; ip address add $right/24 broadcast + dev nc1; exec udp-receiver --interface nc1 --nokbd --file /dev/null", 9000),
            "ip address flush dev nc0; ip address add $left/24 broadcast + dev nc0; exec udp-sender --interface nc0 --nokbd --full-duplex --min-receivers 1 --min-wait 1 --file file",
        )
    },
    SenderProgram {
        before: "ffmpeg -loglevel error -f lavfi -i testsrc=size=1280x720:rate=25 -t 3 -c:v mpeg2video -b:v 20M -f mpegts file.ts && ingests -p 256 file.ts",
        ..program_with_receiver("multicat, MPEG-TS of 20 Mbit/s", "multicat", SINK, "exec multicat -U file.ts $right:9000")
    },
    program_with_client(
        "turnserver, 4 clients",
        "coturn",
        "",
        ("exec turnserver -n -L $left -E $left -u user:secret -r example -a --no-tls --no-dtls --no-cli --log-file stdout --pidfile $PWD/pid --allow-loopback-peers", 3478),
        "exec turnutils_uclient -y -n 1000 -m 4 -l 1200 -z 1 -u user -w secret $left",
    ),
    program_with_receiver(
        "ffmpeg, RTP of 20 Mbit/s",
        "ffmpeg",
        SINK,
        "exec ffmpeg -loglevel error -re -f lavfi -i testsrc=size=1280x720:rate=25 -t 3 -c:v mpeg2video -b:v 20M -f rtp rtp://$right:9000?pkt_size=1400",
    ),
    FFMPEG_RAW,
    SenderProgram {
        before: "for i in $(seq 20000); do
    echo \"Nov 24 12:00:00 host program[1]: line $i of a log that is as long as lines of logs are, about\"
done > log
cat > conf <<END
module(load=\"imfile\")
input(type=\"imfile\" File=\"$PWD/log\" Tag=\"lines\")
action(type=\"omfwd\" target=\"$right\" port=\"9000\" protocol=\"udp\")
END",
        receiver: SINK.0,
        ports: [Some(SINK.1), None],
        ..program_with_client(
            "rsyslog, 20,000 lines from a file",
            "rsyslog",
            "",
            ("exec rsyslogd -n -f $PWD/conf -i $PWD/pid -M $lib/rsyslog", 0),
            "exec sleep 5",
        )
    },
    UNBOUND,
    program_with_client(
        "knotd",
        "knot",
        "mkdir -p zones run; cat > zones/example.zone <<END
example. 60 SOA ns.example. admin.example. 1 60 60 60 60
example. 60 NS ns.example.
ns.example. 60 A 192.0.2.2
name.example. 60 A 192.0.2.1
END
cat > conf <<END
server:
  listen: $left@53
  rundir: $PWD/run
database:
  storage: $PWD/run
template:
  - id: default
    storage: $PWD/zones
zone:
  - domain: example
END",
        ("exec knotd -c $PWD/conf", 53),
        "exec python3.11 queries.py $left 20000 name.example",
    ),
    SenderProgram {
        receiver: "openvpn --dev tun --ifconfig 10.78.0.2 10.78.0.1 --secret key --cipher AES-256-CBC & exec iperf3 -s",
        ports: [Some(1194), Some(1194)],
        load: Some((LinkEnd::Left, "sleep 2; exec iperf3 -c 10.78.0.2 -n 20M")),
        ..program_with_client(
            "openvpn, a TCP stream inside",
            "openvpn",
            "openvpn --genkey secret key",
            ("exec openvpn --remote $right --dev tun --ifconfig 10.78.0.1 10.78.0.2 --secret key --cipher AES-256-CBC", 1194),
            "",
        )
    },
    program_with_receiver(
        "Python, a loop of sendto",
        "python3.11-minimal",
        SINK,
        "exec python3.11 -c \"
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
data = bytes(1400)
for _ in range(30000): sender.sendto(data, ('$right', 9000))\"",
    ),
    program_with_receiver(
        "Python, asyncio's sendto",
        "python3.11-minimal",
        SINK,
        "exec python3.11 -c \"
import asyncio
async def main():
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=('$right', 9000))
    for _ in range(300):
        for _ in range(100): transport.sendto(bytes(1400))
        await asyncio.sleep(0)
asyncio.run(main())\"",
    ),
    SenderProgram {
        receiver: SINK.0,
        ports: [Some(SINK.1), None],
        ..program_with_client(
            "collectd, network plugin",
            "collectd-core",
            "cat > conf <<END
BaseDir \"$PWD\"
PIDFile \"$PWD/pid\"
PluginDir \"$lib/../collectd\"
TypesDB \"$lib/../../share/collectd/types.db\"
Interval 0.05
LoadPlugin cpu
LoadPlugin interface
LoadPlugin memory
LoadPlugin load
LoadPlugin network
<Plugin network>
  Server \"$right\" \"9000\"
</Plugin>
END",
            ("exec collectd -f -C $PWD/conf", 0),
            "exec sleep 5",
        )
    },
];

pub(super) const FURTHER_PACKAGES: &[&str] = &["libpython3.11-stdlib", "libpython3.11-minimal"];
