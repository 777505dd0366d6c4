//! Packets that can be told apart, sent from port to port and checked byte for byte.

use std::time::Duration;

use nocopy::Port;
use nocopy_lab::End;

use crate::registry::Failure;

/// Longer than any packet takes in an emulated machine.
pub(crate) const ARRIVAL_MAX: Duration = Duration::from_secs(5);

/// Packets on their way at a time: fewer than any ring holds, so that nothing may be lost.
const WINDOW: u32 = 64;

/// An EtherType for experiments: neither the host's stack nor the card's receive-side scaling takes an interest in it.
const ETHERTYPE: u16 = 0x88b5;

/// A frame for `to` with a number in it, and a pattern that depends on the number.
pub(crate) fn packet(to: &End, number: u32, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[..6].copy_from_slice(&to.mac());
    packet[6] = 2;
    packet[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    packet[14..18].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in packet[18..].iter_mut().enumerate() {
        *byte = (number as usize + i) as u8;
    }
    packet
}

/// Sends `count` packets of `bytes` bytes to the end `at`, a window at a time, and checks that each arrives, in order and
/// with its bytes.
pub(crate) fn cross(
    from: &mut Port,
    to: &mut Port,
    at: &End,
    bytes: usize,
    count: u32,
) -> Result<(), Failure> {
    let mut sent = 0;
    while sent < count {
        let window: Vec<_> =
            (sent..count.min(sent + WINDOW)).map(|number| packet(at, number, bytes)).collect();
        for packet in &window {
            let mut frame = from.sender().frame().expect("more frames than a window");
            frame.fill(packet).expect("a packet fits a frame");
            from.sender().send(frame)?;
        }
        from.sender().flush()?;
        let mut received = 0;
        while received < window.len() {
            let before = received;
            for packet in to.receiver().receive_timeout(ARRIVAL_MAX)? {
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
            if received == before {
                let (number, accounts) = (sent as usize + received, accounts(from, to)?);
                return Err(Failure(format!(
                    "{bytes} B: packet {number} of {count} did not arrive; {accounts}"
                )));
            }
        }
        // All the frames must be back before the next window: a card may take its time to say that it is done.
        if !from.sender().drain(ARRIVAL_MAX)? {
            return Err(Failure(format!("{bytes} B: frames stay with the kernel; {}", accounts(from, to)?)));
        }
        sent += WINDOW;
    }
    Ok(())
}

/// Checks that every frame of an idle port is accounted for and that the kernel told it nothing wrong.
pub(crate) fn assert_settled(port: &mut Port) -> Result<(), Failure> {
    assert!(port.sender().drain(ARRIVAL_MAX)?, "frames stay with the kernel: {}", port.balance());
    let balance = port.balance();
    assert!(balance.is_whole() && balance.yours == 0 && balance.lent_tx == 0, "{balance}");
    assert_eq!(port.receiver().faults().total() + port.sender().faults().total(), 0);
    Ok(())
}

/// Where everything is, for a failure.
fn accounts(from: &Port, to: &Port) -> Result<String, Failure> {
    Ok(format!(
        "sender: {}, {:?}; receiver: {}, {:?}",
        from.balance(),
        from.statistics()?,
        to.balance(),
        to.statistics()?
    ))
}
