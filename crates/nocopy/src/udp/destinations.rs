//! The destinations of a socket, by number.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::ancillary::Ancillary;
use crate::sys::udp_send::{AddedControls, KernelAddress, KernelDestination};

/// The most destinations that are remembered; then all unused ones are forgotten.
const DESTINATIONS_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) to: SocketAddr,
    /// `None` for the peer to which the socket itself is connected.
    address: Option<KernelAddress>,
    /// What else is set for its datagrams.
    added: Option<Box<Added>>,
}

/// What is set for datagrams besides their bytes and their destination, also as a kernel socket needs it.
#[derive(Debug)]
pub(super) struct Added {
    #[cfg_attr(not(feature = "port"), expect(dead_code, reason = "for headers, which ports need"))]
    pub(super) ancillary: Ancillary,
    pub(super) controls: AddedControls,
}

impl Destination {
    fn of_address(to: SocketAddr, address: Option<KernelAddress>) -> Self {
        Self { to, address, added: None }
    }

    /// As a kernel socket needs it.
    #[inline]
    pub(super) fn kernel(&self) -> KernelDestination<'_> {
        let controls = self.added.as_ref().map(|added| &added.controls);
        KernelDestination { address: self.address.as_ref(), controls }
    }

    #[cfg(feature = "port")]
    #[inline]
    pub(super) fn added(&self) -> Option<&Added> {
        self.added.as_deref()
    }
}

/// Each destination has a number, which queued messages carry. An address to which something is sent with
/// [`Ancillary`] data is a destination of its own with each, so that no call has datagrams of two kinds.
#[derive(Debug)]
pub(super) struct Destinations {
    all: Vec<Destination>,
    /// Numbers of forgotten destinations, for reuse.
    free: Vec<u32>,
    numbers: HashMap<SocketAddr, u32>,
    /// The last destination, because most programs send to it again.
    last: Option<(SocketAddr, u32)>,
    /// The destinations with ancillary data, and the last one.
    numbers_with: HashMap<(SocketAddr, Ancillary), u32>,
    last_with: Option<((SocketAddr, Ancillary), u32)>,
    /// The peer to which the socket is connected: its datagrams need no address.
    connected: Option<u32>,
}

impl Destinations {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            numbers: HashMap::new(),
            last: None,
            numbers_with: HashMap::new(),
            last_with: None,
            connected: None,
        }
    }

    /// Sets the peer. A different peer gets a different number, so that messages queued or in flight keep
    /// their destination. `names_it`: the socket itself is not connected, so datagrams need the address.
    pub(super) fn set_connected(&mut self, to: SocketAddr, names_it: bool) {
        if let Some(before) = self.connected {
            let before = &mut self.all[before as usize];
            before.address = Some(before.to.into());
        }
        let address = names_it.then(|| to.into());
        self.connected = Some(self.add(Destination::of_address(to, address)));
    }

    fn add(&mut self, destination: Destination) -> u32 {
        let Some(number) = self.free.pop() else {
            self.all.push(destination);
            return self.all.len() as u32 - 1;
        };
        self.all[number as usize] = destination;
        number
    }

    #[inline]
    pub(super) fn connected(&self) -> Option<u32> {
        self.connected
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &Destination {
        &self.all[number as usize]
    }

    #[inline]
    pub(super) fn number_of(&mut self, to: SocketAddr) -> u32 {
        match self.last {
            Some((last, number)) if last == to => number,
            _ => self.find_or_add(to),
        }
    }

    fn find_or_add(&mut self, to: SocketAddr) -> u32 {
        let number = match self.numbers.get(&to) {
            Some(number) => *number,
            None => {
                let number = self.add(Destination::of_address(to, Some(to.into())));
                self.numbers.insert(to, number);
                number
            }
        };
        self.last = Some((to, number));
        number
    }

    /// The number of an address with ancillary data, if it is known.
    #[inline]
    pub(super) fn number_with(&mut self, to: SocketAddr, ancillary: Ancillary) -> Option<u32> {
        let key = (to, ancillary);
        if let Some((_, number)) = self.last_with.filter(|(last, _)| *last == key) {
            return Some(number);
        }
        let number = *self.numbers_with.get(&key)?;
        self.last_with = Some((key, number));
        Some(number)
    }

    /// Adds an address with ancillary data, and the control messages for that.
    pub(super) fn add_with(&mut self, to: SocketAddr, ancillary: Ancillary, controls: AddedControls) -> u32 {
        let added = Some(Box::new(Added { ancillary, controls }));
        let number = self.add(Destination { added, ..Destination::of_address(to, Some(to.into())) });
        self.numbers_with.insert((to, ancillary), number);
        number
    }

    /// Whether unused destinations should be forgotten.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.all.len() >= DESTINATIONS_MAX
    }

    /// Forgets all destinations except the connected one and those `in_use` by messages queued or in flight.
    /// Their numbers are reused.
    pub(super) fn forget_unused(&mut self, in_use: impl Iterator<Item = u32>) {
        let mut stays = vec![false; self.all.len()];
        in_use.chain(self.connected).for_each(|number| stays[number as usize] = true);
        self.numbers.retain(|_, number| stays[*number as usize]);
        self.numbers_with.retain(|_, number| stays[*number as usize]);
        (self.last, self.last_with) = (None, None);
        self.free = (0..).zip(stays).filter(|(_, stays)| !stays).map(|(number, _)| number).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> SocketAddr {
        (std::net::Ipv4Addr::from_bits(number), 9).into()
    }

    #[test]
    fn unused_destination_numbers_are_reused() {
        let mut destinations = Destinations::new();
        destinations.set_connected(address(0), false);
        let max = DESTINATIONS_MAX as u32;
        let used = [1, 7, max - 1];
        for number in 1..10 * max {
            if destinations.is_full() {
                destinations.forget_unused(used.into_iter());
            }
            destinations.number_of(address(number));
            assert!(destinations.all.len() <= DESTINATIONS_MAX);
            assert!(destinations.numbers.len() < DESTINATIONS_MAX);
        }
        assert_eq!(destinations.connected(), Some(0));
        for number in [0].into_iter().chain(used) {
            assert_eq!(destinations.get(number).to, address(number));
        }
        assert_eq!(used.map(|number| destinations.number_of(address(number))), used);
    }
}
