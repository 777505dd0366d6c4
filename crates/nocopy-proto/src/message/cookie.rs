//! Cookies: what proves that a client receives at its address, without a state for it (docs/protocol.md §3.2).

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::Time;
use super::wire::COOKIE_BYTES;

/// How long one lasts at least, and at most twice as long.
const EPOCH_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(super) struct Cookies {
    secret: [u8; 16],
}

impl Cookies {
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    pub(super) fn bake(&self, now: Time, to: SocketAddr, client_id: u64) -> [u8; COOKIE_BYTES] {
        self.of_epoch(now.ns() / EPOCH_NS, to, client_id)
    }

    pub(super) fn are_good(
        &self,
        now: Time,
        from: SocketAddr,
        client_id: u64,
        cookie: &[u8; COOKIE_BYTES],
    ) -> bool {
        let epoch = now.ns() / EPOCH_NS;
        let good = |epoch| self.of_epoch(epoch, from, client_id) == *cookie;
        good(epoch) || epoch.checked_sub(1).is_some_and(good)
    }

    fn of_epoch(&self, epoch: u64, to: SocketAddr, client_id: u64) -> [u8; COOKIE_BYTES] {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(epoch);
        hasher.write_u64(client_id);
        hasher.write_u16(to.port());
        match to {
            SocketAddr::V4(to) => hasher.write(&to.ip().octets()),
            SocketAddr::V6(to) => {
                hasher.write(&to.ip().octets());
                hasher.write_u32(to.scope_id());
            }
        }
        hasher.finish128().as_bytes()
    }
}
