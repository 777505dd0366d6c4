//! A port's memory in a forked child: mapped if that was requested, unmapped otherwise.

use std::fs;

use nocopy::Port;
use nocopy::area::{Area, AreaConfig};
use nocopy::integration::PortTuning;

/// How many mappings of this process of at least so many bytes are kept out of forked children (`dc`,
/// proc_pid_smaps(5)).
fn excluded_mappings(bytes: u64) -> usize {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut large = false;
    let mut count = 0;
    for line in text.lines() {
        if let Some(size) = line.strip_prefix("Size:") {
            large = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024 >= bytes;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            count += usize::from(large && flags.split_whitespace().any(|flag| flag == "dc"));
        }
    }
    count
}

#[test]
fn memory_stays_in_a_forked_child_only_on_request() {
    let frame_count = 16 << 10;
    let bytes = u64::from(frame_count) * 2048;
    let before = excluded_mappings(bytes);
    let config = AreaConfig { frame_count, ..AreaConfig::default() };
    let inherited = Area::new(AreaConfig { inherited: true, ..config }).unwrap();
    let pair = Port::memory_builder()
        .tuning(PortTuning { inherited: true, ..PortTuning::default() })
        .frame_count(frame_count, 16)
        .memory_pair()
        .unwrap();
    assert_eq!(excluded_mappings(bytes), before, "inherited");
    let usual = Area::new(config).unwrap();
    assert_eq!(excluded_mappings(bytes), before + 1, "kept out of a child");
    drop((inherited, pair, usual));
}
