//! When packets left, as the card says after sending them.

use std::collections::{HashMap, VecDeque};

use super::FramePool;
use crate::facts::metadata::{Departure, Request, Timestamp, Unsupported};
use crate::sys::xsk::SendMetadata;

/// Packets whose departure time is wanted.
#[derive(Debug, Default)]
pub(crate) struct DepartureTimes {
    /// By the address of the packet: its token, and the value written into the field of the time.
    awaited: HashMap<u64, (u64, u64)>,
    known: VecDeque<Departure>,
}

impl DepartureTimes {
    pub(crate) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    pub(crate) fn expect_departure(&mut self, address: u64, request: &Request) {
        if let Some(token) = request.timestamp {
            self.awaited.insert(address, (token, SendMetadata::from_request(request).answer));
        }
    }

    /// Reads the answer for a packet that the kernel has sent, before its frame returns to its pool.
    pub(crate) fn read_departure(&mut self, address: u64, pool: &FramePool) {
        let Some((token, written)) = self.awaited.get(&address).copied() else { return };
        let Some(ns) = pool.device_answer(address) else { return };
        self.awaited.remove(&address);
        let timestamp = match pool.offers().timestamp {
            Ok(clock) if ns != written => Ok(Timestamp { ns, clock }),
            _ => Err(Unsupported::Absent),
        };
        self.known.push_back((token, timestamp));
    }

    pub(crate) fn take_known(&mut self) -> std::collections::vec_deque::Drain<'_, Departure> {
        self.known.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::metadata::{Clock, OfferedRequests};
    use crate::memory::area::{Area, AreaConfig, PoolDirection};
    use crate::sys::xsk::SEND_METADATA_BYTES;

    #[test]
    fn a_missing_departure_time_is_an_error() {
        let area = Area::new(AreaConfig { frame_count: 2, ..AreaConfig::default() }).unwrap();
        let mut pool = area.pool(PoolDirection::Send, 2).unwrap();
        pool.set_offers(OfferedRequests { checksum: Ok(()), timestamp: Ok(Clock::Device) });
        let mut departures = DepartureTimes::default();
        let mut send = |token| {
            let request = Request::default().timestamp(token);
            let place = crate::facts::metadata::ChecksumField { start: 34, offset: 6 };
            let request = if token == 1 { request.checksum(place) } else { request };
            let address = pool.lend_with_request(pool.take_frame().unwrap(), &request).unwrap().address;
            departures.expect_departure(address, &request);
            address
        };
        let (silent, telling) = (send(1), send(2));
        let request = pool.view.pointer_at(telling - u64::from(SEND_METADATA_BYTES)).cast::<SendMetadata>();
        // SAFETY: in front of a packet in a frame with no other user; written as the card would.
        unsafe { (*request.as_ptr()).answer = 99 };
        departures.read_departure(u64::MAX, &pool);
        departures.read_departure(telling, &pool);
        departures.read_departure(telling, &pool); // said twice
        departures.read_departure(silent, &pool);
        let known: Vec<_> = departures.take_known().collect();
        let expected = Timestamp { ns: 99, clock: Clock::Device };
        assert_eq!(known, [(2, Ok(expected)), (1, Err(Unsupported::Absent))]);
        assert!(!departures.is_awaiting());
    }
}
