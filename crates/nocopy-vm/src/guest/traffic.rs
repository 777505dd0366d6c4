//! Numbered packets, sent from port to port and checked byte for byte.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use nocopy::port::{OpenError, PortBuilder};
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};

use super::patience::ARRIVAL_MAX;
use super::{pins, sockets};
use crate::failure::Failure;

/// Packets on their way at a time: fewer than any ring holds, so that nothing may be lost.
const WINDOW: u32 = 64;

/// After this time without a packet, most often none is in flight any more ([`STRAY`]).
const SILENCE: Duration = Duration::from_millis(300);

/// Packets of each kind that show that a port works: more than its rings hold.
const AFTERWARDS: u32 = 600;

/// An EtherType for experiments: neither the host's stack nor the card's receive-side scaling takes an
/// interest in it.
const ETHERTYPE: u16 = 0x88b5;

/// The EtherType of packets that a test sends without taking in every one of them. However late one arrives,
/// [`send_and_check`] and [`expect_packet`] pass it over, as they do a frame that a port sent to itself as
/// proof.
const STRAY: u16 = 0x88b6;

/// Opens a port at either end, as [`open_port`] does, at the same time, because it may take seconds until
/// there is carrier.
pub(crate) fn open_both_ports(lab: &Lab) -> Result<(Port, Port), OpenError> {
    thread::scope(|scope| {
        let left = scope.spawn(|| open_port(lab.left()));
        let right = open_port(lab.right());
        Ok((left.join().unwrap_or_else(|panic| resume_unwind(panic))?, right?))
    })
}

/// Opens a port of an end in zero-copy, or not at all; its rings are small, so that packets often wrap around
/// them.
pub(crate) fn open_port(end: &End) -> Result<Port, OpenError> {
    open_port_on_queue(end, 0)
}

/// As `open_port`, on a queue other than the first.
pub(crate) fn open_port_on_queue(end: &End, queue: u32) -> Result<Port, OpenError> {
    end.namespace().run(|| small_port_builder(end.interface()).queue(queue).open())
}

pub(crate) fn small_port_builder(interface: &str) -> PortBuilder {
    Port::builder(interface).mode(Mode::XdpZeroCopy).ring_sizes(256, 256).frame_count(512, 256)
}

/// A frame for `to` with a number in it, and a pattern that depends on the number.
pub(crate) fn numbered_packet(to: &End, number: u32, bytes: usize) -> Vec<u8> {
    packet_with_number(to.mac(), number, bytes)
}

/// As `numbered_packet`, for any destination address; such packets may get lost.
pub(crate) fn stray_packet(to: [u8; 6], number: u32, bytes: usize) -> Vec<u8> {
    let mut packet = packet_with_number(to, number, bytes);
    packet[12..14].copy_from_slice(&STRAY.to_be_bytes());
    packet
}

fn is_stray(packet: &[u8]) -> bool {
    packet.get(12..14) == Some(&STRAY.to_be_bytes()) || packet.get(..6) == packet.get(6..12)
}

fn packet_with_number(to: [u8; 6], number: u32, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[..6].copy_from_slice(&to);
    packet[6] = 2;
    packet[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    packet[14..18].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in packet[18..].iter_mut().enumerate() {
        *byte = (number as usize + i) as u8;
    }
    packet
}

pub(crate) fn packet_number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[14..18].try_into().expect("four bytes"))
}

/// Sends `count` packets of `bytes` bytes to the end `at`, a window at a time, and checks that each arrives,
/// in order and with its bytes.
pub(crate) fn send_and_check(
    from: &mut Port,
    to: &mut Port,
    at: &End,
    bytes: usize,
    count: u32,
) -> Result<(), Failure> {
    let mut sent = 0;
    while sent < count {
        let window: Vec<_> =
            (sent..count.min(sent + WINDOW)).map(|number| numbered_packet(at, number, bytes)).collect();
        for packet in &window {
            let mut frame = from.sender().buffer().expect("more frames than a window");
            frame.fill(packet).expect("a packet fits a frame");
            from.sender().send(frame)?;
        }
        let mut received = 0;
        let mut heard = Instant::now();
        while received < window.len() {
            // Again and again: a socket's send buffer (`SO_SNDBUF`) holds fewer long packets than a window.
            from.sender().flush()?;
            for packet in to.receiver().receive_timeout(SILENCE)?.filter(|packet| !is_stray(packet)) {
                heard = Instant::now();
                let number = sent as usize + received;
                let wanted = window.get(received).map_or(&[][..], |packet| packet);
                assert!(
                    *packet == *wanted,
                    "{bytes} B: packet {number} of {count} is not what was sent: {} B, {:02x?}, instead of {:02x?}",
                    packet.len(),
                    &packet[..packet.len().min(64)],
                    &wanted[..wanted.len().min(64)]
                );
                received += 1;
            }
            if heard.elapsed() > ARRIVAL_MAX {
                let (number, accounts) = (sent as usize + received, frame_states(from, to)?);
                return Err(Failure(format!(
                    "{bytes} B: packet {number} of {count} did not arrive; {accounts}"
                )));
            }
        }
        // All frames must have come back before the next window: a card may report late that it is done.
        if !from.sender().drain(ARRIVAL_MAX)? {
            return Err(Failure(format!(
                "{bytes} B: frames stay with the kernel; {}",
                frame_states(from, to)?
            )));
        }
        sent += WINDOW;
    }
    Ok(())
}

/// [`send_and_check`] from the left port to the right one and back, with each size of packets.
pub(crate) fn send_and_check_both_ways(
    lab: &Lab,
    left: &mut Port,
    right: &mut Port,
    sizes_bytes: impl IntoIterator<Item = usize>,
    count: u32,
) -> Result<(), Failure> {
    sizes_bytes.into_iter().try_for_each(|bytes| {
        send_and_check(left, right, lab.right(), bytes, count)?;
        send_and_check(right, left, lab.left(), bytes, count)
    })
}

/// Receives one packet, which must be `wanted`.
pub(crate) fn expect_packet(port: &mut Port, wanted: &[u8]) -> Result<(), Failure> {
    let packet = port.receiver().receive_timeout(ARRIVAL_MAX)?.next().map(|packet| packet.to_vec());
    match packet {
        Some(packet) if packet == wanted => Ok(()),
        Some(packet) if is_stray(&packet) => expect_packet(port, wanted),
        Some(packet) => {
            let shown = |bytes: &[u8]| format!("{} B, {:02x?}", bytes.len(), &bytes[..bytes.len().min(32)]);
            Err(Failure(format!("received {} instead of {}", shown(&packet), shown(wanted))))
        }
        None => Err(Failure(format!("a packet of {} B did not arrive; {}", wanted.len(), port.balance()))),
    }
}

/// Checks that every frame of an idle port is accounted for and that the kernel returned no invalid address.
pub(crate) fn assert_all_frames_accounted(port: &mut Port) -> Result<(), Failure> {
    assert!(port.sender().drain(ARRIVAL_MAX)?, "frames stay with the kernel: {}", port.balance());
    let balance = port.balance();
    assert!(balance.is_balanced() && balance.in_use == 0 && balance.lent_tx == 0, "{balance}");
    assert_eq!(port.receiver().stats().faults + port.sender().stats().faults, 0);
    Ok(())
}

/// Closes a port and checks that every frame was returned, or is retired because the card may still use it.
pub(crate) fn close_and_check_frames(port: Port) {
    let area = port.area().clone();
    drop(port);
    let balance = area.balance();
    let away = (balance.in_use, balance.lent_rx, balance.lent_tx);
    assert!(balance.is_balanced() && away == (0, 0, 0), "after closing: {balance}");
}

/// Checks that two ports carry packets of every kind as if nothing had happened, closes them, and checks that
/// nothing is left of them and that the host can use the interfaces.
pub(crate) fn assert_ports_still_work(lab: &Lab, mut left: Port, mut right: Port) -> Result<(), Failure> {
    discard_in_flight(&mut left)?;
    discard_in_flight(&mut right)?;
    send_and_check_both_ways(lab, &mut left, &mut right, [64, 1514], AFTERWARDS)?;
    // If the instrument counts nothing here, its zero elsewhere proves nothing.
    assert!(pins::pinned_pages()? > 0, "two open ports pin no page");
    for mut port in [left, right] {
        assert_all_frames_accounted(&mut port)?;
        close_and_check_frames(port);
    }
    pins::wait_until_nothing_pinned()?;
    sockets::check_udp_both_ways(lab)
}

/// Receives packets that are still in flight.
pub(crate) fn discard_in_flight(port: &mut Port) -> Result<(), Failure> {
    while port.receiver().receive_timeout(SILENCE)?.next().is_some() {}
    Ok(())
}

/// The state of all frames, for the message of a failure.
fn frame_states(from: &mut Port, to: &mut Port) -> Result<String, Failure> {
    Ok(format!(
        "sender: {}, {}; receiver: {}, {}",
        from.balance(),
        from.sender().stats(),
        to.balance(),
        to.receiver().stats()
    ))
}
