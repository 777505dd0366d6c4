//! Compressed files: whole, in parts, cut off and damaged.

use std::collections::BTreeSet;
use std::io::Write;

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Several frames, each of one block.
fn zstd_frames(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(5000).flat_map(zstd).collect()
}

/// A frame that contains no data.
fn skippable_zstd_frame(bytes: u32) -> Vec<u8> {
    [&0x184d_2a53_u32.to_le_bytes()[..], &bytes.to_le_bytes(), &vec![7; bytes as usize]].concat()
}

/// A zstd frame of blocks that each repeat a byte, without a checksum; its window is 2 to the power of
/// `window`.
fn zstd_frame_of_repeats(window: u8, blocks: &[(u8, u32)]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (window - 10) << 3];
    for (number, (byte, count)) in blocks.iter().enumerate() {
        let is_last = u32::from(number + 1 == blocks.len());
        frame.extend(&(count << 3 | 1 << 1 | is_last).to_le_bytes()[..3]);
        frame.push(*byte);
    }
    frame
}

#[test]
fn compressed_files_can_be_read_several_times() {
    let packets = test_packets(400);
    for big_endian in [false, true] {
        let file = pcapng(big_endian, &[ETHERNET], &packets);
        let (one, two) = file.split_at(file.len() / 3);
        for packed in [
            gzip(&file),
            [gzip(one), gzip(two)].concat(),
            [gzip(one), gzip(b""), gzip(two), vec![0; 3000]].concat(),
            zstd(&file),
            [
                skippable_zstd_frame(0),
                zstd(one),
                skippable_zstd_frame(900_000),
                zstd(b""),
                zstd(two),
                skippable_zstd_frame(9),
            ]
            .concat(),
        ] {
            assert_file_yields_packets(&packed, &packets, 1);
            let mut playback = open_playback(Cursor::new(&packed), RepeatCount::Times(3)).unwrap();
            let mut sent = 0;
            while let PeekResult::Packet(upcoming) = playback.peek().unwrap() {
                assert_eq!(upcoming.bytes, packets[sent % packets.len()].bytes.len());
                sent += 1;
                playback.advance();
            }
            assert_eq!((sent, playback.rounds_done()), (3 * packets.len(), 3));
        }
    }
}

/// Everything that can be decompressed is read, and then the damage is reported.
#[test]
fn truncated_compressed_files_yield_the_packets_before_the_end() {
    let packets = test_packets(60);
    let file = pcap(false, true, 1, &packets);
    let whole = read_all_packets(&file).0;
    for (compression, packed) in [("gzip", gzip(&file)), ("zstd", zstd_frames(&file))] {
        let mut most = 0;
        for bytes in (4..packed.len()).step_by(61).chain([packed.len() - 1]) {
            let (found, damage) = read_all_packets(&packed[..bytes]);
            assert_eq!(found, whole[..found.len()], "{bytes}");
            most = most.max(found.len());
            let words = damage.map(|damage| damage.to_string()).unwrap_or_default();
            let expected =
                format!("its {compression} data end too early; decompress it with '{compression} -dc'");
            // Two frames are two files: the first one alone is a pcap file that ends.
            assert!(words.contains(&expected) || words.contains("it ends inside packet"), "{bytes}: {words}");
        }
        assert!(most > 50, "{compression}: {most}");
    }
}

#[test]
fn damaged_compressed_data_is_reported() {
    let packets = test_packets(60);
    let file = pcap(false, true, 1, &packets);
    let mut damaged = gzip(&file);
    let sum_at = damaged.len() - 8;
    damaged[sum_at] ^= 1;
    let (found, damage) = read_all_packets(&damaged);
    assert_eq!(found.len(), packets.len(), "a wrong sum is noticed at the end");
    assert!(damage.unwrap().to_string().contains("its gzip data are damaged"));
    let mut damaged = zstd(&file);
    let sum_at = damaged.len() - 1;
    damaged[sum_at] ^= 1;
    let (found, damage) = read_all_packets(&damaged);
    assert_eq!(found.len(), packets.len());
    assert!(damage.unwrap().to_string().contains("its zstd data are damaged"));
    assert!(error_text(&[gzip(&file), b"tail".to_vec()].concat()).contains("its gzip data are damaged"));
    assert!(error_text(&[zstd(&file), b"tail".to_vec()].concat()).contains("its zstd data are damaged"));
    assert!(error_text(&zstd_frame_of_repeats(28, &[(0, 1)])).contains("need more than 128 MiB of memory"));
    assert!(error_text(&[0x28, 0xb5, 0x2f, 0xfd, 1, 0x48, 5]).contains("need a dictionary"));
    assert_eq!(error_text(&gzip(b"")), "it is empty; record it again");
    assert!(error_text(&gzip(&gzip(&file))).starts_with("it is no capture file (it begins with 1f 8b"));
}

/// The memory is that of the window, whatever a frame claims and however much it holds.
#[test]
fn a_claimed_window_size_costs_no_memory() {
    let zeros = zstd_frame_of_repeats(20, &[(0, 128 << 10); 64]);
    let mut unpacked = 0;
    let mut content = content::DecompressedInput::open(&zeros[..]).unwrap();
    while let bytes @ 1.. = content.peek(100_000).unwrap().len() {
        assert!(content.peeked_part(0, bytes).iter().all(|byte| *byte == 0));
        content.skip(bytes);
        unpacked += bytes;
    }
    assert_eq!(unpacked, 8 << 20);
    assert!(error_text(&zstd_frame_of_repeats(27, &[(0, 1), (0, 1)])).contains("it is no capture file"));
}

/// Packed data of nothing: more than is read in search of a byte.
fn empty_compressed_files() -> Vec<(&'static str, Vec<u8>)> {
    const BYTES: usize = 3 << 19;
    let repeated = |one: &[u8]| one.repeat(BYTES / one.len());
    let member = GzBuilder::new().filename([b'n'; 500]).write(Vec::new(), Compression::fast()).finish();
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let stored = [0, 0, 0, 0xff, 0xff];
    let end = [1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        ("blocks of gzip", [&head[..], &repeated(&stored), &end].concat()),
        ("members of gzip", repeated(&member.unwrap())),
        ("blocks of zstd", zstd_frame_of_repeats(20, &[(0, 0); BYTES / 4])),
        (
            "frames of zstd",
            repeated(&[zstd_frame_of_repeats(20, &[(0, 0)]), skippable_zstd_frame(500)].concat()),
        ),
        ("long frames of zstd", repeated(&skippable_zstd_frame(500_000))),
        ("one frame of zstd", skippable_zstd_frame(3_000_000)),
    ]
}

/// Before a file, in it and behind it, in each round.
#[test]
fn compressed_data_without_content_can_be_interrupted() {
    let packets = test_packets(20);
    let file = pcap(false, true, 1, &packets);
    let (one, two) = file.split_at(file.len() / 2);
    let settings = PlaybackSettings {
        rounds: RepeatCount::Times(2),
        gap_max: GAP_MAX,
        addresses: ADDRESSES,
        fix_checksums: false,
    };
    for (kind, nothing) in empty_compressed_files() {
        let pack = if kind.ends_with("gzip") { gzip } else { zstd };
        let packed = [&nothing[..], &pack(one), &nothing, &pack(two), &nothing].concat();
        let interrupted = Playback::new(Cursor::new(&packed), settings, || true).err();
        assert!(matches!(interrupted, Some(CaptureError::Silence)), "{kind}: {interrupted:?}");
        let mut playback = Playback::new(Cursor::new(&packed), settings, || false).unwrap();
        let (mut sent, mut silences) = (0, BTreeSet::new());
        loop {
            match playback.peek().unwrap() {
                PeekResult::Packet(upcoming) => {
                    assert_eq!(upcoming.bytes, packets[sent % packets.len()].bytes.len(), "{kind}");
                    sent += 1;
                    playback.advance();
                }
                PeekResult::Silence => {
                    silences.insert(sent);
                }
                PeekResult::End => break,
            }
        }
        assert_eq!((sent, playback.rounds_done(), playback.capture().format()), (40, 2, "pcap"), "{kind}");
        // Inside of each round, before the second, and at the end.
        assert_eq!(silences.len(), 4, "{kind}: {silences:?}");
    }
}

/// A pipe that has a few bytes now and then.
struct SlowPipe<'a> {
    bytes: &'a [u8],
    turn: usize,
}

impl Read for SlowPipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.turn.is_multiple_of(2) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let drop = buffer.len().min(1 + self.turn % 41);
        (&mut self.bytes).take(drop as u64).read(buffer)
    }
}

#[test]
fn a_pipe_that_pauses_is_read_completely() {
    let packets = test_packets(400);
    for file in [pcap(true, true, 1, &packets), pcapng(false, &[ETHERNET], &packets)] {
        for packed in [file.clone(), gzip(&file), [skippable_zstd_frame(90), zstd_frames(&file)].concat()] {
            let mut pipe = SlowPipe { bytes: &packed, turn: 0 };
            // The beginning is waited for.
            let (begin, rest) = packed.split_at(packed.len() / 2);
            pipe.bytes = rest;
            let mut capture = CaptureReader::open(begin.chain(pipe)).unwrap();
            let mut found = Vec::new();
            loop {
                match capture.next_packet() {
                    Ok(Some(_)) => found.push(capture.packet().to_vec()),
                    Ok(None) => break,
                    Err(CaptureError::Silence) => {}
                    Err(damage) => panic!("{damage}"),
                }
            }
            assert!(found.iter().eq(packets.iter().map(|packet| &packet.bytes)), "{}", found.len());
        }
    }
}
