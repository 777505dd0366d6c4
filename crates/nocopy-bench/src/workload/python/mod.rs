//! Programs in Python that use this library's module, against those that use the standard library and the
//! packages that are known for the same work.

mod captured_packets;
mod evidence;
mod generated;
mod heaps;
mod interpreter;
mod messages;
mod placed_heaps;
mod program;
mod raw_receiving;
mod received_datagrams;
mod sent_array;

use std::collections::BTreeSet;

use super::udp_send::{delivered_testbed, pair_testbed, private_site_pair};
use super::{LOOPBACK, Workload, capture};
use crate::Failure;
use crate::bench::Bench;
use crate::datagram::DatagramSpec;
use crate::plan::BenchPlan;
use crate::stage::{SitePair, USUAL_MTU_BYTES};
use interpreter::Interpreter;
use nocopy_lab::Lab;
use nocopy_report::figure::Figure;
use placed_heaps::Compared;

const NAME: &str = "python";

/// What nearly fills the usual MTU.
const DATAGRAM_BYTES: usize = 1400;

/// Rows of each array: 5.7 MB of datagrams, more than a processor's own cache.
const ARRAY_ROWS: usize = 4096;

/// Programs in Python that send and receive arrays.
pub(crate) const PYTHON: Workload = Workload {
    name: NAME,
    about: "Programs in Python that move arrays, over the module nocopy and over what they use otherwise",
    methods: &[
        ("recv_into", "a loop of socket.recv_into() into the rows of an array"),
        ("rust", "a program in Rust that does the same as receive_into"),
        ("receive_into", "nocopy: UdpSocket.receive_into() into the rows of an array"),
        ("receive", "nocopy: UdpSocket.receive(), which returns arrays without a copy"),
        ("sendto", "a loop of socket.sendto() of the rows of an array"),
        ("send_to", "nocopy: UdpSocket.send_to() of the array"),
        ("packet-socket", "a loop of recv_into() on a packet socket, and numpy.unique() of the sources"),
        ("scapy", "scapy's AsyncSniffer, which calls a function for each packet"),
        ("pcapy-dpkt", "pcapy-ng's dispatch(), and dpkt to find the source of each packet"),
        ("capture", "nocopy.Capture, and numpy.unique() of the sources of a block"),
        ("recv_raw", "recv_raw() of scapy's own socket"),
        ("recv_raw-nocopy", "recv_raw() of the socket that nocopy.scapy.use() puts in its place"),
        ("spead2", "spead2's ChunkRingStream, on its own heaps"),
        ("place", "nocopy: UdpSocket.place(), by heap and offset"),
        ("push-pull", "pyzmq, PUSH to PULL over tcp"),
        ("send_many", "nocopy: Endpoint.send_many() to receive_many()"),
        ("req-rep", "pyzmq, REQ to REP over tcp"),
        ("call", "nocopy: Endpoint.call() to respond(), both blocking"),
    ],
    lab_only: Some(LOOPBACK),
    notes: &[
        "python: each program is a process of its own. Its packets are those that it counts itself, its processor time that of all its threads; \
         no program looks at the bytes.",
    ],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

/// What some programs need besides `nocopy` and `numpy`: the methods of the others are measured without it.
fn needed_packages() -> BTreeSet<&'static str> {
    let datagrams = placed_heaps::PACKAGES.into_iter();
    let packets = captured_packets::PACKAGES.into_iter().chain(raw_receiving::PACKAGES);
    datagrams.chain(packets).chain(messages::PACKAGES).collect()
}

fn skip_notes(plan: &BenchPlan) -> Vec<String> {
    let interpreter = Interpreter::find(plan);
    if let Some(absence) = interpreter.absence() {
        return vec![format!("SKIP: {NAME}: {absence}.")];
    }
    let missing = needed_packages().into_iter().filter_map(|package| interpreter.absence_of(package));
    let missing = missing.chain(placed_heaps::compiler_absence());
    let skips = missing.map(|absence| format!("SKIP: {NAME}: {absence}."));
    skips.chain([format!("{NAME}: {}.", interpreter.describe())]).collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let interpreter = &Interpreter::find(bench.plan);
    if interpreter.absence().is_some() {
        return Ok(()); // a note says so
    }
    measure_datagrams(bench, interpreter)?;
    if interpreter.has(placed_heaps::PACKAGES[0]) {
        measure_placing(bench, interpreter)?;
    }
    if interpreter.has(captured_packets::PACKAGES[0]) {
        let stage = generated_stage()?;
        bench.run_series(vec![captured_packets::build_series(&stage, interpreter)], 70)?;
    }
    if raw_receiving::PACKAGES.iter().all(|package| interpreter.has(package)) {
        let stage = generated_stage()?;
        bench.run_series(vec![raw_receiving::build_series(&stage, interpreter)], 10)?;
    }
    if interpreter.has(messages::PACKAGES[0]) {
        let stage = private_site_pair(USUAL_MTU_BYTES)?;
        bench.run_series(messages::build_series(&stage, interpreter), 20)?;
    }
    Ok(())
}

/// With GRO, as a card has it; only so does a veth take what the kernel resends.
fn generated_stage() -> Result<SitePair, Failure> {
    SitePair::in_private_lab(Lab::builder().gro_right(capture::WITH_GRO))
}

fn measure_datagrams(bench: &mut Bench<'_>, interpreter: &Interpreter) -> Result<(), Failure> {
    let testbeds = [
        pair_testbed(private_site_pair(USUAL_MTU_BYTES)?)?,
        delivered_testbed(private_site_pair(USUAL_MTU_BYTES)?)?,
    ];
    let stage = &testbeds[0].stage;
    let ways = [DatagramSpec::in_bursts(DATAGRAM_BYTES), DatagramSpec::singly(DATAGRAM_BYTES)];
    let received = ways.map(|datagrams| received_datagrams::build_series(stage, interpreter, datagrams));
    // Programs that are faster than their sender differ in their processor time alone.
    let by = [Figure::PacketsPerSecond, Figure::ReceiverCpuPerPacket];
    bench.run_series_for_figures(received.into(), &by, 40)?;
    let resent = generated_stage()?;
    bench.run_series(vec![received_datagrams::build_series_resent(&resent, interpreter)], 40)?;
    let sent = testbeds.iter().map(|testbed| sent_array::build_series(testbed, interpreter));
    bench.run_series(sent.collect(), 20)
}

fn measure_placing(bench: &mut Bench<'_>, interpreter: &Interpreter) -> Result<(), Failure> {
    let stage = private_site_pair(USUAL_MTU_BYTES)?;
    let series = |a_burst, compared| placed_heaps::build_series(&stage, interpreter, a_burst, compared);
    let bursts = DatagramSpec::in_bursts(DATAGRAM_BYTES).a_burst;
    let all = [bursts, 1]
        .map(|a_burst| [Compared::HighestRate, Compared::ReceiverCpu].map(|it| series(a_burst, it)));
    bench.run_series(all.into_iter().flatten().collect(), 80)
}
