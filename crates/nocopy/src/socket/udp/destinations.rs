//! Whom a socket sends to.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::sys::udp_send::Address;

/// The most that are remembered; then all but the connected one are forgotten, and come back as they are used.
const DESTINATIONS_MAX: usize = 65_536;

/// The peer a socket is connected to: no address goes with what is sent.
pub(super) const CONNECTED: u32 = 0;

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
}

impl Destinations {
    pub(super) fn new() -> Self {
        let connected = Destination { to: None, address: None };
        Self { all: vec![connected], numbers: HashMap::new(), last: None }
    }

    pub(super) fn connect(&mut self, to: SocketAddr) {
        self.all[CONNECTED as usize].to = Some(to);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.all[CONNECTED as usize].to.is_some()
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
        self.all.truncate(1);
        self.numbers.clear();
        self.last = None;
    }
}
