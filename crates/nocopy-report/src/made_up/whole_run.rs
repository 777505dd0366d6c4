//! A run of every workload in a private lab: all series, methods, baselines and causes of `nocopy bench --all`, with made-up figures.

use crate::figure::Figure;
use crate::result::{Copies, Link, Report, Row};

pub(crate) fn whole_run() -> Report {
    let series = [
        packet_send(),
        capture(),
        record(),
        libpcap(),
        udp_send(),
        udp_receive(),
        tcp(),
        latency(),
        messages(),
    ];
    let mut figures = Figures(1);
    let rows = series.into_iter().flatten().flat_map(|series| series.rows(&mut figures)).collect();
    Report { command: "nocopy bench --all".into(), ..super::report(rows) }
}

/// Figures with as many digits as measured ones, the same in every run.
struct Figures(u64);

impl Figures {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (high - low) * (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn some(&mut self, low: f64, high: f64) -> Option<f64> {
        Some(self.between(low, high))
    }
}

/// Methods that are compared with each other: name, variant, and the baselines, separated by blanks.
struct Series {
    workload: &'static str,
    title: String,
    sink: Option<&'static str>,
    payload_bytes: usize,
    link: Option<Link>,
    figure: Figure,
    methods: Vec<(&'static str, String, &'static str)>,
}

impl Series {
    fn new(workload: &'static str, title: impl Into<String>, figure: Figure, payload_bytes: usize) -> Self {
        let title = title.into();
        Self { workload, title, sink: None, payload_bytes, link: None, figure, methods: Vec::new() }
    }

    fn into(self, sink: &'static str) -> Self {
        Self { sink: Some(sink), ..self }
    }

    fn over(self, link: &str, mtu_bytes: u32) -> Self {
        let congestion_control = "cubic".into();
        let link = Link { link: link.into(), mtu_bytes, congestion_control, source_bytes: Some(4 << 20) };
        Self { link: Some(link), ..self }
    }

    fn with(mut self, method: &'static str, variant: impl Into<String>, baselines: &'static str) -> Self {
        self.methods.push((method, variant.into(), baselines));
        self
    }

    fn rows(self, figures: &mut Figures) -> Vec<Row> {
        let mut rows = Vec::new();
        for (method, variant, baselines) in &self.methods {
            let plain = Row {
                method: (*method).into(),
                variant: Some(variant.clone()).filter(|variant| !variant.is_empty()),
                buffer_bytes: buffer_bytes(variant),
                ..self.row(figures)
            };
            let rows_before = rows.len();
            for baseline in baselines.split_whitespace() {
                let ratio = figures.between(0.5, 12.0);
                let baseline_variant =
                    self.methods.iter().find(|(name, ..)| *name == baseline).map(|(_, variant, _)| variant);
                rows.push(Row {
                    baseline_variant: baseline_variant.filter(|variant| !variant.is_empty()).cloned(),
                    ..super::against(baseline, ratio, plain.clone())
                });
            }
            if rows.len() == rows_before {
                rows.push(plain);
            }
        }
        rows
    }

    fn row(&self, figures: &mut Figures) -> Row {
        let mut row = Row {
            workload: self.workload.into(),
            series: self.title.clone(),
            sink: self.sink.map(str::to_owned),
            payload_bytes: self.payload_bytes,
            link: self.link.clone(),
            figure: self.figure,
            runs: 9,
            ..Row::default()
        };
        (row.evidence, row.cause) = evidence(figures);
        match self.figure {
            Figure::MedianLatency => set_latency(&mut row, figures),
            Figure::BytesPerSecond => set_stream(&mut row, figures),
            Figure::MessagesPerSecond => set_messages(&mut row, figures),
            _ => set_packets(&mut row, figures),
        }
        let median = self.figure.of(&row).expect("all have their figure");
        row.figure_low = figures.some(median * 0.8, median);
        row.figure_high = figures.some(median, median * 1.2);
        row
    }
}

/// Of variants as `64-KiB`.
fn buffer_bytes(variant: &str) -> Option<usize> {
    let (count, unit) = variant.split_once('-')?;
    let power = ["KiB", "MiB"].iter().position(|&name| name == unit)? * 10 + 10;
    Some(count.parse::<usize>().ok()? << power)
}

/// Ledgers with several entries have a cause of their own in nearly every row.
fn evidence(figures: &mut Figures) -> (Option<Copies>, Option<String>) {
    let share = figures.between(1.0, 99.0);
    let (copies, cause) = match share as u32 % 5 {
        0 => (Copies::Copied, "socket call: the kernel copies what is sent, and what is received".into()),
        1 => (Copies::Copied, "xdp copy mode (xdp copy native)".into()),
        2 => (
            Copies::Unknown,
            "sent by reference to its pages: no completion tells whether they are copied".into(),
        ),
        3 => (
            Copies::Copied,
            format!(
                "copied (gathered) {share:.0} %, copied (given as a slice) 1 %, copied (xdp copy mode) 4 %"
            ),
        ),
        _ => return (Some(Copies::ZeroCopy), None),
    };
    (Some(copies), Some(cause))
}

fn set_packets(row: &mut Row, figures: &mut Figures) {
    let rate = figures.between(2e5, 9e6);
    row.packets_per_s = Some(rate);
    row.gbit_per_s = Some(rate * row.payload_bytes as f64 * 8.0 / 1e9);
    row.ns_per_packet = Some(1e9 / rate);
    row.dropped_percent = figures.some(0.0, 60.0);
    row.sender_cpu_ns_per_packet = figures.some(50.0, 3000.0);
    row.receiver_cpu_ns_per_packet = figures.some(20.0, 2000.0);
    row.receiver_cpu_percent = figures.some(0.1, 99.0);
    row.machine_cpu_ns_per_packet = figures.some(3000.0, 9000.0);
}

fn set_messages(row: &mut Row, figures: &mut Figures) {
    let rate = figures.between(1e3, 3e6);
    row.messages_per_s = Some(rate);
    row.gbit_per_s = Some(rate * row.payload_bytes as f64 * 8.0 / 1e9);
    row.ns_per_message = Some(1e9 / rate);
    row.dropped_percent = Some(0.0);
    row.sender_cpu_ns_per_message = figures.some(300.0, 90_000.0);
    row.receiver_cpu_ns_per_message = figures.some(300.0, 90_000.0);
    row.machine_cpu_ns_per_message = figures.some(90_000.0, 300_000.0);
}

fn set_stream(row: &mut Row, figures: &mut Figures) {
    let rate = figures.between(1e9, 6e9);
    row.bytes_per_s = Some(rate);
    row.gbit_per_s = Some(rate * 8.0 / 1e9);
    row.sender_cpu_us_per_mb = figures.some(20.0, 400.0);
    row.proxy_cpu_us_per_mb = figures.some(20.0, 400.0).filter(|_| row.workload == "tcp-proxy");
    row.receiver_cpu_us_per_mb = figures.some(20.0, 400.0);
    row.machine_cpu_us_per_mb = figures.some(400.0, 1200.0);
    row.mapped_fraction = figures.some(0.0, 1.0).filter(|_| row.workload == "tcp-receive");
}

fn set_latency(row: &mut Row, figures: &mut Figures) {
    let median = figures.between(2.0, 60.0);
    row.mean_us = Some(median * 1.1);
    row.p50_us = Some(median);
    row.p99_us = figures.some(median, median * 3.0);
    row.p99_9_us = figures.some(median * 3.0, median * 9.0);
    (row.answered, row.lost) = (Some(120_345), Some(0));
}

fn packet_send() -> Vec<Series> {
    let of_length = |bytes: usize| {
        let title = format!("packet-send, {bytes}-byte frames");
        let series = Series::new("packet-send", title, Figure::PacketsPerSecond, bytes)
            .into("XDP_DROP on the peer")
            .with("packet-send", "", "")
            .with("sendmmsg", "", "packet-send")
            .with("packet-tx-ring", "", "packet-send")
            .with("ring", "", "packet-send")
            .with("xdp", "", "packet-send");
        match bytes {
            8192 => series.with("default", "", "packet-send xdp"),
            _ => series.with("kernel-generator", "", ""),
        }
    };
    [64, 1400, 8192].map(of_length).into()
}

const EVERY_BYTE: &str = "a program that reads every byte";

fn capture() -> Vec<Series> {
    let cases = ["full-rate", "300-kpps"].into_iter().flat_map(|load| [64, 1400].map(|bytes| (load, bytes)));
    let mut series: Vec<_> = cases.map(|(load, bytes)| capture_of(load, bytes)).collect();
    series.extend(["full-rate", "300-kpps"].map(capture_filtered));
    series.extend([64, 1400, 9000].map(|bytes| capture_of("from-sockets", bytes)));
    series.extend(["750-kpps-each", "full-rate-each"].map(capture_of_two_queues));
    series
}

fn capture_figure(load: &str) -> Figure {
    if load.contains("kpps") { Figure::ReceiverCpuPerPacket } else { Figure::PacketsPerSecond }
}

fn capture_of(load: &str, bytes: usize) -> Series {
    let title = format!("capture, {bytes}-byte frames, {load}");
    let series = Series::new("capture", title, capture_figure(load), bytes)
        .into(EVERY_BYTE)
        .with("packet-ring", load, "")
        .with("ring", load, "packet-ring")
        .with("xdp", format!("poll {load}"), "packet-ring")
        .with("xdp", format!("spinning {load}"), "packet-ring")
        .with("xdp", format!("coalesced {load}"), "packet-ring");
    match load {
        "from-sockets" => series.with("default", load, "packet-ring ring"),
        "full-rate" => series.with("recvmmsg", load, "packet-ring").with("xdp-drop", load, "packet-ring"),
        _ => series.with("recvmmsg", load, "packet-ring"),
    }
}

fn capture_filtered(load: &str) -> Series {
    let title = format!("capture with a filter, 64-byte frames, {load}");
    Series::new("capture", title, Figure::ReceiverCpu, 64)
        .into("a program that reads every byte of what it gets; 1 % is what it wants")
        .with("xdp", load, "")
        .with("xdp-filter", load, "xdp")
        .with("ring", load, "")
        .with("ring-filter", load, "ring")
}

fn capture_of_two_queues(load: &str) -> Series {
    let name = format!("two-queues {load}");
    let title = format!("capture, 64-byte frames, {name}");
    Series::new("capture", title, capture_figure(load), 64)
        .into(EVERY_BYTE)
        .with("packet-ring-fanout", name.clone(), "")
        .with("ring-fanout", name.clone(), "packet-ring-fanout")
        .with("xdp", format!("coalesced {name}"), "packet-ring-fanout")
}

fn record() -> Vec<Series> {
    let of_case = |(place, case, figure): (&'static str, &str, Figure)| {
        let variant = format!("{place} {case}");
        Series::new("record", format!("record to {place}, 1400-byte frames, {case}"), figure, 1400)
            .into(place)
            .with("tcpdump", variant.clone(), "")
            .with("dumpcap", variant.clone(), "")
            .with("record", variant, "tcpdump dumpcap")
    };
    let cases =
        [("highest-rate-without-loss", Figure::PacketsPerSecond), ("300-kpps", Figure::ReceiverCpuPerPacket)];
    let places = ["tmpfs", "disk"].into_iter();
    places.flat_map(|place| cases.map(|(case, figure)| of_case((place, case, figure)))).collect()
}

fn libpcap() -> Vec<Series> {
    let captured = |(case, figure): (&str, Figure)| {
        Series::new("libpcap", format!("libpcap, tcpdump, 64-byte frames, {case}"), figure, 64)
            .into("tcpdump -w /dev/null")
            .with("libpcap", case, "")
            .with("nocopy-passive", case, "libpcap")
            .with("nocopy-take", case, "libpcap")
    };
    let injected = |(name, sink): (&str, &'static str)| {
        let title = format!("libpcap, {name}, 64-byte frames");
        Series::new("libpcap", title, Figure::PacketsPerSecond, 64).into(sink).with("libpcap", name, "").with(
            "nocopy-passive",
            name,
            "libpcap",
        )
    };
    let cases = [
        ("highest-rate-without-loss", Figure::PacketsPerSecond),
        ("300-kpps", Figure::ReceiverCpuPerPacket),
        ("300-kpps, the machine", Figure::MachineCpuPerPacket),
    ];
    let sinks = [("pcap_inject", "tc drops on the peer"), ("pcap_inject to-xdp", "XDP_DROP on the peer")];
    cases.map(captured).into_iter().chain(sinks.map(injected)).collect()
}

fn udp_send() -> Vec<Series> {
    const SINKS: [&str; 4] = ["offload", "segmented", "delivered", "pair"];
    let of_length = |bytes: usize| SINKS.map(|sink| udp_bursts(sink, bytes));
    let mut series: Vec<_> = [64, 1400].into_iter().flat_map(of_length).collect();
    series.extend([64, 1400].map(|bytes| {
        let title = format!("udp-send, {bytes}-byte datagrams, one-a-call");
        Series::new("udp-send", title, Figure::PacketsPerSecond, bytes)
            .into("segmented")
            .with("socket", "one-a-call", "")
            .with("auto", "one-a-call", "socket")
    }));
    series.extend(of_length(8192));
    series
}

fn udp_bursts(sink: &'static str, bytes: usize) -> Series {
    let title = format!("udp-send, {bytes}-byte datagrams");
    let mut series = Series::new("udp-send", title, Figure::PacketsPerSecond, bytes).into(sink);
    series = match sink {
        "pair" => series.with("socket", "to-recvmmsg", "").with("socket", "", "socket"),
        _ => series.with("socket", "", ""),
    };
    for method in ["sendmmsg", "gso", "zerocopy", "zerocopy-gso", "uring-zerocopy", "uring-zerocopy-gso"] {
        series = series.with(method, "", "socket");
    }
    series = series.with("xdp-udp", "", "socket").with("xdp-copy", "", "socket");
    if sink == "segmented" {
        series = series.with("xdp-udp", "no-checksum", "socket").with("xdp-copy", "no-checksum", "socket");
    }
    series.with("auto", "", "socket gso uring-zerocopy-gso")
}

fn udp_receive() -> Vec<Series> {
    let of_length = |bytes: usize| {
        let title = format!("udp-receive, {bytes}-byte datagrams");
        Series::new("udp-receive", title, Figure::PacketsPerSecond, bytes)
            .into(EVERY_BYTE)
            .with("recvmmsg", "", "")
            .with("auto", "", "recvmmsg")
    };
    [64, 1400].map(of_length).into()
}

fn tcp() -> Vec<Series> {
    let new = |workload: &'static str, link: &str, mtu_bytes: u32, about: &str| {
        let title = format!("{workload} over {link}, MTU {mtu_bytes}, cubic{about}");
        Series::new(workload, title, Figure::BytesPerSecond, 128 << 10).over(link, mtu_bytes)
    };
    let both = [("lo", 65_536), ("veth", 1500)];
    let owned = |(link, mtu_bytes)| {
        new("tcp-send", link, mtu_bytes, "")
            .with("plain", "", "")
            .with("zerocopy", "", "plain")
            .with("uring-zerocopy", "", "plain")
            .with("auto", "", "plain uring-zerocopy")
    };
    let published = |(link, mtu_bytes)| {
        new("tcp-send", link, mtu_bytes, ", the same 1 MiB again and again")
            .with("plain", "", "")
            .with("published", "", "plain")
            .with("sendfile", "", "plain")
            .with("vmsplice", "", "plain")
    };
    let pages = |mtu_bytes| {
        new("tcp-receive", "veth", mtu_bytes, ", from whole pages by MSG_ZEROCOPY")
            .with("recv", "64-KiB", "")
            .with("mapped", "", "recv")
            .with("auto", "", "recv")
    };
    let buffers = |(link, mtu_bytes)| {
        let lengths = ["1-KiB", "4-KiB", "16-KiB", "64-KiB", "256-KiB", "1-MiB", "4-MiB"];
        let series = new("tcp-receive", link, mtu_bytes, "");
        let series = lengths.iter().fold(series, |series, length| series.with("recv", *length, ""));
        series.with("auto", "", "recv")
    };
    let proxy = new("tcp-proxy", "lo", 65_536, "")
        .with("read-write", "64-KiB", "")
        .with("read-write", "256-KiB", "")
        .with("splice", "", "read-write");
    let sends = both.into_iter().flat_map(|place| [owned(place), published(place)]);
    let receives = both.map(buffers).into_iter().chain([1500, 4148, 8244, 9000].map(pages));
    sends.chain(receives).chain([proxy]).collect()
}

fn latency() -> Vec<Series> {
    let title = "latency, 64-byte payload, there and back";
    let series = Series::new("latency", title, Figure::MedianLatency, 64)
        .with("udp-blocking", "", "")
        .with("udp-spinning", "", "")
        .with("tcp-blocking", "", "udp-blocking")
        .with("tcp-spinning", "", "udp-spinning")
        .with("xdp-poll", "", "udp-blocking")
        .with("xdp-spinning", "", "udp-spinning tcp-spinning");
    vec![series]
}

fn messages() -> Vec<Series> {
    let round_trips = ["64 B", "1 KiB", "8 KiB", "64 KiB"].map(|length| {
        let title = format!("message-latency, {length} there and back, MTU 1500");
        Series::new("message-latency", title, Figure::MedianLatency, 64)
            .over("veth", 1500)
            .with("tcp-blocking", "", "")
            .with("tcp-spinning", "", "")
            .with("udp-spinning", "", "tcp-spinning")
            .with("xdp-spinning", "", "tcp-spinning udp-spinning")
            .with("message-xdp", "spinning", "tcp-spinning xdp-spinning udp-spinning")
            .with("message-xdp", "blocking", "tcp-blocking")
            .with("message-xdp", "adaptive", "tcp-blocking tcp-spinning")
            .with("message-udp", "spinning", "tcp-spinning udp-spinning")
            .with("message-udp", "blocking", "tcp-blocking")
            .with("message-udp", "adaptive", "tcp-blocking tcp-spinning")
            .with("fi_pingpong", "", "")
    });
    let lengths = [("64 B", 1500), ("1 KiB", 1500), ("64 KiB", 1500), ("1 MiB", 1500), ("1 MiB", 9000)];
    let one_way = lengths.map(|(length, mtu_bytes)| {
        let title = format!("message-stream, {length}, MTU {mtu_bytes}");
        Series::new("message-stream", title, Figure::MessagesPerSecond, 64)
            .over("veth", mtu_bytes)
            .with("tcp-blocking", "", "")
            .with("tcp-batched", "", "tcp-blocking")
            .with("tcp-spinning", "", "tcp-blocking")
            .with("message-xdp", "blocking", "tcp-blocking tcp-batched xdp-spinning")
            .with("message-xdp", "spinning", "tcp-blocking tcp-batched xdp-spinning")
            .with("message-udp", "blocking", "tcp-blocking tcp-batched udp-spinning")
            .with("message-udp", "spinning", "tcp-blocking tcp-batched udp-spinning")
            .with("udp-spinning", "", "tcp-blocking")
            .with("xdp-spinning", "", "tcp-blocking")
    });
    round_trips.into_iter().chain(one_way).collect()
}
