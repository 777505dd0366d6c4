//! The path of a datagram: over the port with prepared headers, or through the kernel, with the reason.
//!
//! Changes of routes are handled before the first datagram of each batch, so that after a pause none is sent
//! by an old route. The kernel resolves and confirms neighbours, never this module.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nocopy_proto::wire::Ecn;
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame, UdpTemplate};

use super::super::ancillary::Ancillary;
use super::super::open_error::OpenError;
use super::super::settings::SocketSettings;
use super::kernel::KernelSockets;
use super::route_socket_error;
use crate::engine::route::{Route, RouteError, RouteKind, Routes};
use crate::sys::clock::boottime_ns;
use crate::sys::interface::Interface;

/// How often to ask the host for route changes while sending.
const POLL_INTERVAL_NS: u64 = 1_000_000;

/// The age at which everything is looked up again, because some changes are not reported
/// ([`Routes::forget`]).
const AGE_MAX: Duration = Duration::from_secs(1);

/// How many destinations are looked up again per second, on average, only because of their age: each can cost
/// two requests to the kernel. If there are more destinations, routes are kept longer than [`AGE_MAX`].
const RENEWED_A_SECOND: u32 = 1000;

/// How many routes are looked up between two checks for changes, that is in a millisecond, at some 10 us
/// each, so that forged addresses cannot keep a program busy that answers any address. Beyond that, datagrams
/// go through the kernel.
const LOOKUPS_MAX: u32 = 32;

/// The most destinations with prepared headers: some 16 MiB.
const ROUTES_MAX: usize = 65_536;

/// The reason why a datagram went through the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelReason {
    /// The next hop's hardware address is not known yet.
    Unresolved,
    /// The neighbour's address may have changed: the kernel confirms it when it sends.
    Confirming,
    TooLong,
    OtherInterface,
    Local,
    /// A broadcast: the kernel checks whether it is allowed.
    Broadcast,
    /// The kernel adds other headers.
    Encapsulated,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum SendPath {
    Port {
        template: UdpTemplate,
        payload_bytes_max: usize,
        /// Whether the next datagram goes through the kernel, so that it confirms the neighbour.
        confirm: bool,
    },
    Kernel(KernelReason),
}

impl SendPath {
    /// The path of datagrams with ancillary data, which the headers have.
    fn with_ancillary(self, ancillary: Ancillary) -> Self {
        let Self::Port { template, payload_bytes_max, confirm } = self else { return self };
        let flow = template.flow();
        let addresses = ancillary
            .source
            .and_then(|source| IpAddresses::new(source.to_canonical(), flow.addresses.destination()))
            .unwrap_or(flow.addresses);
        let traffic_class = ancillary.ecn.map_or(flow.traffic_class, Ecn::bits);
        let template = UdpTemplate::new(&UdpFrame { addresses, traffic_class, ..*flow })
            .expect("of the same IP version, with the same checksum");
        Self::Port { template, payload_bytes_max, confirm }
    }
}

/// Paths by destination.
#[derive(Debug)]
struct Paths<K> {
    entries: Vec<(K, SendPath)>,
    /// Index in `entries` of a destination.
    indices: HashMap<K, usize>,
    last: usize,
}

impl<K: Copy + Eq + Hash> Paths<K> {
    fn new() -> Self {
        Self { entries: Vec::new(), indices: HashMap::new(), last: 0 }
    }

    /// The place of a path, if it is known.
    #[inline]
    fn find(&mut self, key: &K) -> Option<usize> {
        // `last` may be older than the last `clear`, so its key is compared.
        if self.entries.get(self.last).is_none_or(|(last, _)| last != key) {
            self.last = *self.indices.get(key)?;
        }
        Some(self.last)
    }

    fn add(&mut self, key: K, path: SendPath) -> usize {
        if self.entries.len() >= ROUTES_MAX {
            self.clear();
        }
        self.last = self.entries.len();
        self.indices.insert(key, self.last);
        self.entries.push((key, path));
        self.last
    }

    /// Forgets all paths but keeps the memory, because probably as many will be needed again.
    fn clear(&mut self) {
        // Both together: `indices` has indices of `entries`.
        self.entries.clear();
        self.indices.clear();
    }
}

/// The routes of a socket, remembered while they are valid.
#[derive(Debug)]
pub(super) struct RouteCache {
    routes: Routes,
    plain: Paths<SocketAddr>,
    /// To addresses with ancillary data, which the templates have.
    with_ancillary: Paths<(SocketAddr, Ancillary)>,
    local: SocketAddr,
    interface_index: u32,
    frame_bytes_max: usize,
    congestion_marks: bool,
    checksum: UdpChecksum,
    hop_limits: (u8, u8),
    polled_ns: u64,
    renewed_ns: u64,
    /// Routes that may still be looked up before the next check for changes.
    lookups_left: u32,
    /// The path of a destination whose route may not be looked up now.
    not_looked_up: SendPath,
    /// How often a notification of the kernel made a known route invalid.
    changes: u64,
}

impl RouteCache {
    pub(super) fn open(
        interface: &Interface,
        port: &crate::port::NonblockingSender,
        kernel: &KernelSockets,
        settings: &SocketSettings,
    ) -> Result<Self, OpenError> {
        let local = kernel.local_addr();
        let routes = Routes::open(Some(local.ip()), Some(interface.index)).map_err(|error| match error {
            RouteError::System { source, .. } => OpenError::Routes(source),
            other => OpenError::Routes(route_socket_error(other)),
        })?;
        let now_ns = boottime_ns();
        Ok(Self {
            routes,
            plain: Paths::new(),
            with_ancillary: Paths::new(),
            local,
            interface_index: interface.index,
            frame_bytes_max: port.packet_bytes_max(),
            congestion_marks: settings.congestion_marks,
            checksum: settings.checksum.unwrap_or(UdpChecksum::Computed),
            hop_limits: (kernel.hop_limit, kernel.multicast_hop_limit),
            polled_ns: now_ns,
            renewed_ns: now_ns,
            lookups_left: LOOKUPS_MAX,
            not_looked_up: SendPath::Kernel(KernelReason::Unresolved),
            changes: 0,
        })
    }

    /// Forgets routes that are invalid by now.
    #[inline]
    pub(super) fn expire(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.polled_ns) >= POLL_INTERVAL_NS {
            self.expire_at(now_ns);
        }
    }

    #[cold]
    fn expire_at(&mut self, now_ns: u64) {
        self.polled_ns = now_ns;
        self.lookups_left = LOOKUPS_MAX;
        let old = u128::from(now_ns.saturating_sub(self.renewed_ns))
            >= age_max(self.destination_count()).as_nanos();
        // First, so that a change counts as notified even if all entries are old.
        let changed = self.routes.poll_changes();
        self.changes += u64::from(changed);
        if old {
            self.renewed_ns = now_ns;
            self.routes.forget();
        }
        if changed || old {
            self.plain.clear();
            self.with_ancillary.clear();
        }
    }

    fn destination_count(&self) -> usize {
        self.plain.entries.len() + self.with_ancillary.entries.len()
    }

    /// How often a notification of the kernel, not age, made a known route invalid.
    pub(super) fn announced_changes(&self) -> u64 {
        self.changes
    }

    /// The path to a destination.
    #[inline]
    pub(super) fn path_to(&mut self, to: SocketAddr) -> Result<&mut SendPath, RouteError> {
        let place = match self.plain.find(&to) {
            Some(place) => place,
            None => {
                let Some(path) = self.look_up_if_allowed(to)? else { return Ok(&mut self.not_looked_up) };
                self.plain.add(to, path)
            }
        };
        Ok(&mut self.plain.entries[place].1)
    }

    /// The path to a destination for datagrams with ancillary data.
    pub(super) fn path_with(
        &mut self,
        to: SocketAddr,
        ancillary: Ancillary,
    ) -> Result<&mut SendPath, RouteError> {
        let place = match self.with_ancillary.find(&(to, ancillary)) {
            Some(place) => place,
            None => {
                let Some(path) = self.look_up_if_allowed(to)? else { return Ok(&mut self.not_looked_up) };
                self.with_ancillary.add((to, ancillary), path.with_ancillary(ancillary))
            }
        };
        Ok(&mut self.with_ancillary.entries[place].1)
    }

    /// `None`: no more may be looked up now.
    fn look_up_if_allowed(&mut self, to: SocketAddr) -> Result<Option<SendPath>, RouteError> {
        let Some(left) = self.lookups_left.checked_sub(1) else { return Ok(None) };
        self.lookups_left = left;
        self.look_up_path(to).map(Some)
    }

    fn look_up_path(&mut self, to: SocketAddr) -> Result<SendPath, RouteError> {
        // The kernel refuses the other address family, and port number 0, with its own errors.
        let Some(addresses) = IpAddresses::new(self.local.ip(), to.ip()).filter(|_| to.port() != 0) else {
            return Ok(SendPath::Kernel(KernelReason::OtherInterface));
        };
        if matches!(to, SocketAddr::V6(to) if to.scope_id() != 0 && to.scope_id() != self.interface_index) {
            return Ok(SendPath::Kernel(KernelReason::OtherInterface));
        }
        let route = self.routes.look_up(to.ip())?;
        let detour = match route.kind {
            RouteKind::Local => Some(KernelReason::Local),
            RouteKind::Broadcast => Some(KernelReason::Broadcast),
            RouteKind::Encapsulated => Some(KernelReason::Encapsulated),
            _ if route.interface_index != self.interface_index => Some(KernelReason::OtherInterface),
            RouteKind::Unicast | RouteKind::Multicast => None,
        };
        if let Some(detour) = detour {
            return Ok(SendPath::Kernel(detour));
        }
        let link = self.routes.link(route.interface_index)?;
        let (station, confirm) = self.next_hop_address(to.ip(), &route)?;
        let (Some(source_mac), Some(destination_mac)) = (link.mac, station) else {
            return Ok(SendPath::Kernel(KernelReason::Unresolved));
        };
        let flow = self.frame_headers(addresses, (source_mac, destination_mac), to.port());
        if flow.hop_limit == 0 {
            // It does not leave this host (RFC 1112 section 6.1).
            return Ok(SendPath::Kernel(KernelReason::Local));
        }
        let template = UdpTemplate::new(&flow).expect("opening refused IPv6 without checksum");
        let packet_bytes_max = (route.mtu_bytes.min(link.mtu_bytes) as usize)
            .min(self.frame_bytes_max.saturating_sub(ETHERNET_BYTES));
        let headers_of_ip = template.header_bytes() - ETHERNET_BYTES;
        let Some(payload_bytes_max) = packet_bytes_max.checked_sub(headers_of_ip) else {
            return Ok(SendPath::Kernel(KernelReason::TooLong));
        };
        let payload_bytes_max = payload_bytes_max.min(flow.payload_bytes_max());
        Ok(SendPath::Port { template, payload_bytes_max, confirm })
    }

    /// The next hop, if its hardware address is known, and whether only the kernel's own traffic can confirm
    /// it.
    fn next_hop_address(
        &mut self,
        to: IpAddr,
        route: &Route,
    ) -> Result<(Option<MacAddress>, bool), RouteError> {
        if let Some(group) = MacAddress::multicast_address_of(to) {
            return Ok((Some(group), false));
        }
        let (interface, next) = (route.interface_index, route.gateway.unwrap_or(to));
        let neighbour = self.routes.neighbour(interface, next)?;
        // At most once in `AGE_MAX`. Without the privilege to request it, the kernel must send.
        let confirm = neighbour.is_stale && self.routes.confirm_neighbour(interface, next).is_err();
        Ok((neighbour.mac, confirm))
    }

    fn frame_headers(&self, addresses: IpAddresses, macs: (MacAddress, MacAddress), port: u16) -> UdpFrame {
        let (to_one, to_groups) = self.hop_limits;
        UdpFrame {
            source_mac: macs.0,
            destination_mac: macs.1,
            vlan: None,
            addresses,
            traffic_class: if self.congestion_marks { Ecn::Ect0.bits() } else { 0 },
            hop_limit: if addresses.destination().is_multicast() { to_groups } else { to_one },
            source_port: self.local.port(),
            destination_port: port,
            checksum: self.checksum,
        }
    }
}

/// The age at which that many destinations are looked up again.
fn age_max(destinations: usize) -> Duration {
    let destinations = u32::try_from(destinations).unwrap_or(u32::MAX);
    AGE_MAX.max(Duration::from_secs(1) / RENEWED_A_SECOND * destinations)
}

pub(super) const ETHERNET_BYTES: usize = nocopy_proto::wire::ethernet::HEADER_BYTES;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::Socket;
    use super::*;
    use crate::facts::mode::Mode;
    use crate::port::Port;

    #[test]
    fn cached_routes_live_longer_with_many_destinations() {
        assert_eq!(age_max(0), AGE_MAX);
        assert_eq!(age_max(1000), AGE_MAX);
        assert_eq!(age_max(10_000), Duration::from_secs(10));
        assert_eq!(age_max(ROUTES_MAX), Duration::from_millis(65_536));
    }

    #[test]
    fn ten_thousand_destinations_are_each_looked_up_once() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let left = lab.left();
        let local = SocketAddr::new(left.ipv4().into(), 0);
        let route = ["route", "add", "10.78.0.0/16", "dev", left.interface()];
        let done = left.namespace().run(|| std::process::Command::new("ip").args(route).status().unwrap());
        assert!(done.success(), "ip {route:?}");
        let port = Port::builder(left.interface()).mode(Mode::XdpCopyNative);
        let mut socket =
            left.namespace().run(|| Socket::open(port, local, &SocketSettings::default())).expect("opened");
        let route_cache = socket.sender.route_cache();
        route_cache.lookups_left = u32::MAX;
        // A tenth are hosts on the link that are not resolved, which costs two requests each.
        let destination = |number: u32| match number % 10 {
            0 => SocketAddr::new(Ipv4Addr::from_bits(0x0a4e_0100 + number / 10).into(), 9),
            _ => SocketAddr::new(lab.right().ipv4().into(), 1 + number as u16 % 60_000),
        };
        for round in 0..3 {
            for number in 0..10_000 {
                let way = *route_cache.path_to(destination(number)).expect("a way");
                match (number % 10, way) {
                    (0, SendPath::Kernel(KernelReason::Unresolved)) => {}
                    (1.., SendPath::Port { template, .. }) => {
                        assert_eq!(template.flow().destination_port, destination(number).port());
                    }
                    (_, way) => panic!("{}: {way:?}", destination(number)),
                }
            }
            assert_eq!(
                route_cache.plain.entries.len(),
                10_000,
                "round {round}: something was looked up again, or forgotten"
            );
        }
        // With any number of destinations, memory is bounded.
        for number in 0..2 * ROUTES_MAX as u32 {
            let to = SocketAddr::new(lab.right().ipv4().into(), 1 + (number % 65_535) as u16);
            let to = if number < 65_535 { to } else { SocketAddr::new(left.ipv4().into(), to.port()) };
            route_cache.path_to(to).expect("a way");
            assert!(
                route_cache.plain.entries.len() <= ROUTES_MAX
                    && route_cache.plain.indices.len() == route_cache.plain.entries.len()
            );
        }
    }

    #[test]
    fn route_look_ups_for_new_destinations_are_limited() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let left = lab.left();
        let local = SocketAddr::new(left.ipv4().into(), 0);
        let port = Port::builder(left.interface()).mode(Mode::XdpCopyNative);
        let mut socket =
            left.namespace().run(|| Socket::open(port, local, &SocketSettings::default())).expect("opened");
        let route_cache = socket.sender.route_cache();
        let destination = |number: u16| SocketAddr::new(lab.right().ipv4().into(), number);
        let is_looked_up = |route_cache: &mut RouteCache, number| {
            matches!(*route_cache.path_to(destination(number)).unwrap(), SendPath::Port { .. })
        };
        assert!((1..=32).all(|number| is_looked_up(route_cache, number)));
        assert!(!is_looked_up(route_cache, 33) && is_looked_up(route_cache, 1), "known ones go on");
        assert!(matches!(
            route_cache.path_to(destination(33)),
            Ok(SendPath::Kernel(KernelReason::Unresolved))
        ));
        assert_eq!(route_cache.plain.entries.len(), 32);
        route_cache.expire_at(route_cache.polled_ns + POLL_INTERVAL_NS);
        assert!(is_looked_up(route_cache, 33));
    }
}
