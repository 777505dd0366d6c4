//! Descriptions against tcpdump's, of packets that two kernels exchanged.
//!
//! `tcpdump.txt` holds for each packet a line with its length and its first 128 bytes, as captured, and the
//! line that tcpdump 4.99 (`-n -S -t`) printed of all of it.

use std::collections::HashSet;

use nocopy_proto::describe::{CapturedBytes, DescriptionStyle};

const PACKETS: &str = include_str!("tcpdump.txt");

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Addresses, numbers and names, without what stands between them.
fn words_of_line(line: &str) -> HashSet<String> {
    let separators = [' ', ',', '(', ')', '|', '[', ']'];
    line.split(separators)
        .map(|word| word.trim_end_matches(':').to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// What tcpdump says in other words: the kind of a fragment, and what it knows of HTTP.
const OTHERWISE: [(&str, &str); 3] = [("ip-proto-17", "UDP"), ("frag", "fragment"), ("HTTP", "length")];

#[test]
fn descriptions_have_tcpdumps_fields() {
    let lines: Vec<&str> = PACKETS.lines().collect();
    let (mut equal, mut packets) = (0, 0);
    for pair in lines.chunks(2) {
        let [packet, theirs] = pair else { panic!("a line is missing") };
        let (length, hex) = packet.split_once(' ').unwrap();
        let (bytes, packet_bytes) = (bytes_of_hex(hex), length.parse().unwrap());
        let mut ours = String::new();
        CapturedBytes { bytes: &bytes, packet_bytes }.describe(DescriptionStyle::default(), &mut ours);
        packets += 1;
        equal += u32::from(ours == *theirs);
        let known = words_of_line(&ours);
        for word in words_of_line(theirs) {
            let other = OTHERWISE.iter().find(|(theirs, _)| *theirs == word);
            let word = other.map_or(word.as_str(), |(_, ours)| ours);
            // Of a first fragment, ports stand with the addresses here.
            let with_port = |known: &String| {
                known.ends_with(&format!(".{word}")) || known.starts_with(&format!("{word}."))
            };
            let found = known.contains(word) || known.iter().any(with_port);
            assert!(found, "'{word}' is missing\n  {ours}\n  {theirs}");
        }
    }
    assert!(packets >= 25 && equal >= 20, "{equal} of {packets} lines are the same");
}
