//! The network path behind a socket. It decides whether a completion proves that nothing was copied.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::engine::address;
use crate::engine::route::{LinkKind, Route, RouteKind, Routes};
use crate::facts::evidence::{Cause, Evidence};
use crate::memory::send_queue::CallReport;
use crate::sys::fork::{Generation, PerProcess};
use crate::sys::option;

/// The routes of each network namespace that has sockets of this process, from each of their addresses.
/// Shared by all sockets, because each needs two netlink sockets.
static SHARED: PerProcess<Mutex<SharedRoutes>> = PerProcess::new();

type SharedRoutes = Vec<(RoutesKey, Weak<Mutex<Routes>>)>;

/// A network namespace, by its cookie, and what the route may depend on: the source address, and the device
/// that the socket is bound to.
type RoutesKey = (u64, Option<IpAddr>, Option<u32>);

#[derive(Debug)]
pub(crate) struct SocketPaths {
    /// `None` if the host does not answer.
    routes: Option<Arc<Mutex<Routes>>>,
    /// The process that asks. A forked child shares the netlink sockets: an answer that it reads is lost to
    /// its parent.
    generation: Generation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathKind {
    /// It ends in a socket of this machine, or in a virtual machine or container on it: arriving data is
    /// copied late.
    Local,
    /// Packets leave by a card.
    Card,
    Unknown,
}

impl PathKind {
    /// The evidence that a completion gives. "Not copied by the socket layer" says nothing about the layers
    /// below, unless the path ends at a card.
    pub(crate) fn evidence(self, copied: bool) -> Evidence {
        match (copied, self) {
            (true, Self::Local) => Evidence::Copied(Cause::DeliveredLocally),
            (true, _) => Evidence::Copied(Cause::ZeroCopyRefused),
            (false, Self::Card) => Evidence::ZeroCopy,
            (false, _) => Evidence::Unknown,
        }
    }
}

impl SocketPaths {
    /// The paths of a socket. To be called in its network namespace.
    pub(crate) fn of_socket(socket: &impl AsFd) -> Self {
        let local = address::local_addr(socket).ok().map(|local| local.ip().to_canonical());
        let from = local.filter(|local| !local.is_unspecified());
        let routes = option::namespace_cookie(socket).ok();
        let routes = routes.and_then(|cookie| shared_routes((cookie, from, option::bound_interface(socket))));
        Self { routes, generation: Generation::current() }
    }

    /// `None` in a forked child, too.
    fn lock_routes(&self) -> Option<MutexGuard<'_, Routes>> {
        let routes = self.routes.as_ref().filter(|_| !self.generation.is_outdated())?;
        Some(routes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The route to an address, and all routes.
    fn look_up_route(&self, to: Option<IpAddr>) -> Option<(Route, MutexGuard<'_, Routes>)> {
        // IPv4-mapped addresses are routed as IPv4.
        let (to, mut routes) = (to?.to_canonical(), self.lock_routes()?);
        Some((routes.look_up(to).ok()?, routes))
    }

    pub(crate) fn path_to(&self, to: Option<IpAddr>) -> PathKind {
        let routed = to.filter(|to| !is_link_scoped(to.to_canonical()));
        let Some((route, mut routes)) = self.look_up_route(routed) else { return PathKind::Unknown };
        match route.kind {
            RouteKind::Local => return PathKind::Local,
            // Receivers on this host may get them, too; and an encapsulation may be more than a header.
            RouteKind::Broadcast | RouteKind::Multicast | RouteKind::Encapsulated => {
                return PathKind::Unknown;
            }
            RouteKind::Unicast => {}
        }
        match routes.link(route.interface_index).map(|link| link.medium) {
            Ok(LinkKind::Host) => PathKind::Local,
            Ok(LinkKind::Card) => PathKind::Card,
            _ => PathKind::Unknown,
        }
    }

    /// Reads which routes changed. One system call if none did.
    pub(crate) fn refresh(&self) {
        if let Some(mut routes) = self.lock_routes() {
            routes.poll_changes();
        }
    }
}

#[cfg(feature = "tcp")]
impl SocketPaths {
    /// Whether that is an address of this machine.
    pub(crate) fn is_local_address(&self, to: Option<IpAddr>) -> bool {
        self.look_up_route(to).is_some_and(|(route, _)| route.kind == RouteKind::Local)
    }

    /// The name of the interface by which packets leave to that address, if it is known.
    pub(crate) fn interface_to(&self, to: Option<IpAddr>) -> Option<String> {
        let (route, routes) = self.look_up_route(to)?;
        routes.interface_name(route.interface_index)
    }
}

/// What completions of one sender's calls prove.
#[derive(Debug)]
pub(crate) struct PathEvidence {
    paths: SocketPaths,
    /// The path to the destination of the last finished call, which is usually that of the next.
    last: Option<(u32, PathKind)>,
    /// The path of the first call among those that one report covers.
    of_report: Option<PathKind>,
}

impl PathEvidence {
    pub(crate) fn new(paths: SocketPaths) -> Self {
        Self { paths, last: None, of_report: None }
    }

    /// Forgets the path that was looked up last: its number now means another destination.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Reads which routes changed; to be called before completions are judged.
    pub(crate) fn refresh(&mut self) {
        self.paths.refresh();
        self.forget();
    }

    /// The evidence of the completion of a call to that destination.
    pub(crate) fn evidence(
        &mut self,
        destination: u32,
        to: impl FnOnce() -> Option<IpAddr>,
        report: CallReport,
    ) -> Evidence {
        if report.is_first {
            self.of_report = None;
        }
        let path = match self.last {
            Some((last, path)) if last == destination => path,
            _ => self.paths.path_to(to()),
        };
        self.last = Some((destination, path));
        // The kernel joins consecutive completions, and reports "copied" of the first only
        // (`skb_zerocopy_notify_extend`).
        let is_spoken_for = *self.of_report.get_or_insert(path) == path;
        if is_spoken_for { path.evidence(report.copied) } else { Evidence::Unknown }
    }
}

/// Whether the address is valid only on one link, named by the socket or the address's scope: the table's
/// link may be another.
fn is_link_scoped(to: IpAddr) -> bool {
    match to {
        IpAddr::V4(to) => to.is_link_local() || to.is_multicast(),
        IpAddr::V6(to) => to.is_unicast_link_local() || to.is_multicast(),
    }
}

fn shared_routes(key: RoutesKey) -> Option<Arc<Mutex<Routes>>> {
    let mut all = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, routes)| routes.strong_count() > 0);
    if let Some(routes) = all.iter().find(|(known, _)| *known == key).and_then(|(_, routes)| routes.upgrade())
    {
        return Some(routes);
    }
    let routes = Arc::new(Mutex::new(Routes::open_for_device(key.1, key.2).ok()?));
    all.push((key, Arc::downgrade(&routes)));
    Some(routes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::in_forked_child;

    #[test]
    fn mapped_ipv4_addresses_use_ipv4_routes() {
        if !nocopy_lab::ipv6_or_skip() {
            return;
        }
        let paths = SocketPaths::of_socket(&std::net::UdpSocket::bind("[::]:0").unwrap());
        for to in ["127.0.0.1", "::ffff:127.0.0.1", "::1"] {
            assert_eq!(paths.path_to(Some(to.parse().unwrap())), PathKind::Local, "{to}");
        }
    }

    #[test]
    fn a_child_forked_while_routes_are_locked_opens_its_own() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = socket.local_addr().unwrap().ip();
        let paths = SocketPaths::of_socket(&socket);
        let (all, routes) = (SHARED.get().lock(), paths.lock_routes());
        in_forked_child(|| {
            paths.refresh();
            assert_eq!(paths.path_to(Some(here)), PathKind::Unknown);
            assert_eq!(SocketPaths::of_socket(&socket).path_to(Some(here)), PathKind::Local, "its own");
        });
        drop((all, routes));
        assert_eq!(paths.path_to(Some(here)), PathKind::Local);
    }

    #[test]
    fn paths_of_multicast_and_link_local_are_unknown() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            let paths = SocketPaths::of_socket(&socket);
            assert_eq!(paths.path_to(Some(lab.right().ipv4().into())), PathKind::Local, "through veth");
            for to in ["224.0.0.1", "255.255.255.255", "169.254.1.1", "fe80::1", "ff02::1"] {
                assert_eq!(paths.path_to(Some(to.parse().unwrap())), PathKind::Unknown, "{to}");
            }
        });
    }
}
