//! `nocopy profile sweep` as users run it: every cell is there, and the counts match what was sent.

use std::collections::HashSet;
use std::process::Command;

use nocopy_lab::lab_or_skip;
use serde_json::Value;

/// More signals than a call of some milliseconds meets while something stops its process several times a
/// second.
const SIGNALS_MAX: u64 = 4;

#[test]
fn a_sweep_counts_every_byte_of_every_cell() {
    if lab_or_skip().is_none() {
        return;
    }
    let arguments = ["profile", "sweep", "--quick", "--rounds", "1", "--bytes", "3MiB", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_nocopy")).args(arguments).output().unwrap();
    // Whatever the exit code: windows this short have so few samples that the time of some may not add up.
    let sweep: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(sweep["schema"], "nocopy.profile-sweep/3");
    let cells = sweep["cells"].as_array().unwrap();
    // Each buffer's length with each receive buffer, and with GRO and without.
    let settings = |field: &'static str| -> HashSet<String> {
        cells.iter().map(|cell| cell[field].to_string()).collect()
    };
    let all = ["buffer_bytes", "receive_buffer_bytes", "gro"].map(settings);
    assert!(all[0].len() > 1 && all[1].len() == 2 && all[2].len() == 2, "{all:?}");
    assert_eq!(cells.len(), all.iter().map(HashSet::len).product::<usize>());
    for cell in cells {
        let figures = &cell["figures"];
        assert_eq!(figures["received_bytes"], 3 << 20, "{cell}");
        assert_eq!(figures["copies"]["received"]["tcp_bytes"], 3 << 20, "{cell}");
        assert!(cell["unprofiled_gbit_per_s"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        let exact = cell["checks"].as_array().unwrap().iter().filter(|check| check["unit"] == "bytes");
        assert!(exact.clone().count() >= 3 && exact.clone().all(|check| check["passed"] == true), "{cell}");
        // Whole buffers, and the rest of the last one or the end; a signal cuts a call in two.
        let buffer_bytes = cell["buffer_bytes"].as_u64().unwrap();
        let receives = figures["calls"].as_array().unwrap().iter().find(|calls| calls["kind"] == "receive");
        let count = receives.unwrap()["count"].as_u64().unwrap();
        let expected = (3 << 20) / buffer_bytes + 1;
        assert!((expected..=expected + SIGNALS_MAX).contains(&count), "{cell}");
    }
    let joined = |gro: bool| {
        let cells = cells.iter().filter(|cell| cell["gro"] == gro).map(|cell| &cell["figures"]["tcp"]);
        let count = |name| -> u64 { cells.clone().map(|tcp| tcp[name].as_u64().unwrap()).sum() };
        count("segments_in") as f64 / count("packets_in") as f64
    };
    assert!(joined(true) > 2.0 * joined(false), "{} {}", joined(true), joined(false));
    let largest = |fixed: bool| {
        let cells = cells.iter().filter(|cell| cell["receive_buffer_bytes"].is_u64() == fixed);
        cells.map(|cell| cell["figures"]["tcp"]["receive_buffer_bytes"].as_u64().unwrap()).max().unwrap()
    };
    // The kernel doubles the value.
    assert_eq!(largest(true), 128 << 10);
    assert!(largest(false) > 128 << 10);
}
