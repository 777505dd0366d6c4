//! Cookies, which prove that a client receives at its address; the server keeps no state for them
//! (docs/protocol.md §3.2).

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::wire::COOKIE_BYTES;
use super::{Path, Time};

/// How long a cookie is valid at least; at most twice as long.
const EPOCH_NS: u64 = 10_000_000_000;

/// Makes and checks cookies: SipHash-2-4-128 (Aumasson and Bernstein, 2012) of a secret, the time, the
/// client, and the address that it asked if this host has several.
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

    /// The cookie for the client at the end of that path.
    pub(super) fn bake(&self, now: Time, path: &Path, client_id: u64) -> [u8; COOKIE_BYTES] {
        self.of_epoch(now.ns() / EPOCH_NS, path, client_id).to_be_bytes()
    }

    /// Whether a cookie is the one for that client, and not too old.
    pub(super) fn are_good(
        &self,
        now: Time,
        path: &Path,
        client_id: u64,
        cookie: &[u8; COOKIE_BYTES],
    ) -> bool {
        let epoch = now.ns() / EPOCH_NS;
        let cookie = u128::from_be_bytes(*cookie);
        // All bits by one operation, so that the time it takes does not tell how many of them are right.
        let good = |epoch| self.of_epoch(epoch, path, client_id) ^ cookie == 0;
        good(epoch) | epoch.checked_sub(1).is_some_and(good)
    }

    fn of_epoch(&self, epoch: u64, path: &Path, client_id: u64) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u64(epoch);
        hasher.write_u64(client_id);
        hasher.write_u16(path.remote.port());
        let mut write = |address: IpAddr, interface| {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            hasher.write(&address.octets());
            hasher.write_u32(interface);
        };
        write(path.remote.ip(), if let SocketAddr::V6(client) = path.remote { client.scope_id() } else { 0 });
        if let Some(local) = path.local {
            write(local.address, local.interface);
        }
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::message::Local;

    fn path() -> impl Strategy<Value = Path> {
        let ip = || {
            prop_oneof![
                any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
                any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
            ]
        };
        let local = prop::option::of((ip(), 0..3_u32));
        (ip(), any::<u16>(), local).prop_map(|(ip, port, local)| Path {
            remote: SocketAddr::new(ip, port),
            local: local.map(|(address, interface)| Local { address, interface }),
        })
    }

    proptest! {
        #[test]
        fn is_good_for_one_epoch_and_the_next(
            secret: [u8; 16], client in path(), id: u64, baked in 0..u64::MAX / 2, later in 0..4 * EPOCH_NS,
        ) {
            let cookies = Cookies::new(secret);
            let cookie = cookies.bake(Time::from_ns(baked), &client, id);
            let good = cookies.are_good(Time::from_ns(baked + later), &client, id, &cookie);
            prop_assert!(good || later >= EPOCH_NS, "refused after {later} ns");
            prop_assert!(!good || later < 2 * EPOCH_NS, "good after {later} ns");
        }

        #[test]
        fn is_not_good_for_anything_else(
            secret: [u8; 16], other_secret: [u8; 16],
            client in path(), other in path(), id: u64, other_id: u64, bit in 0u32..128,
        ) {
            let (cookies, now) = (Cookies::new(secret), Time::from_ns(3 * EPOCH_NS));
            let cookie = cookies.bake(now, &client, id);
            prop_assert!(cookies.are_good(now, &client, id, &cookie));
            let elsewhere = Path { local: other.local, ..client };
            prop_assert!(client == elsewhere || !cookies.are_good(now, &elsewhere, id, &cookie));
            prop_assert!(client == other || !cookies.are_good(now, &other, id, &cookie));
            prop_assert!(id == other_id || !cookies.are_good(now, &client, other_id, &cookie));
            prop_assert!(secret == other_secret || !Cookies::new(other_secret).are_good(now, &client, id, &cookie));
            let changed = (u128::from_be_bytes(cookie) ^ (1u128 << bit)).to_be_bytes();
            prop_assert!(!cookies.are_good(now, &client, id, &changed));
            prop_assert!(!cookies.are_good(Time::from_ns(2 * EPOCH_NS), &client, id, &cookie), "from the future");
        }
    }

    #[test]
    fn the_secret_is_not_told() {
        assert_eq!(format!("{:?}", Cookies::new([7; 16])), "Cookies { .. }");
    }
}
