//! Captures in owned blocks, on real traffic: veth pairs in private namespaces.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, lab, numbered_packet, open_port, packets_of_many_lengths, send_packets};
use nocopy::capture::{Block, Builder, OpenError};
use nocopy::integration::{BlockReader, PcapngLayout};
use nocopy::port::{FilterPlace, InterfaceError};
use nocopy::{Capture, Cause, Evidence, Mode, Port, Wait};
use nocopy_lab::End;
use nocopy_lab::patience::{uninterrupted, wait_until};
use nocopy_proto::filter::{Instruction, Program};

fn open_capture(end: &End, set: impl FnOnce(Builder) -> Builder + Send) -> Capture {
    let builder = || set(Capture::builder(end.interface()).blocks(1 << 16, 8));
    end.namespace().run(|| builder().block_timeout(Duration::from_millis(5)).open()).unwrap()
}

fn next_block(blocks: &mut Capture) -> Block {
    blocks.receive_timeout(PATIENCE).unwrap().expect("a block")
}

fn block_packets(block: &mut Block) -> Vec<Vec<u8>> {
    block.packets().map(|packet| packet.bytes.to_vec()).collect()
}

fn receive_from_blocks(blocks: &mut Capture, count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(block_packets(&mut next_block(blocks)));
    }
    received
}

#[test]
fn packets_arrive_unchanged_with_times_and_reach_the_host() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let mut left = open_port(lab.left());
    for round in 0..20 {
        let packets = packets_of_many_lengths(lab.right(), round);
        send_packets(&mut left, &packets);
        assert_eq!(receive_from_blocks(&mut blocks, 100), packets);
    }
    drop(left);
    let (left, right) = (lab.left(), lab.right());
    let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    sender.send_to(b"for both", (right.ipv4(), 9001)).unwrap();
    assert_eq!(uninterrupted(|| receiver.recv(&mut [0; 64])).unwrap(), 8);
    let mut block = next_block(&mut blocks);
    let captured = block.packets().next().unwrap();
    assert!(captured.bytes.ends_with(b"for both") && !captured.outgoing && captured.vlan.is_none());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.saturating_sub(Duration::from_nanos(captured.time_ns));
    assert!(age < Duration::from_secs(60), "{age:?}");
    let (stats, ledger) = (blocks.stats(), blocks.ledger());
    assert_eq!(
        (stats.get("tp_packets").unwrap(), stats.get("packets").unwrap(), stats.dropped),
        (2001, 2001, 0)
    );
    assert!(stats.moved >= 21 && stats.bytes > 2000 * 60, "{stats}");
    assert_eq!(
        (ledger.datagrams(), ledger.bytes_of(Evidence::Copied(Cause::PacketRing))),
        (2001, stats.bytes)
    );
}

#[test]
fn a_vlan_tag_is_reinserted_once() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let mut tagged = numbered_packet(lab.right(), 1, 100);
    tagged.splice(12..12, [0x81, 0x00, 0x01, 0x23]);
    send_packets(&mut open_port(lab.left()), std::slice::from_ref(&tagged));
    let mut block = next_block(&mut blocks);
    for _ in 0..2 {
        let captured = block.packets().next().unwrap();
        assert_eq!((captured.bytes, captured.original_bytes), (&tagged[..], 104));
        assert_eq!(captured.vlan.map(|tag| (tag.protocol, tag.control)), Some((0x8100, 0x0123)));
    }
}

#[test]
fn immediate_mode_gives_each_packet_a_block_and_counts_drops() {
    const TOO_MANY: usize = 20;
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder.immediate(true).outgoing(true));
    let room = blocks.fill().total as usize;
    let mut left = open_port(lab.left());
    let mut packets = packets_of_many_lengths(lab.right(), 1);
    packets[7].splice(12..12, [0x81, 0x00, 0x01, 0x23]);
    send_packets(&mut left, &packets);
    for (number, packet) in packets.iter().enumerate() {
        let mut block = next_block(&mut blocks);
        for _ in 0..2 {
            let captured = block.packets().next().unwrap();
            assert_eq!((captured.bytes, captured.original_bytes as usize), (&packet[..], packet.len()));
            assert_eq!((captured.vlan.is_some(), captured.outgoing), (number == 7, false));
        }
        assert_eq!(block.packets().count(), 1);
    }
    let many: Vec<_> =
        (0..room + TOO_MANY).map(|number| numbered_packet(lab.right(), number as u32, 100)).collect();
    many.chunks(50).for_each(|some| send_packets(&mut left, some));
    let arrived = (packets.len() + many.len()) as u64;
    wait_until("there, or dropped, all of them", || blocks.stats().get("tp_packets").unwrap() == arrived);
    assert_eq!(receive_from_blocks(&mut blocks, room), many[..room]);
    send_packets(&mut left, &many[..1]);
    assert_eq!(receive_from_blocks(&mut blocks, 1), many[..1], "it goes on");
    let stats = blocks.stats();
    let all = packets.len() + many.len() + 1;
    assert_eq!((stats.get("tp_packets").unwrap(), stats.dropped), (all as u64, TOO_MANY as u64));
    // Short ones take less room.
    let mut short = open_capture(lab.right(), |builder| builder.immediate(true).snap(96));
    assert_eq!(short.fill().total, 8 * (1 << 16) / 256);
    send_packets(&mut left, &many[..3]);
    let cut: Vec<_> = many[..3].iter().map(|packet| packet[..96].to_vec()).collect();
    assert_eq!(receive_from_blocks(&mut short, 3), cut);
}

/// Packets of hosts with BIG TCP. They are not sent by TCP here: a loopback interface takes any.
#[test]
fn big_tcp_packets_are_captured_complete() {
    let lab = lab!();
    let here = lab.right().namespace();
    let ip = |arguments: &str| {
        here.run(|| {
            let run = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
            assert!(run.status.success(), "{run:?}");
        });
    };
    ip("link set lo up mtu 65536");
    for immediate in [false, true] {
        let open = || Capture::builder("lo").blocks(1 << 20, 4).immediate(immediate).open();
        let mut blocks = here.run(open).unwrap();
        ip("link set lo mtu 140000"); // later, so that the length is not expected
        for bytes in [66_000, 131_072 + 14] {
            let mut packet = vec![0; bytes];
            packet[12..14].copy_from_slice(&[0x88, 0xb5]);
            packet[bytes - 1] = 7;
            let sending = || Port::builder("lo").mode(Mode::PacketRing).multi_buffer(true).open();
            let mut port = here.run(sending).unwrap();
            port.sender().send_copy(&packet).unwrap();
            port.sender().flush().unwrap();
            let mut block = next_block(&mut blocks);
            let captured = block.packets().next().unwrap();
            assert_eq!((captured.original_bytes, captured.bytes.len()), (bytes as u32, bytes));
            assert!(captured.bytes == packet);
        }
        ip("link set lo mtu 65536");
    }
}

#[test]
fn blocks_return_in_any_order_and_are_lent_once() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let mut left = open_port(lab.left());
    let mut held = Vec::new();
    for number in 0..4 {
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 100)]);
        held.push(next_block(&mut blocks));
    }
    assert_eq!((blocks.fill().used, blocks.fill().total), (4, 8));
    // While the program holds blocks, a wait lasts its full time.
    let start = Instant::now();
    assert!(blocks.receive_timeout(Duration::from_millis(20)).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(20));
    // The program keeps the second block; the ring stops when it reaches it.
    let mut kept = held.remove(1);
    while let Some(block) = held.pop() {
        drop(block);
    }
    let mut came = Vec::new();
    for number in 4..40 {
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 100)]);
        if came.len() == 5 {
            wait_until("dropped", || blocks.stats().get("tp_drops").unwrap() > 0);
            assert!(blocks.try_receive().unwrap().is_none(), "a block beyond the one that is away");
            break;
        }
        came.extend(block_packets(&mut next_block(&mut blocks)));
    }
    assert_eq!(came.len(), 5, "up to the one that is away");
    assert_eq!(block_packets(&mut kept), [numbered_packet(lab.right(), 1, 100)], "untouched");
    let stats = blocks.stats();
    assert!(stats.dropped > 0 && stats.get("tp_freeze_q_cnt").unwrap() > 0, "{stats}");
    drop(kept);
    send_packets(&mut left, &[numbered_packet(lab.right(), 99, 100)]);
    assert_eq!(receive_from_blocks(&mut blocks, 1), [numbered_packet(lab.right(), 99, 100)], "it goes on");
    assert!(blocks.stats().get("tp_packets").unwrap() > stats.get("tp_packets").unwrap());
}

#[test]
fn a_block_outlives_its_capture_on_another_thread() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    send_packets(&mut open_port(lab.left()), &[numbered_packet(lab.right(), 7, 1000)]);
    let mut block = next_block(&mut blocks);
    drop(blocks);
    let bytes = std::thread::spawn(move || block_packets(&mut block)).join().unwrap();
    assert_eq!(bytes, [numbered_packet(lab.right(), 7, 1000)]);
}

#[test]
fn filter_and_snap_length_apply_until_stop() {
    let instruction =
        |code, jump_true, jump_false, constant| Instruction { code, jump_true, jump_false, constant };
    // The last byte of the number in the packet is odd.
    let odd = [
        instruction(0x30, 0, 0, 17),      // ldb [17]
        instruction(0x45, 0, 1, 1),       // jset #1
        instruction(0x06, 0, 0, 262_144), // ret
        instruction(0x06, 0, 0, 0),
    ];
    let program = Program::new(odd.to_vec()).unwrap();
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder.filter(Some(&program)).snap(60));
    let packets: Vec<_> = (0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    let mut left = open_port(lab.left());
    send_packets(&mut left, &packets);
    let mut kept = Vec::new();
    while kept.len() < 5 {
        let mut block = next_block(&mut blocks);
        kept.extend(block.packets().map(|packet| (packet.bytes.to_vec(), packet.original_bytes)));
    }
    let expected: Vec<_> =
        packets.iter().skip(1).step_by(2).map(|packet| (packet[..60].to_vec(), 100)).collect();
    assert_eq!(kept, expected);
    // Another capture shows when all have arrived.
    let mut other = open_capture(lab.right(), |builder| builder);
    blocks.stop().unwrap();
    send_packets(&mut left, &packets);
    assert_eq!(receive_from_blocks(&mut other, packets.len()), packets);
    assert!(blocks.receive_timeout(Duration::from_millis(50)).unwrap().is_none());
    assert_eq!(blocks.stats().get("tp_packets").unwrap(), 5);
}

#[test]
fn a_block_is_converted_to_pcapng_in_place() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let packets = packets_of_many_lengths(lab.right(), 3);
    send_packets(&mut open_port(lab.left()), &packets);
    let (mut found, mut moved) = (0, 0);
    while found < 100 {
        let layout =
            PcapngLayout { counts: None, snap_bytes: 1 << 18, packets_max: u64::MAX, unit_bytes: 4096 };
        let piece = next_block(&mut blocks).into_pcapng(&layout);
        let (contents, bytes) = (*piece.contents(), piece.as_ref());
        assert_eq!(bytes.len() % 4096, 0);
        for (number, packet) in (found..).zip(&packets[found..][..contents.packets as usize]) {
            assert!(bytes.windows(packet.len()).any(|window| window == packet), "packet {number}");
        }
        found += contents.packets as usize;
        moved += contents.moved;
        assert_eq!((contents.malformed, contents.left_out), (0, 0));
    }
    assert_eq!(moved, 0, "they lie as the format wants it");
}

#[test]
fn impossible_captures_name_the_cause() {
    let lab = lab!();
    let end = lab.right();
    let refused = |set: fn(Builder) -> Builder, name: &str| {
        end.namespace().run(|| set(Capture::builder(name)).open()).unwrap_err()
    };
    assert!(matches!(refused(|b| b, "nc-none"), OpenError::Interface(InterfaceError::NotFound { .. })));
    for blocks in [(4095, 4), (2048, 4), (1 << 20, 1), (1 << 20, 4096), (3 << 20, 4)] {
        let error = end.namespace().run(|| Capture::builder("nc1").blocks(blocks.0, blocks.1).open());
        assert!(matches!(error.unwrap_err(), OpenError::Blocks { .. }), "{blocks:?}");
    }
    let mut capture = open_capture(end, |builder| builder);
    end.set_down().unwrap();
    assert_eq!(capture.receive_timeout(PATIENCE).unwrap_err().kind(), ErrorKind::NetworkDown);
    assert!(matches!(refused(|b| b, "nc1"), OpenError::Interface(InterfaceError::Down { .. })));
    lab.delete_pair().unwrap();
    assert_eq!(capture.receive_timeout(PATIENCE).unwrap_err().kind(), ErrorKind::NotConnected);
}

fn read_packets(reader: &mut BlockReader, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| reader.next_packet().expect("a packet").bytes.to_vec()).collect()
}

#[test]
fn a_block_returns_after_its_last_packet_was_read() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let mut left = open_port(lab.left());
    let mut expected: Vec<Vec<u8>> =
        (1..20).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    expected[7].splice(12..12, [0x81, 0x00, 0x01, 0x23]);
    // Twice as many rounds as there are blocks, so that a missing return is noticed.
    for _ in 0..16 {
        send_packets(&mut left, &expected);
        let mut read = Vec::new();
        while read.len() < expected.len() {
            let mut reader = next_block(&mut blocks).into_reader();
            let count = reader.packets_left() as usize;
            read.extend(read_packets(&mut reader, count / 2));
            assert_eq!(reader.packets_left() as usize, count - count / 2);
            read.extend(read_packets(&mut reader, count - count / 2));
            assert!(reader.packets_left() == 0 && reader.next_packet().is_none());
        }
        assert_eq!(read, expected);
    }
    assert_eq!(blocks.stats().get("tp_drops").unwrap(), 0);
}

#[test]
fn a_reader_that_leaves_its_block_does_not_return_it() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let mut left = open_port(lab.left());
    send_packets(&mut left, &[numbered_packet(lab.right(), 1, 100)]);
    next_block(&mut blocks).into_reader().disown();
    assert_eq!(blocks.fill().used, 1);
    send_packets(&mut left, &[numbered_packet(lab.right(), 2, 100)]);
    drop(next_block(&mut blocks).into_reader());
    assert_eq!(blocks.fill().used, 1);
}

/// All packets but those with this number.
fn filter_without_number(number: u32) -> Program {
    let text = format!("4,32 0 0 14,21 0 1 {number},6 0 0 0,6 0 0 262144");
    Program::parse(&text).unwrap()
}

#[test]
fn a_control_replaces_the_filter_during_a_capture() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let control = blocks.control();
    assert_eq!(blocks.explain().filter, None);
    let mut left = open_port(lab.left());
    let three = [1, 2, 3].map(|number| numbered_packet(lab.right(), number, 60 + number as usize));
    send_packets(&mut left, &three);
    assert_eq!(receive_from_blocks(&mut blocks, 3), three);
    std::thread::scope(|scope| {
        let control = &control;
        let setter = scope.spawn(move || {
            control.set_filter(Some(&filter_without_number(2))).unwrap();
            control.totals().unwrap()
        });
        assert_eq!(setter.join().unwrap().tp_packets, 3);
        let explanation = blocks.explain();
        assert_eq!(explanation.filter, Some(FilterPlace::Socket));
        assert_eq!(explanation.evidence, Evidence::Copied(Cause::PacketRing));
        let expected = format!("{}: packet ring, copied (packet ring)", lab.right().interface());
        assert!(explanation.to_string().starts_with(&expected), "{explanation}");
        assert!(explanation.to_string().ends_with("8 blocks, 524288 B in all"), "{explanation}");
    });
    send_packets(&mut left, &three);
    assert_eq!(receive_from_blocks(&mut blocks, 2), [three[0].clone(), three[2].clone()]);
    control.set_filter(None).unwrap();
    send_packets(&mut left, &three);
    assert_eq!(receive_from_blocks(&mut blocks, 3), three);
    // Every caller gets the sum of what all callers were told.
    assert_eq!(blocks.stats().get("tp_packets").unwrap(), 8);
    assert_eq!(control.totals().unwrap().tp_packets, 8);
    drop(blocks);
    assert!(control.totals().is_ok());
}

#[test]
fn filters_see_vlan_tags_in_frames_and_metadata() {
    let lab = lab!();
    let mut blocks = open_capture(lab.right(), |builder| builder);
    let control = blocks.control();
    let mut left = open_port(lab.left());
    let plain = numbered_packet(lab.right(), 1, 100);
    let mut tagged = numbered_packet(lab.right(), 2, 100);
    tagged.splice(12..12, [0x81, 0x00, 0x01, 0x23]);
    // ether[12:2] == 0x8100
    let at_type = Program::parse("4,40 0 0 12,21 0 1 33024,6 0 0 262144,6 0 0 0").unwrap();
    control.set_filter(Some(&at_type)).unwrap();
    // The last packet matches: when it has arrived, the filter has seen all.
    send_packets(&mut left, &[tagged.clone(), plain.clone(), tagged.clone()]);
    assert_eq!(receive_from_blocks(&mut blocks, 2), [tagged.clone(), tagged.clone()]);
    // ether[12:2] == 0x88b5: the frame without its tag.
    let untagged = Program::parse("4,40 0 0 12,21 0 1 34997,6 0 0 262144,6 0 0 0").unwrap();
    control.set_socket_filter(Some(&untagged)).unwrap();
    send_packets(&mut left, &[plain.clone(), tagged.clone()]);
    assert_eq!(receive_from_blocks(&mut blocks, 2), [plain.clone(), tagged.clone()]);
    control.set_filter(Some(&untagged)).unwrap();
    send_packets(&mut left, &[tagged, plain.clone()]);
    assert_eq!(receive_from_blocks(&mut blocks, 1), [plain]);
    assert_eq!(control.totals().unwrap().tp_packets, 5);
}

#[test]
fn every_wait_receives_all_blocks() {
    let coalesced = Wait::Coalesced { packets: 64, delay: Duration::from_millis(5) };
    for wait in [Wait::Spin, Wait::Interrupt, Wait::Adaptive { spin: Duration::from_micros(50) }, coalesced] {
        for immediate in [false, true] {
            let lab = lab!();
            let mut capture = open_capture(lab.right(), |builder| builder.wait(wait).immediate(immediate));
            let mut left = open_port(lab.left());
            for number in 0..3 {
                let packets: Vec<_> =
                    (0..20).map(|at| numbered_packet(lab.right(), 20 * number + at, 100)).collect();
                send_packets(&mut left, &packets);
                let mut received = Vec::new();
                while received.len() < packets.len() {
                    let block = capture.receive().unwrap();
                    received.extend(block.into_iter().flat_map(|mut block| block_packets(&mut block)));
                }
                assert_eq!(received, packets, "{wait:?}");
            }
            let start = Instant::now();
            assert!(capture.receive_timeout(Duration::from_millis(20)).unwrap().is_none());
            assert!(start.elapsed() >= Duration::from_millis(20), "{wait:?}");
        }
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn tokio_wakes_for_each_block_and_a_removed_interface() {
    use tokio::time::timeout;

    let lab = lab!();
    let mut capture = open_capture(lab.right(), |builder| builder).into_async().unwrap();
    let mut left = open_port(lab.left());
    let mut held = Vec::new();
    for number in 0..20 {
        send_packets(&mut left, &[numbered_packet(lab.right(), number, 100)]);
        let block = timeout(PATIENCE, capture.receive()).await.expect("in time").unwrap();
        let mut block = block.expect("resolved for a block");
        assert_eq!(block_packets(&mut block), [numbered_packet(lab.right(), number, 100)]);
        // Blocks held by the program keep the descriptor readable.
        held.push(block);
        held.drain(..held.len().saturating_sub(3));
    }
    assert!(timeout(Duration::from_millis(50), capture.receive()).await.is_err(), "nothing came");
    drop(left);
    lab.right().set_down().unwrap();
    let error = timeout(PATIENCE, capture.receive()).await.expect("in time").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkDown);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_dropped_receive_loses_and_repeats_no_block() {
    use crate::common::polled::{PolledFuture, is_pending, poll_and_drop};
    use tokio::time::timeout;

    let lab = lab!();
    let mut capture = open_capture(lab.right(), |builder| builder).into_async().unwrap();
    let mut left = open_port(lab.left());
    for number in 0..8 {
        let mut polled = PolledFuture::new(capture.receive());
        assert!((0..=number).all(|_| polled.poll().is_none()), "nothing came");
        drop(polled);
        let packets = [numbered_packet(lab.right(), number, 100)];
        poll_and_drop(capture.receive(), 1, || send_packets(&mut left, &packets)).await;
        let block = timeout(PATIENCE, capture.receive()).await.expect("in time").unwrap();
        assert_eq!(block_packets(&mut block.expect("resolved for a block")), packets);
        assert!(is_pending(capture.receive()), "it came once");
    }
    assert_eq!(capture.stats().moved, 8);
}
