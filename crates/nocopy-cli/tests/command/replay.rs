//! `nocopy send --replay` of files that are not plain recordings of Ethernet with right times.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::recording::{ETHERNET, RecordedPacket, WrittenInterface, pcap_file, pcapng_file};
use crate::scratch::ScratchFile;
use crate::send::{open_receiver, receive_packets, run_send, send_and_summarize, utf8_text};
use nocopy_lab::lab_or_skip;
use serde_json::{Value, json};

const SECOND_NS: u64 = 1_000_000_000;
const NOW_NS: u64 = 1_700_000_000 * SECOND_NS;

fn numbered_frame(number: u8) -> Vec<u8> {
    let mut frame = vec![number; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

fn packets_at_times(times_ns: &[u64]) -> Vec<RecordedPacket> {
    times_ns
        .iter()
        .zip(0..)
        .map(|(&time_ns, number)| RecordedPacket::new(time_ns, numbered_frame(number)))
        .collect()
}

/// A time of zero, a jump of hours, a step back: each costs a bounded time, and is counted.
#[test]
fn invalid_timestamps_cause_no_wait() {
    let Some(lab) = lab_or_skip() else { return };
    let mut right = open_receiver(lab.right());
    let jump_ns = 65_536 * SECOND_NS;
    for (times, gaps, skipped_seconds, steps_back) in [
        (&[0, NOW_NS, NOW_NS + 1000][..], 1, 1.7e9, 0),
        (&[NOW_NS, NOW_NS + jump_ns, NOW_NS, NOW_NS + 1000], 1, 65_535.9, 1),
        (&[NOW_NS + 99 * jump_ns, NOW_NS, NOW_NS + 1000], 0, 0.0, 1),
        (&[NOW_NS, NOW_NS + 1000], 0, 0.0, 0),
    ] {
        let packets = packets_at_times(times);
        for file in [pcap_file(false, true, 1, &packets), pcapng_file(true, &[ETHERNET], &packets)] {
            let file = ScratchFile::with_content("times", file);
            let summary = send_and_summarize(&lab, &["--replay", file.path(), "--max-gap=100ms"]);
            let replay = &summary["replay"];
            assert_eq!(
                [&replay["gaps_shortened"], &replay["steps_back"]],
                [&json!(gaps), &json!(steps_back)],
                "{summary}"
            );
            let found = replay["skipped_seconds"].as_f64().unwrap();
            assert!((found - skipped_seconds).abs() < 1.0, "{found}");
            assert_eq!(receive_packets(&mut right, packets.len()).len(), packets.len());
        }
    }
    let file = ScratchFile::with_content(
        "times",
        pcap_file(false, true, 1, &packets_at_times(&[NOW_NS, NOW_NS + jump_ns, NOW_NS])),
    );
    let table = utf8_text(&run_send(&lab, &["--replay", file.path(), "--max-gap=100ms"]).stdout);
    let words = "65536 s: 1 gap(s) longer than 100 ms (--max-gap); 1 step(s) back in time ignored";
    assert!(table.contains(words), "{table}");
    let summary = send_and_summarize(&lab, &["--replay", file.path(), "--timing=flat-out"]);
    assert_eq!(summary["replay"].get("gaps_shortened"), None, "no time counts: {summary}");
}

/// Packets of several links in one file: those that Ethernet carries become frames, the others are counted by
/// name.
#[test]
fn packets_of_other_link_types_are_sent_as_ethernet_frames() {
    let Some(lab) = lab_or_skip() else { return };
    let mut right = open_receiver(lab.right());
    let mut ip =
        [&[0x45, 0, 0, 48, 0, 0, 0, 0, 64, 17, 9, 9, 192, 0, 2, 1, 192, 0, 2, 2][..], &[0; 28]].concat();
    ip[20..28].copy_from_slice(&[0, 9, 0, 9, 0, 28, 9, 9]);
    let cooked = [&[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 0x33, 0, 0, 8, 0][..], &ip].concat();
    let links = [1, 113, 101, 127].map(|link_type| WrittenInterface { link_type, ..ETHERNET });
    let packets: Vec<_> = [numbered_frame(1), cooked, ip.clone(), vec![0; 60], ip.clone()]
        .into_iter()
        .zip([0, 1, 2, 3, 2])
        .map(|(bytes, interface)| RecordedPacket { interface, ..RecordedPacket::new(NOW_NS, bytes) })
        .collect();
    let mut cut = packets;
    cut[4].cut_bytes = 40;
    let file = ScratchFile::with_content("links", pcapng_file(false, &links, &cut));
    let options = ["--destination-mac=02:00:00:00:00:77", "--fix-checksums", "--json"];
    let output = run_send(&lab, &[&["--replay", file.path()], &options[..]].concat());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &summary["packets"]), (Some(1), &json!(4)), "{summary}");
    let not_sent = json!({ "too_long": 0, "too_short": 0, "link_type_ieee802_11_radiotap": 1 });
    assert_eq!(summary["not_sent"], not_sent);
    let replay = &summary["replay"];
    assert_eq!(
        [&replay["checksums_fixed"], &replay["checksums_not_fixed"], &replay["truncated"]],
        [2, 1, 1],
        "{summary}"
    );
    let frames = receive_packets(&mut right, 4);
    assert!(frames.iter().all(|frame| frame[..6] == [2, 0, 0, 0, 0, 0x77]), "{frames:?}");
    assert_eq!(frames[0][6..], numbered_frame(1)[6..]);
    assert_eq!(frames[1][6..14], [2, 0, 0, 0, 0, 0x33, 8, 0]);
    assert_eq!(frames[1][14..], frames[2][14..]);
    let (header, datagram) = (&frames[1][14..34], &frames[1][34..]);
    assert_eq!([&header[10..12], &datagram[6..8]], [[0xf6, 0xb9], [0x7b, 0xa0]], "{header:?} {datagram:?}");
    assert_eq!(frames[3][14..], ip, "it was cut, so its checksums are left");
}

#[test]
fn compressed_recordings_are_sent() {
    let Some(lab) = lab_or_skip() else { return };
    let mut right = open_receiver(lab.right());
    let packets = packets_at_times(&[NOW_NS; 50]);
    let plain = pcap_file(false, true, 1, &packets);
    let mut gzip = Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(&plain).unwrap();
    let gzip = gzip.wait_with_output().unwrap().stdout;
    // One frame of one block that is not compressed.
    let block = (plain.len() as u32) << 3 | 1;
    let zstd = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x50][..], &block.to_le_bytes()[..3], &plain].concat();
    for (compression, packed) in [("gzip", gzip), ("zstd", zstd)] {
        let file = ScratchFile::with_content(compression, packed);
        let summary = send_and_summarize(&lab, &["--replay", file.path(), "--loop=2"]);
        assert_eq!([&summary["replay"]["compression"], &summary["replay"]["format"]], [compression, "pcap"]);
        let found = receive_packets(&mut right, 100);
        assert!(found.iter().eq(packets.iter().chain(&packets).map(|packet| &packet.bytes)), "{compression}");
    }
}
