//! Cookies, which prove that a client receives at its address; the server keeps no state for them (docs/protocol.md §3.2).

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::Time;
use super::wire::COOKIE_BYTES;

/// How long a cookie is valid at least; at most twice as long.
const EPOCH_NS: u64 = 10_000_000_000;

/// Makes and checks cookies: SipHash-2-4-128 (Aumasson and Bernstein, 2012) of a secret, the time, and the client.
pub(super) struct Cookies {
    secret: [u8; 16],
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cookies").finish_non_exhaustive() // not the secret
    }
}

impl Cookies {
    /// `secret` must be random. Cookies made with another secret are invalid.
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// The cookie for a client at that address.
    pub(super) fn bake(&self, now: Time, to: SocketAddr, client_id: u64) -> [u8; COOKIE_BYTES] {
        self.of_epoch(now.ns() / EPOCH_NS, to, client_id).to_be_bytes()
    }

    /// Whether a cookie is the one for that client, and not too old.
    pub(super) fn are_good(
        &self,
        now: Time,
        from: SocketAddr,
        client_id: u64,
        cookie: &[u8; COOKIE_BYTES],
    ) -> bool {
        let epoch = now.ns() / EPOCH_NS;
        let cookie = u128::from_be_bytes(*cookie);
        // All bits by one operation, so that the time it takes does not tell how many of them are right.
        let good = |epoch| self.of_epoch(epoch, from, client_id) ^ cookie == 0;
        good(epoch) | epoch.checked_sub(1).is_some_and(good)
    }

    fn of_epoch(&self, epoch: u64, client: SocketAddr, client_id: u64) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(epoch);
        hasher.write_u64(client_id);
        hasher.write_u16(client.port());
        match client {
            SocketAddr::V4(client) => hasher.write(&client.ip().octets()),
            SocketAddr::V6(client) => {
                // The length distinguishes it from IPv4.
                hasher.write(&client.ip().octets());
                hasher.write_u32(client.scope_id());
            }
        }
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        ];
        (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    proptest! {
        #[test]
        fn is_good_for_one_epoch_and_the_next(
            secret: [u8; 16], client in address(), id: u64, baked in 0..u64::MAX / 2, later in 0..4 * EPOCH_NS,
        ) {
            let cookies = Cookies::new(secret);
            let cookie = cookies.bake(Time::from_ns(baked), client, id);
            let good = cookies.are_good(Time::from_ns(baked + later), client, id, &cookie);
            prop_assert!(good || later >= EPOCH_NS, "refused after {later} ns");
            prop_assert!(!good || later < 2 * EPOCH_NS, "good after {later} ns");
        }

        #[test]
        fn is_not_good_for_anything_else(
            secret: [u8; 16], other_secret: [u8; 16],
            client in address(), other in address(), id: u64, other_id: u64, bit in 0u32..128,
        ) {
            let (cookies, now) = (Cookies::new(secret), Time::from_ns(3 * EPOCH_NS));
            let cookie = cookies.bake(now, client, id);
            prop_assert!(cookies.are_good(now, client, id, &cookie));
            prop_assert!(client == other || !cookies.are_good(now, other, id, &cookie));
            prop_assert!(id == other_id || !cookies.are_good(now, client, other_id, &cookie));
            prop_assert!(secret == other_secret || !Cookies::new(other_secret).are_good(now, client, id, &cookie));
            let changed = (u128::from_be_bytes(cookie) ^ (1u128 << bit)).to_be_bytes();
            prop_assert!(!cookies.are_good(now, client, id, &changed));
            prop_assert!(!cookies.are_good(Time::from_ns(2 * EPOCH_NS), client, id, &cookie), "from the future");
        }
    }

    #[test]
    fn the_secret_is_not_told() {
        assert_eq!(format!("{:?}", Cookies::new([7; 16])), "Cookies { .. }");
    }
}
