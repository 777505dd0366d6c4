//! What the kernel forgets of an interface that leaves its namespace: addresses, neighbours, routes. In the
//! calling thread's namespace.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::tc::{TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{NetlinkSocket, netlink_error};
use crate::Error;

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    NetlinkSocket::open(NETLINK_ROUTE)?.request(message, flags)
}

/// All entries of a kind that `pick` picks.
fn dump<T>(
    what: &str,
    questions: impl IntoIterator<Item = RouteNetlinkMessage>,
    pick: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    for question in questions {
        let answers = request(question, NLM_F_DUMP).map_err(netlink_error(format!("list the {what}")))?;
        found.extend(answers.into_iter().filter_map(&pick));
    }
    Ok(found)
}

/// The addresses of an interface, except those that the kernel makes anew by itself (RFC 8981).
pub(crate) fn addresses_of(index: u32) -> Result<Vec<AddressMessage>, Error> {
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    dump("addresses", [question], |answer| match answer {
        RouteNetlinkMessage::NewAddress(address) if address.header.index == index => Some(address),
        _ => None,
    })
    .map(|mut all| {
        all.retain(|address| !is_temporary(address));
        all
    })
}

fn is_temporary(address: &AddressMessage) -> bool {
    let is_secondary = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Flags(flags) if flags.contains(AddressFlags::Secondary));
    // The flag has this meaning for IPv6 only.
    address.header.family == AddressFamily::Inet6 && address.attributes.iter().any(is_secondary)
}

/// Gives the interface an address that it had some seconds ago.
pub(crate) fn return_address(address: &AddressMessage, index: u32, seconds: u32) -> io::Result<()> {
    let mut address = address.clone();
    address.header.index = index;
    for attribute in &mut address.attributes {
        if let AddressAttribute::CacheInfo(lifetime) = attribute {
            for left in [&mut lifetime.ifa_preferred, &mut lifetime.ifa_valid] {
                *left = if *left == u32::MAX { *left } else { left.saturating_sub(seconds) };
            }
            if lifetime.ifa_valid == 0 {
                return Ok(()); // it would have ended meanwhile
            }
        }
    }
    request(RouteNetlinkMessage::NewAddress(address), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

pub(crate) fn ip_address(address: &AddressMessage) -> Option<IpAddr> {
    // Local is the interface's own, where the two differ.
    let of = |is_local| {
        address.attributes.iter().find_map(move |attribute| match attribute {
            AddressAttribute::Local(address) if is_local => Some(*address),
            AddressAttribute::Address(address) if !is_local => Some(*address),
            _ => None,
        })
    };
    of(true).or_else(|| of(false))
}

/// The permanent neighbours of an interface; the kernel finds the others again.
pub(crate) fn neighbours_of(index: u32) -> Result<Vec<NeighbourMessage>, Error> {
    let question = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    dump("neighbours", [question], |answer| match answer {
        RouteNetlinkMessage::NewNeighbour(neighbour)
            if neighbour.header.ifindex == index && neighbour.header.state == NeighbourState::Permanent =>
        {
            Some(neighbour)
        }
        _ => None,
    })
}

pub(crate) fn return_neighbour(neighbour: &NeighbourMessage, index: u32) -> io::Result<()> {
    let mut neighbour = neighbour.clone();
    neighbour.header.ifindex = index;
    request(RouteNetlinkMessage::NewNeighbour(neighbour), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

/// The routes of all tables that go with an interface and these addresses of its, except those that come with
/// the addresses by themselves.
pub(crate) fn routes_of(index: u32, addresses: &[AddressMessage]) -> Result<Vec<RouteMessage>, Error> {
    let question = |family| {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        RouteNetlinkMessage::GetRoute(message)
    };
    dump("routes", FAMILIES.map(question), |answer| match answer {
        RouteNetlinkMessage::NewRoute(route) if depends_on(&route, index, addresses) => Some(route),
        _ => None,
    })
}

/// Whether a route leads through the interface, or prefers one of the addresses as its source: the kernel
/// deletes both.
fn depends_on(route: &RouteMessage, index: u32, addresses: &[AddressMessage]) -> bool {
    let is_automatic = route.header.protocol == RouteProtocol::Kernel
        && matches!(
            route.header.kind,
            RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast
        );
    let is_own = |source: IpAddr| addresses.iter().any(|address| ip_address(address) == Some(source));
    !is_automatic
        && route.attributes.iter().any(|attribute| match attribute {
            RouteAttribute::Oif(out) => *out == index,
            RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == index),
            RouteAttribute::PrefSource(RouteAddress::Inet(source)) => is_own((*source).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(source)) => is_own((*source).into()),
            _ => false,
        })
}

pub(crate) fn is_default(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0
}

/// Whether the route has next hops that are objects of their own, which the kernel deletes with an interface.
pub(crate) fn has_hop_objects(route: &RouteMessage) -> bool {
    route.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::NhId(_)))
}

/// Adds a route that was there; one that is there again is no error.
pub(crate) fn return_route(route: &RouteMessage, was: u32, index: u32) -> io::Result<()> {
    let mut route = route.clone();
    if route.header.protocol == RouteProtocol::Ra {
        return Ok(()); // the router is asked again
    }
    route.header.flags &= RouteFlags::Onlink;
    route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::CacheInfo(_)));
    let mut is_multipath = false;
    for attribute in &mut route.attributes {
        match attribute {
            RouteAttribute::Oif(out) if *out == was => *out = index,
            RouteAttribute::MultiPath(hops) => {
                is_multipath = true;
                hops.iter_mut()
                    .filter(|hop| hop.interface_index == was)
                    .for_each(|hop| hop.interface_index = index);
            }
            _ => {}
        }
    }
    // The part of a multipath route that goes through other interfaces is still there.
    let flags = NLM_F_CREATE | if is_multipath { NLM_F_REPLACE } else { NLM_F_APPEND };
    match request(RouteNetlinkMessage::NewRoute(route), flags) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        returned => returned.map(drop),
    }
}

/// The index of the interface through which the kernel would send to an address; `None`: nowhere.
pub(crate) fn interface_towards(address: IpAddr) -> Option<u32> {
    let mut message = RouteMessage::default();
    message.header.address_family = FAMILIES[usize::from(address.is_ipv6())];
    message.header.destination_prefix_length = if address.is_ipv6() { 128 } else { 32 };
    message.attributes = vec![RouteAttribute::Destination(RouteAddress::from(address))];
    let answers = request(RouteNetlinkMessage::GetRoute(message), 0).ok()?;
    answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => {
            route.attributes.into_iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(index),
                _ => None,
            })
        }
        _ => None,
    })
}

/// Whether the interface was given a queueing discipline, which the kernel would delete; its own ones have no
/// handle.
pub(crate) fn has_queueing_discipline(index: u32) -> Result<bool, Error> {
    let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index.cast_signed()));
    let found = dump("queueing disciplines", [question], |answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(discipline) => Some(discipline.header),
        _ => None,
    })?;
    Ok(found.iter().any(|header| header.index == index.cast_signed() && header.handle != TcHandle::UNSPEC))
}
