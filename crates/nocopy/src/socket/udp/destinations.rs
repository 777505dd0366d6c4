//! Whom a socket sends to.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::sys::udp_send::Address;

/// The most that are remembered; then all but the connected one are forgotten, and come back as they are used.
const DESTINATIONS_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) to: Option<SocketAddr>,
    pub(super) address: Option<Address>,
}

/// Each has a number, which what is queued carries.
#[derive(Debug)]
pub(super) struct Destinations {
    all: Vec<Destination>,
    numbers: HashMap<SocketAddr, u32>,
    /// Most programs send to the same again.
    last: Option<(SocketAddr, u32)>,
    /// The peer the socket is connected to: no address goes with what is sent.
    connected: Option<u32>,
}

impl Destinations {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), numbers: HashMap::new(), last: None, connected: None }
    }

    /// Another peer has another number: what is queued or on its way keeps whom it was for.
    pub(super) fn connect(&mut self, to: SocketAddr) {
        if let Some(before) = self.connected {
            let before = &mut self.all[before as usize];
            before.address = before.to.map(Address::from);
        }
        self.connected = Some(self.all.len() as u32);
        self.all.push(Destination { to: Some(to), address: None });
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
    pub(super) fn number(&mut self, to: SocketAddr) -> u32 {
        match self.last {
            Some((last, number)) if last == to => number,
            _ => self.find(to),
        }
    }

    fn find(&mut self, to: SocketAddr) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(to).or_insert(next);
        if number == next {
            self.all.push(Destination { to: Some(to), address: Some(to.into()) });
        }
        self.last = Some((to, number));
        number
    }

    /// Whether it is time to forget: only while nothing is queued or on its way, since numbers are reused.
    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= DESTINATIONS_MAX
    }

    pub(super) fn forget(&mut self) {
        let connected = self.connected.and_then(|number| self.get(number).to);
        *self = Self::new();
        if let Some(to) = connected {
            self.connect(to);
        }
    }
}
