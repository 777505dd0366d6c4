//! What is behind the socket on the way to a destination: whether a completion proves anything.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::evidence::{Cause, Evidence};
use crate::route::{Kind, Medium, Routes};
use crate::sys::option;

/// The routes of each network namespace that sockets of this process are in, from each of their addresses; one for all sockets,
/// since each has two netlink sockets.
static SHARED: Mutex<Vec<(Key, Weak<Mutex<Routes>>)>> = Mutex::new(Vec::new());

/// A network namespace, by its cookie, and the address sent from, since policies may depend on it.
type Key = (u64, Option<IpAddr>);

/// The paths from a socket.
#[derive(Debug)]
pub(super) struct Paths {
    /// `None` where the host does not tell.
    routes: Option<Arc<Mutex<Routes>>>,
}

/// What is known of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// It ends in a socket of this machine, or in one of a machine that lives in it: what arrives there is copied late.
    Local,
    /// It leaves by a card.
    Card,
    /// Nobody knows what comes behind.
    Unknown,
}

impl Path {
    /// What a completion proves. That the socket layer did not copy says nothing of what comes behind it, unless that is a card.
    pub(super) fn evidence(self, copied: bool) -> Evidence {
        match (copied, self) {
            (true, Self::Local) => Evidence::Copied(Cause::DeliveredLocally),
            (true, _) => Evidence::Copied(Cause::ZeroCopyRefused),
            (false, Self::Card) => Evidence::ZeroCopy,
            (false, _) => Evidence::Unknown,
        }
    }
}

impl Paths {
    /// Of a socket with that address. To be called in its network namespace.
    pub(super) fn of(socket: &impl AsFd, local: Option<IpAddr>) -> Self {
        let from = local.filter(|local| !local.is_unspecified());
        let routes = option::namespace_cookie(socket).ok().and_then(|cookie| shared((cookie, from)));
        Self { routes }
    }

    /// The path to that address, as it is now.
    pub(super) fn to(&self, to: Option<IpAddr>) -> Path {
        let (Some(routes), Some(to)) = (&self.routes, to) else { return Path::Unknown };
        look_up(&mut routes.lock().unwrap_or_else(PoisonError::into_inner), to)
    }

    /// Takes notice of what changed. One system call if nothing did.
    pub(super) fn refresh(&self) {
        if let Some(routes) = &self.routes {
            routes.lock().unwrap_or_else(PoisonError::into_inner).poll_changes();
        }
    }
}

fn look_up(routes: &mut Routes, to: IpAddr) -> Path {
    let Ok(route) = routes.look_up(to) else { return Path::Unknown };
    if route.kind == Kind::Local {
        return Path::Local;
    }
    match routes.link(route.interface_index).map(|link| link.medium) {
        Ok(Medium::Host) => Path::Local,
        Ok(Medium::Card) => Path::Card,
        _ => Path::Unknown,
    }
}

fn shared(key: Key) -> Option<Arc<Mutex<Routes>>> {
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, routes)| routes.strong_count() > 0);
    if let Some(routes) = all.iter().find(|(known, _)| *known == key).and_then(|(_, routes)| routes.upgrade())
    {
        return Some(routes);
    }
    let routes = Arc::new(Mutex::new(Routes::open(key.1, None).ok()?));
    all.push((key, Arc::downgrade(&routes)));
    Some(routes)
}
