//! Fuzzes one endpoint: bytes describe the units that arrive over its peer's stream. Used by the fuzzer and
//! by proptest.

use std::net::SocketAddr;

use crate::message::framing::{Laid, put_whole_header};
use crate::message::wire::{Flags, HEADER_BYTES, Header, HeaderKind, Unit};
use crate::message::{Arriving, Endpoint, Event, Kind, Peer, Settings, Time, Transmit};

type Host = Endpoint<Vec<u8>, Vec<u8>>;

const WINDOW_PACKETS: usize = 32;
/// The allocated entries of all tables, most of them of the window, which grow by doubling.
const CAPACITY_MAX: usize = 40 * WINDOW_PACKETS;

/// Two connected endpoints that accept streams, and the second one's peer handle.
fn connected() -> (Host, Host, Peer) {
    let settings = Settings {
        datagram_bytes: 600,
        max_message_bytes: 10_000,
        window_packets: WINDOW_PACKETS,
        streams: true,
        ..Settings::default()
    };
    let addresses: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
    let mut hosts = [1, 2].map(|seed| Endpoint::new(settings.clone(), [seed; 32]));
    let now = Time::from_ns(1_000_000);
    hosts[0].connect(now, addresses[1]).expect("it is the first peer");
    loop {
        let mut quiet = true;
        for from in [0, 1] {
            while let Some(transmit) = hosts[from].poll_transmit(now) {
                let Transmit::Control { datagram, .. } = transmit else {
                    unreachable!("no message was queued")
                };
                let datagram = datagram.to_vec();
                quiet = false;
                hosts[1 - from].handle_datagram(now, addresses[from], false, datagram);
            }
        }
        if quiet {
            break;
        }
    }
    let Some(Event::Accepted(peer, _)) = hosts[1].poll_event() else { unreachable!("nothing was lost") };
    let [one, mut other] = hosts;
    while other.released().is_some() {}
    (one, other, peer)
}

/// Gives an endpoint the units that `schedule` describes: each with its place in the window, its numbers and
/// its messages, some of them valid.
///
/// # Panics
/// When the endpoint keeps more than its settings allow, gives back more than it got, or gives a message
/// twice.
pub fn run(schedule: &[u8]) {
    let (_, mut host, peer) = connected();
    let (mut rest, mut kept, mut now) = (schedule, 0_usize, Time::from_ns(2_000_000));
    let first = first_sequence(&host, peer);
    while let Some((&[at, how, span, messages, bytes], behind)) = rest.split_first_chunk() {
        now = now + std::time::Duration::from_micros(10);
        let payload_bytes_max = host.payload_bytes_max(peer).unwrap_or(500);
        let (mut payload, mut laid) = (Vec::new(), Laid::default());
        for number in 0..messages % 5 {
            let bytes = usize::from(bytes) * usize::from(1 + number);
            let mut header = [0; 8];
            let header_bytes = put_whole_header(Kind::Plain, bytes, &mut header);
            payload.extend_from_slice(&header[..header_bytes]);
            payload.resize(payload.len() + bytes, number);
            laid.add(Kind::Plain, bytes, payload_bytes_max);
        }
        let raw = if how & 1 == 1 { behind.len().min(usize::from(bytes)) } else { 0 };
        let (raw, behind) = behind.split_at(raw);
        payload.extend_from_slice(raw);
        rest = behind;
        let span = if how & 2 == 2 { u32::from(span) } else { laid.packets() as u32 };
        let header = Header {
            kind: HeaderKind::Data,
            flags: Flags::NONE.with_if(how & 4 == 4, Flags::ANSWER),
            marked: 0,
            to: 0,
            sequence: first.wrapping_add(at.into()),
            expected: u32::from(how) << 24,
            credit: u32::from(span as u8) << 24,
            sent: 0,
            echo: 0,
        };
        let unit = Unit { header, bytes: payload.len() as u32, span };
        let mut bytes = [0; HEADER_BYTES];
        unit.emit(&mut bytes);
        let Ok(unit) = Unit::parse(&bytes) else { continue };
        if matches!(host.arriving(peer, &unit), Arriving::Next | Arriving::Later) {
            kept += 1;
            host.handle_unit(now, peer, [&bytes[..], &payload].concat());
        }
        if how & 8 == 8 {
            while host.receive().is_some() {}
        }
        while host.poll_transmit(now).is_some() {}
        while host.released().is_some() {
            kept = kept.checked_sub(1).expect("no more comes back than was given");
        }
        assert!(kept <= WINDOW_PACKETS, "{kept} units kept");
        assert!(host.capacity() <= CAPACITY_MAX, "memory for {} entries", host.capacity());
    }
}

/// The number of the first packet that an endpoint expects of a peer, as it acknowledges it.
fn first_sequence(host: &Host, peer: Peer) -> u32 {
    host.expected_of(peer).expect("it is connected")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_units_are_survived(schedule in prop::collection::vec(any::<u8>(), 0..400)) {
            super::run(&schedule);
        }

        /// As above, with units that are likely to be accepted.
        #[test]
        fn likely_units_are_survived(units in prop::collection::vec((0u8..40, 0u8..16, 0u8..8, 1u8..5, any::<u8>()), 0..60)) {
            let bytes: Vec<u8> = units
                .into_iter()
                .flat_map(|(at, how, span, messages, bytes)| [at, how & 0xfe, span, messages, bytes])
                .collect();
            super::run(&bytes);
        }
    }
}
