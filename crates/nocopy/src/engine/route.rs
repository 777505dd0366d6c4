//! Routes, neighbours and links of the host, queried by netlink and remembered until they change.

use nocopy_proto::errno::ErrorCause;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use nocopy_proto::MacAddress;

use crate::sys::route::{self, LinkMessage, NeighbourMessage, ReceivedChanges, RouteMessage, TableChange};

/// The most routes, and neighbours, that are remembered (some MiB); at one more, all are forgotten.
const ROUTES_MAX: usize = 65_536;

/// The largest message about a change: `NLMSG_GOODSIZE`, a page or 8 KiB; for links with many attributes
/// more.
const CHANGE_BYTES: usize = 32 * 1024;

/// Change messages read per call; the rest is read by the next.
const CHANGES_AT_A_TIME: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface_index: u32,
    /// The source address that the host would use, if it has one.
    pub(crate) source: Option<IpAddr>,
    /// The router to send to; `None` if the destination is on the link.
    pub(crate) gateway: Option<IpAddr>,
    /// The longest IP packet: by the route, the path MTU, or the interface.
    pub(crate) mtu_bytes: u32,
    pub(crate) kind: RouteKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteKind {
    Unicast,
    Broadcast,
    Multicast,
    Local,
    /// Another host, behind headers that the kernel puts in front (MPLS, segment routing, …).
    Encapsulated,
}

/// Properties of an interface that are needed to send on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its hardware address; `None` if it is not an Ethernet address.
    pub(crate) mac: Option<MacAddress>,
    pub(crate) mtu_bytes: u32,
    pub(crate) medium: LinkKind,
}

/// The carrier of an interface's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// This machine: packets end in a local socket or virtual machine (loopback, veth, tun and tap, bridge).
    Host,
    Card,
    /// Not known, or other interfaces below it decide (bond, VLAN, tunnel).
    Unknown,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// Its hardware address; `None` until it has answered.
    pub(crate) mac: Option<MacAddress>,
    /// It was silent for a while, so the host would check it before sending.
    pub(crate) is_stale: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    /// The host has no route, or one that forbids it.
    #[error("{to}: no route{cause}; 'ip route get {to}' shows what the host would do", cause = ErrorCause(.source))]
    Unreachable { to: IpAddr, source: io::Error },
    #[error(
        "{to}: the kernel's route names no interface{cause}; this is a fault of nocopy or the kernel: please report it with the output of 'ip route get {to}'", cause = ErrorCause(.source))]
    Unreadable { to: IpAddr, source: io::Error },
    /// The kernel refused the request.
    #[error("routes: cannot {operation}{cause}; run it where netlink sockets are allowed", cause = ErrorCause(.source))]
    System { operation: &'static str, source: io::Error },
}

impl RouteError {
    fn system_error(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// The routes of the network namespace of the thread that opened this.
#[derive(Debug)]
pub(crate) struct Routes {
    requests: OwnedFd,
    changes: OwnedFd,
    from: Option<IpAddr>,
    link_interface: Option<u32>,
    /// The interface, or the VRF, of all that is sent.
    device: Option<u32>,
    cache: LookupCache,
    /// An entry was forgotten for lack of room, so users that remember its results do not notice its later
    /// changes.
    has_evicted: bool,
    buffer: Box<[u8]>,
}

/// What was looked up, remembered until it changes.
#[derive(Debug, Default, PartialEq)]
struct LookupCache {
    /// By source and destination.
    routes: HashMap<(Option<IpAddr>, IpAddr), Route>,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
    links: HashMap<u32, Link>,
}

impl Routes {
    /// Routes from an address, if one is given: policies may depend on it. Multicast and link-local
    /// destinations are sent to by `link_interface`, if one is given.
    pub(crate) fn open(from: Option<IpAddr>, link_interface: Option<u32>) -> Result<Self, RouteError> {
        // Reads changes first, so that a later change is noticed.
        let changes =
            route::subscribe_changes().map_err(RouteError::system_error("listen to changes of routes"))?;
        let requests = route::route_socket().map_err(RouteError::system_error("open a netlink socket"))?;
        Ok(Self {
            requests,
            changes,
            from,
            link_interface,
            device: None,
            cache: LookupCache::default(),
            has_evicted: false,
            buffer: vec![0; CHANGE_BYTES].into(),
        })
    }

    /// Looks routes up from an address from here on, or from the one that the host would choose.
    pub(crate) fn set_source(&mut self, from: Option<IpAddr>) {
        self.from = from;
    }

    /// As [`open`](Self::open), for a socket that may be bound to an interface or a VRF.
    pub(crate) fn open_for_device(from: Option<IpAddr>, device: Option<u32>) -> Result<Self, RouteError> {
        Ok(Self { device, ..Self::open(from, None)? })
    }

    /// The route to an address, remembered until it changes.
    pub(crate) fn look_up(&mut self, to: IpAddr) -> Result<Route, RouteError> {
        if let Some(route) = self.cache.routes.get(&(self.from, to)) {
            return Ok(*route);
        }
        let interface =
            self.link_interface.filter(|_| to.is_multicast() || is_link_local(to)).or(self.device);
        let answer = route::route_to(&self.requests, to, self.from, interface)
            .map_err(|source| RouteError::Unreachable { to, source })?;
        let mut route = parse_route(to, &answer)?;
        if route.mtu_bytes == 0 {
            route.mtu_bytes = self.link(route.interface_index)?.mtu_bytes;
        }
        if self.cache.routes.len() >= ROUTES_MAX {
            self.cache.routes.clear();
            self.has_evicted = true;
        }
        self.cache.routes.insert((self.from, to), route);
        Ok(route)
    }

    pub(crate) fn link(&mut self, interface_index: u32) -> Result<Link, RouteError> {
        if let Some(link) = self.cache.links.get(&interface_index) {
            return Ok(*link);
        }
        let answer = route::link_by_index(&self.requests, interface_index)
            .map_err(RouteError::system_error("look up an interface by its index"))?;
        let link = Link {
            mac: answer.address.as_deref().and_then(parse_mac),
            mtu_bytes: answer.mtu_bytes.unwrap_or(0),
            medium: link_kind(&answer),
        };
        self.cache.links.insert(interface_index, link);
        Ok(link)
    }

    /// The name of an interface; not remembered.
    #[cfg(feature = "tcp")]
    pub(crate) fn interface_name(&self, interface_index: u32) -> Option<String> {
        route::link_by_index(&self.requests, interface_index).ok()?.name
    }

    /// A host on a link.
    pub(crate) fn neighbour(
        &mut self,
        interface_index: u32,
        address: IpAddr,
    ) -> Result<Neighbour, RouteError> {
        if let Some(neighbour) = self.cache.neighbours.get(&(interface_index, address)) {
            return Ok(*neighbour);
        }
        let answer = route::neighbour_entry(&self.requests, interface_index, address)
            .map_err(RouteError::system_error("look up a neighbour"))?;
        let neighbour = answer.as_ref().map(parse_neighbour).unwrap_or_default();
        if self.cache.neighbours.len() >= ROUTES_MAX {
            self.cache.neighbours.clear();
            self.has_evicted = true;
        }
        self.cache.neighbours.insert((interface_index, address), neighbour);
        Ok(neighbour)
    }

    /// Makes the host check whether a stale neighbour still exists, as its own traffic would. Errors:
    /// `CAP_NET_ADMIN` is missing.
    #[cfg(feature = "port")]
    pub(crate) fn confirm_neighbour(&mut self, interface_index: u32, address: IpAddr) -> io::Result<()> {
        route::use_neighbour(&self.requests, interface_index, address)
    }

    /// Forgets what has changed since the last call; returns whether anything was forgotten. One system call
    /// if nothing changed.
    pub(crate) fn poll_changes(&mut self) -> bool {
        let mut forgot = std::mem::take(&mut self.has_evicted);
        for _ in 0..CHANGES_AT_A_TIME {
            let forget = |change: &TableChange| forgot |= self.cache.forget(change);
            match route::read_changes(&self.changes, &mut self.buffer, forget) {
                Ok(ReceivedChanges::Some) => {}
                Ok(ReceivedChanges::None) => break,
                Ok(ReceivedChanges::Lost) | Err(_) => {
                    self.forget();
                    return true;
                }
            }
        }
        forgot
    }

    /// Forgets everything. Some changes are not reported: a path's MTU, a neighbour that became stale.
    pub(crate) fn forget(&mut self) {
        self.cache = LookupCache::default();
    }
}

impl LookupCache {
    /// Forgets the entries that a change concerns; returns whether there was one.
    fn forget(&mut self, change: &TableChange) -> bool {
        match change {
            TableChange::Neighbour(NeighbourMessage { interface_index, destination, .. }) => destination
                .is_some_and(|address| self.neighbours.remove(&(*interface_index, address)).is_some()),
            TableChange::Link => std::mem::take(self) != Self::default(),
            TableChange::Other => !std::mem::take(&mut self.routes).is_empty(),
        }
    }
}

fn link_kind(link: &LinkMessage) -> LinkKind {
    // They pass their packets to something on this machine.
    let ends_on_this_host = matches!(link.kind.as_deref(), Some("veth" | "tun" | "bridge"));
    if link.flags & libc::IFF_LOOPBACK as u32 != 0 || ends_on_this_host {
        LinkKind::Host
    } else if link.is_on_bus {
        LinkKind::Card
    } else {
        LinkKind::Unknown
    }
}

fn parse_route(to: IpAddr, answer: &RouteMessage) -> Result<Route, RouteError> {
    let kind = match answer.kind {
        _ if answer.is_encapsulated => RouteKind::Encapsulated,
        // The kernel names multicast routes in several ways; the address is certain.
        _ if to.is_multicast() => RouteKind::Multicast,
        libc::RTN_LOCAL | libc::RTN_ANYCAST => RouteKind::Local,
        libc::RTN_BROADCAST => RouteKind::Broadcast,
        _ => RouteKind::Unicast,
    };
    let Some(interface_index) = answer.interface_index.filter(|index| *index != 0) else {
        return Err(RouteError::Unreadable { to, source: io::ErrorKind::InvalidData.into() });
    };
    Ok(Route {
        interface_index,
        source: answer.source,
        gateway: answer.gateway,
        mtu_bytes: answer.mtu_bytes.unwrap_or(0),
        kind,
    })
}

fn parse_neighbour(found: &NeighbourMessage) -> Neighbour {
    // Its address is known.
    const USABLE: u16 = libc::NUD_REACHABLE
        | libc::NUD_STALE
        | libc::NUD_DELAY
        | libc::NUD_PROBE
        | libc::NUD_NOARP
        | libc::NUD_PERMANENT;
    let mac = found.address.as_deref().and_then(parse_mac);
    let mac = mac.filter(|_| found.state & USABLE != 0);
    Neighbour { mac, is_stale: found.state == libc::NUD_STALE }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn parse_mac(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok().map(MacAddress)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use nocopy_lab::End;

    use super::*;

    fn run_ip_command(end: &End, arguments: &str) {
        let done = end.namespace().run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
        assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn parse_ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Adds IPv6 addresses, without the delay of duplicate address detection.
    fn add_ipv6_address(end: &End, own: &str) {
        let setting = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", end.interface());
        end.namespace().run(|| std::fs::write(setting, "0").unwrap());
        run_ip_command(end, &format!("-6 address add {own}/64 dev {} nodad", end.interface()));
        // The kernel adds the local route later, in a worker (`addrconf_dad_work`).
        let is_local = || {
            let show = ["-6", "route", "show", "table", "local"];
            let shown = end.namespace().run(|| Command::new("ip").args(show).output().unwrap());
            String::from_utf8(shown.stdout).unwrap().contains(&format!("local {own} "))
        };
        let give_up = Instant::now() + Duration::from_secs(60);
        while !is_local() {
            assert!(Instant::now() < give_up, "{own} does not become an address of this host");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn routes_agree_with_the_hosts_table() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let left = lab.left();
        add_ipv6_address(left, "fd77::1");
        run_ip_command(left, "route add 10.9.0.0/16 via 10.77.0.2 mtu 1400");
        run_ip_command(left, "route add blackhole 10.8.0.0/16");
        run_ip_command(left, "-6 route add fd99::/64 via fd77::2");
        let (own, gateway) = (Some(parse_ip("10.77.0.1")), Some(parse_ip("10.77.0.2")));
        let index = left.index();
        left.namespace().run(|| {
            let mut routes = Routes::open(None, Some(index)).unwrap();
            let on_link = Route {
                interface_index: index,
                source: own,
                gateway: None,
                mtu_bytes: 1500,
                kind: RouteKind::Unicast,
            };
            let mut look_up = |to| routes.look_up(parse_ip(to)).unwrap();
            assert_eq!(look_up("10.77.0.2"), on_link);
            assert_eq!(look_up("10.9.1.2"), Route { gateway, mtu_bytes: 1400, ..on_link });
            assert_eq!(look_up("10.77.0.255"), Route { kind: RouteKind::Broadcast, ..on_link });
            assert_eq!(look_up("239.1.2.3"), Route { kind: RouteKind::Multicast, ..on_link });
            let own = look_up("10.77.0.1");
            assert_eq!((own.interface_index, own.kind), (1, RouteKind::Local));
            let six = Route { source: Some(parse_ip("fd77::1")), ..on_link };
            assert_eq!(look_up("fd77::2"), six);
            assert_eq!(look_up("fd99::9"), Route { gateway: Some(parse_ip("fd77::2")), ..six });
            assert_eq!(look_up("ff02::1234").kind, RouteKind::Multicast);
            assert_eq!(look_up("ff02::1234").interface_index, index);
            assert_eq!(look_up("fd77::1").kind, RouteKind::Local);
            for nowhere in ["8.8.8.8", "10.8.0.1", "2001:db8::1"] {
                let error = routes.look_up(parse_ip(nowhere)).unwrap_err();
                assert!(matches!(error, RouteError::Unreachable { .. }), "{error}");
            }
            let mac = Some(MacAddress(left.mac()));
            assert_eq!(routes.link(index).unwrap(), Link { mac, mtu_bytes: 1500, medium: LinkKind::Host });
            assert!(routes.link(99).is_err());
        });
    }

    #[test]
    fn neighbours_agree_with_the_hosts_table() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, index) = (lab.left(), lab.left().index());
        for (last, state) in
            [(10, "reachable"), (11, "stale"), (12, "failed"), (13, "noarp"), (14, "permanent")]
        {
            let address = if state == "failed" { "" } else { " lladdr 02:00:00:00:00:09" };
            run_ip_command(left, &format!("neighbour add 10.77.0.{last}{address} dev nc0 nud {state}"));
        }
        left.namespace().run(|| {
            let mut routes = Routes::open(None, None).unwrap();
            let mac = Some(MacAddress([2, 0, 0, 0, 0, 9]));
            let mut known = |last| routes.neighbour(index, IpAddr::from([10, 77, 0, last])).unwrap();
            assert_eq!(known(10), Neighbour { mac, is_stale: false });
            assert_eq!(known(11), Neighbour { mac, is_stale: true });
            assert_eq!(known(12), Neighbour { mac: None, is_stale: false });
            assert_eq!(known(13), Neighbour { mac, is_stale: false });
            assert_eq!(known(14), Neighbour { mac, is_stale: false });
            assert_eq!(known(99), Neighbour { mac: None, is_stale: false });
            // The host checks it: no longer stale.
            routes.confirm_neighbour(index, parse_ip("10.77.0.11")).unwrap();
            routes.forget();
            let confirming = routes.neighbour(index, parse_ip("10.77.0.11")).unwrap();
            assert_eq!(confirming, Neighbour { mac, is_stale: false });
        });
    }

    /// As the kernel does it for sockets: without a route everything is on the link.
    #[test]
    fn without_a_route_destinations_of_a_bound_device_are_on_link() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, far) = (lab.left(), parse_ip("10.9.0.1"));
        let route =
            |device| left.namespace().run(|| Routes::open_for_device(None, device).unwrap().look_up(far));
        assert!(route(None).is_err());
        let found = route(Some(left.index())).unwrap();
        assert_eq!((found.interface_index, found.gateway), (left.index(), None));
    }

    #[test]
    fn only_changed_routes_and_neighbours_are_forgotten() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, index) = (lab.left(), lab.left().index());
        let mut routes = left.namespace().run(|| Routes::open(None, None).unwrap());
        let (peer, far) = (parse_ip("10.77.0.2"), parse_ip("10.9.0.1"));
        let mac = |last| Some(MacAddress([2, 0, 0, 0, 0, last]));
        while routes.poll_changes() {}
        assert!(routes.look_up(far).is_err());
        assert!(!routes.poll_changes(), "nothing changed");

        run_ip_command(left, "route add 10.9.0.0/16 via 10.77.0.2");
        assert!(!routes.poll_changes(), "nothing that was known");
        assert_eq!(routes.look_up(far).unwrap().gateway, Some(peer));
        run_ip_command(left, "route change 10.9.0.0/16 via 10.77.0.3");
        assert_eq!(routes.look_up(far).unwrap().gateway, Some(peer), "not asked yet");
        assert!(routes.poll_changes());
        assert_eq!(routes.look_up(far).unwrap().gateway, Some(parse_ip("10.77.0.3")));

        assert_eq!(routes.neighbour(index, peer).unwrap().mac, Some(MacAddress(lab.right().mac())));
        run_ip_command(left, "neighbour add 10.77.0.77 lladdr 02:00:00:00:00:07 dev nc0 nud permanent");
        assert!(!routes.poll_changes(), "another neighbour");
        run_ip_command(left, "neighbour change 10.77.0.2 lladdr 02:00:00:00:00:08 dev nc0 nud permanent");
        assert!(routes.poll_changes());
        assert_eq!(routes.neighbour(index, peer).unwrap().mac, mac(8));

        assert_eq!(routes.look_up(far).unwrap().mtu_bytes, 1500);
        left.set_mtu(1300).unwrap();
        assert!(routes.poll_changes());
        assert_eq!(routes.look_up(far).unwrap().mtu_bytes, 1300);
    }

    #[test]
    fn a_cache_eviction_is_reported_as_a_change() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, index) = (lab.left(), lab.left().index());
        let mut routes = left.namespace().run(|| Routes::open(None, None).unwrap());
        let peer = parse_ip("10.77.0.2");
        assert_eq!(routes.neighbour(index, peer).unwrap().mac, Some(MacAddress(lab.right().mac())));
        // As if that many had been looked up, which would take a second.
        let none = Neighbour { mac: None, is_stale: false };
        let stations = (0..).map(|number| Ipv4Addr::from_bits(0x0a4e_0000 + number).into());
        routes.cache.neighbours.extend(stations.take(ROUTES_MAX - 2).map(|station| ((index, station), none)));
        for number in 0..2 {
            assert!(routes.cache.neighbours.len() < ROUTES_MAX || number == 1);
            routes.neighbour(index, Ipv4Addr::from_bits(0x0a4d_1000 + number).into()).unwrap();
            assert!(routes.cache.neighbours.len() <= ROUTES_MAX);
        }
        assert_eq!(routes.cache.neighbours.len(), 1);
        assert!(!routes.cache.neighbours.contains_key(&(index, peer)), "room for all");
        assert!(routes.poll_changes());
        assert!(!routes.poll_changes(), "told once");
    }

    #[test]
    fn an_overrun_of_change_messages_forgets_all_routes() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let left = lab.left();
        let mut routes = left.namespace().run(|| Routes::open(None, None).unwrap());
        routes.look_up(parse_ip("10.77.0.2")).unwrap();
        // The kernel's minimum.
        rustix::net::sockopt::set_socket_recv_buffer_size(&routes.changes, 2048).unwrap();
        for last in 3..60 {
            run_ip_command(
                left,
                &format!("neighbour add 10.77.0.{last} lladdr 02:00:00:00:00:07 dev nc0 nud permanent"),
            );
        }
        assert!(routes.poll_changes(), "neighbours nobody knew, but too many to be told of");
        assert!(routes.cache.routes.is_empty());
    }
}
