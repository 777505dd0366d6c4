//! Two interfaces that leave their namespace for a while, and are put back as they were.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;

use crate::lab::{NAMES, new_quiet_namespace};
use crate::netlink::{link, netlink_error, nftables, route};
use crate::{Error, Interface, Lab, Namespace};

/// The directories with a directory of settings for each interface.
const SETTINGS: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];

/// How long to wait until an XDP program of a killed process is gone, the link is up, and routes can be added
/// that need it.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// An interface that is up, with everything that the kernel forgets when it leaves its namespace.
#[derive(Debug)]
pub struct SavedInterface {
    origin: Namespace,
    interface: Interface,
    saved_at: Instant,
    addresses: Vec<AddressMessage>,
    neighbours: Vec<NeighbourMessage>,
    routes: Vec<RouteMessage>,
    settings: Vec<(PathBuf, String)>,
}

/// Why an interface should stay where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// It carries a default route.
    DefaultRoute,
    /// It has an XDP program.
    XdpProgram,
    /// It is a member of a bridge or bond, or other interfaces are made on it (VLAN, macvlan).
    OtherInterfaces,
    /// It has a queueing discipline or filters, which the kernel would delete.
    QueueingDiscipline,
    /// Its routes have next hops that are objects of their own, which the kernel would delete.
    HopObjects,
    /// It has a chain of nftables, which older kernels would delete.
    NftablesChain,
}

impl SavedInterface {
    /// Notes how an interface of the calling thread's namespace is; changes nothing.
    ///
    /// # Errors
    /// [`Error::Netlink`], with `ENODEV` when there is no such interface.
    pub fn save(name: &str) -> Result<Self, Error> {
        let interface = Interface::find(name)?;
        let index = interface.index;
        let files =
            SETTINGS.iter().filter_map(|kind| fs::read_dir(settings_directory(kind, &interface.name)).ok());
        let paths = files.flatten().flatten().map(|entry| entry.path());
        // A few cannot be read before they are set.
        let settings = paths.filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?)));
        let addresses = route::addresses_of(index)?;
        Ok(Self {
            origin: Namespace::current()?,
            saved_at: Instant::now(),
            neighbours: route::neighbours_of(index)?,
            routes: route::routes_of(index, &addresses)?,
            addresses,
            settings: settings.collect(),
            interface,
        })
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Why it should not be moved, if there is a reason.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn obstacle(&self) -> Result<Option<Obstacle>, Error> {
        let Self { interface, routes, .. } = self;
        Ok(match () {
            () if routes.iter().any(route::is_default) => Some(Obstacle::DefaultRoute),
            () if interface.xdp_program.is_some() => Some(Obstacle::XdpProgram),
            () if link::is_joined_to_others(interface)? => Some(Obstacle::OtherInterfaces),
            () if route::has_queueing_discipline(interface.index)? => Some(Obstacle::QueueingDiscipline),
            () if routes.iter().any(route::has_hop_objects) => Some(Obstacle::HopObjects),
            () if nftables::has_chain(&interface.name)? => Some(Obstacle::NftablesChain),
            () => None,
        })
    }

    /// How it is, in words of ip(8).
    fn description(&self) -> String {
        let Interface { name, mac, mtu_bytes, .. } = &self.interface;
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let addresses = self.addresses.iter().filter_map(|address| {
            Some(format!(", address {}/{}", route::ip_address(address)?, address.header.prefix_len))
        });
        format!("{name} (link {mac}) up, mtu {mtu_bytes}{}", addresses.collect::<String>())
    }

    /// Whether a connection between these addresses, the first of them on this machine, uses the interface.
    pub fn carries(&self, (local, remote): (IpAddr, IpAddr)) -> bool {
        self.addresses.iter().any(|address| route::ip_address(address) == Some(local))
            || route::interface_towards(remote) == Some(self.interface.index)
    }

    /// Moves it back if it is elsewhere.
    fn move_back(&self, from: &Namespace, name_there: &'static str) -> Result<(), Error> {
        let find_there = || from.run(|| Interface::find(name_there));
        if let Ok(there) = find_there() {
            wait_until(|| find_there().map_or(true, |there| there.xdp_program.is_none()));
            from.run(|| link::move_and_rename(&there, &self.origin, &self.interface.name))?;
        }
        Ok(())
    }

    /// Restores MTU, settings, state and addresses.
    fn restore(&self) -> Result<(), Error> {
        let Interface { name, mtu_bytes, .. } = &self.interface;
        self.origin.run(|| {
            let index = Interface::find(name)?.index;
            let settings = self.settings.iter().map(|(path, value)| return_setting(path, value));
            let outcome = link::set_link_mtu(&self.origin, name, index, *mtu_bytes);
            let outcome = outcome.and(first_error(settings));
            let outcome = outcome.and(link::set_link_up_or_down(&self.origin, name, index, true));
            let seconds = self.saved_at.elapsed().as_secs().try_into().unwrap_or(u32::MAX);
            let addresses = self.addresses.iter().map(|address| {
                let operation = || format!("return the address {:?} of {name}", route::ip_address(address));
                let returned = route::return_address(address, index, seconds);
                returned.map_err(|error| netlink_error(operation())(error))
            });
            outcome.and(first_error(addresses))
        })
    }

    /// Restores neighbours and routes, which may need addresses of both interfaces and a link.
    fn put_back_routes(&self) -> Result<(), Error> {
        let name = &self.interface.name;
        self.origin.run(|| {
            let index = Interface::find(name)?.index;
            let neighbours = self.neighbours.iter().map(|neighbour| {
                let returned = route::return_neighbour(neighbour, index);
                returned.map_err(netlink_error(format!("return a neighbour of {name}")))
            });
            let outcome = first_error(neighbours);
            // One may need another: they are tried again as long as there is hope.
            let (mut left, mut last) = (self.routes.clone(), None);
            wait_until(|| {
                left.retain(|route| {
                    let returned = route::return_route(route, self.interface.index, index);
                    returned.map_err(|error| last = Some(error)).is_err()
                });
                left.is_empty()
            });
            let unreturned = last.filter(|_| !left.is_empty());
            outcome.and(unreturned.map_or(Ok(()), |source| {
                let operation = format!("return {} route(s) of {name}", left.len());
                Err(Error::Netlink { operation, source })
            }))
        })
    }
}

/// Two interfaces and the namespaces that they are moved into. Whatever holds this can put them back, however
/// far the move came; the namespaces, and with them a veth pair, live as long as this.
#[derive(Debug)]
pub struct BorrowedPair {
    saved: [SavedInterface; 2],
    namespaces: [Namespace; 2],
}

impl BorrowedPair {
    /// Notes how the interfaces are, and makes the namespaces; does not change the interfaces.
    ///
    /// # Errors
    /// As [`SavedInterface::save`], and [`Error::Missing`].
    pub fn save(left: &str, right: &str) -> Result<Self, Error> {
        let saved = [SavedInterface::save(left)?, SavedInterface::save(right)?];
        Ok(Self { saved, namespaces: [new_quiet_namespace()?, new_quiet_namespace()?] })
    }

    /// The interfaces as they were.
    pub fn saved(&self) -> &[SavedInterface; 2] {
        &self.saved
    }

    /// The namespaces of `nc0` and `nc1`.
    pub fn namespaces(&self) -> &[Namespace; 2] {
        &self.namespaces
    }

    /// Moves the interfaces: see [`Lab::of_interfaces`]; with this MTU.
    ///
    /// # Errors
    /// As [`Lab::of_interfaces`]; some of the work may be done.
    pub fn make_lab(&self, mtu_bytes: u32) -> Result<Lab, Error> {
        let [left, right] = self.saved.each_ref().map(|saved| saved.interface.name.as_str());
        let lab = Lab::of_interfaces_in(self.namespaces.clone(), left, right)?;
        for end in [lab.left(), lab.right()] {
            end.set_mtu(mtu_bytes)?;
        }
        lab.wait_for_carrier()?;
        Ok(lab)
    }

    /// Puts both back, with name, MTU, settings below /proc/sys/net, addresses, permanent neighbours and
    /// routes, and up. Nothing is left out because something before it failed.
    ///
    /// # Errors
    /// [`Error::NotPutBack`] with the first of them.
    pub fn put_back(&self) -> Result<(), Error> {
        let all = self.saved.iter().zip(&self.namespaces).zip(NAMES);
        let (mut back, mut outcome) = (Vec::new(), Ok(()));
        for ((saved, from), name) in all {
            match saved.move_back(from, name) {
                Ok(()) => back.push(saved),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome = outcome.and(first_error(back.iter().map(|saved| saved.restore())));
        // Without the other end it has none.
        wait_until(|| back.len() < self.saved.len() || back.iter().all(|saved| saved.has_carrier()));
        outcome = outcome.and(first_error(back.iter().map(|saved| saved.put_back_routes())));
        outcome.map_err(|source| Error::NotPutBack {
            before: self.saved.each_ref().map(SavedInterface::description).join("; "),
            source: Box::new(source),
        })
    }
}

impl SavedInterface {
    fn has_carrier(&self) -> bool {
        self.origin.run(|| Interface::find(&self.interface.name)).is_ok_and(|interface| interface.carrier)
    }
}

/// Does all, and returns the first error.
fn first_error(all: impl Iterator<Item = Result<(), Error>>) -> Result<(), Error> {
    all.fold(Ok(()), Result::and)
}

fn settings_directory(kind: &str, interface: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(kind).join(interface)
}

/// Writes a setting if it has another value; what cannot be written has not been changed by a program.
fn return_setting(path: &Path, value: &str) -> Result<(), Error> {
    let is_there = fs::read_to_string(path).is_ok_and(|now| now == value);
    if is_there || fs::metadata(path).is_ok_and(|file| file.permissions().readonly()) {
        return Ok(());
    }
    let error = |source: io::Error| Error::Setting { path: path.display().to_string(), source };
    fs::write(path, value).map_err(error)
}

fn wait_until(mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() && start.elapsed() < PATIENCE {
        sleep(POLL);
    }
}
