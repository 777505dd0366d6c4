//! Counts what each address and each IPv6 network uses of an endpoint: the connections that it made, and the
//! memory that its packets take (docs/protocol.md §8.1, §8.3). Streams and their memory are shared by the
//! same rules (§16.1, §16.3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// The most packets kept for a network, as a multiple of the free ones. Hosts of a LAN share a network, so it
/// gets more than an address; but not everything, since one host may have all of its addresses.
pub(super) const NETWORK_SHARE: usize = 3;

/// Connections made and packets kept, by address and by network; and the address of each connection.
#[derive(Debug, Default)]
pub struct Shares {
    networks: Table<Network>,
    addresses: Table<Address>,
    /// By connection number; empty for connections that are not open.
    members: Vec<Member>,
    /// Networks by the number of connections that they made.
    by_connections: BTreeSet<(usize, u32)>,
    /// The number of connections accepted so far.
    accepted: u64,
}

/// Numbered entries, one for each address or network.
#[derive(Debug)]
struct Table<T> {
    numbers: HashMap<IpAddr, u32>,
    places: Vec<T>,
    vacant: Vec<u32>,
}

/// An IPv4 address alone, or the IPv6 addresses with the same first 64 bits.
#[derive(Debug, Default)]
struct Network {
    /// Its addresses with connections.
    members: usize,
    /// Connections that its addresses made.
    accepted: usize,
    /// Its addresses by the number of connections that they made.
    by_connections: BTreeSet<(usize, u32)>,
    kept: usize,
}

#[derive(Debug)]
struct Address {
    ip: IpAddr,
    network: u32,
    /// Connections, whichever end made them.
    members: usize,
    /// Connections that it made, the oldest first.
    accepted: BTreeMap<u64, u32>,
    /// Kept packets of all its connections.
    kept: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Member {
    address: Option<u32>,
    /// Its number among all accepted connections.
    accepted: Option<u64>,
    kept: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), places: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Table<T> {
    fn get(&self, ip: IpAddr) -> Option<(u32, &T)> {
        self.numbers.get(&ip).map(|number| (*number, &self.places[*number as usize]))
    }

    fn insert(&mut self, ip: IpAddr, new: impl FnOnce() -> T) -> u32 {
        let Self { numbers, places, vacant } = self;
        *numbers.entry(ip).or_insert_with(|| match vacant.pop() {
            Some(number) => {
                places[number as usize] = new();
                number
            }
            None => {
                places.push(new());
                places.len() as u32 - 1
            }
        })
    }

    fn remove(&mut self, ip: IpAddr) {
        self.vacant.extend(self.numbers.remove(&ip));
    }

    #[cfg(any(test, feature = "simulation"))]
    fn capacity(&self) -> usize {
        self.numbers.capacity() + self.places.capacity() + self.vacant.capacity()
    }
}

/// The network of an address, whose hosts share the limits of one peer: the subnet of an IPv6 address (RFC
/// 4291, 2.5.1), or a single IPv4 address.
///
/// An address of 127.0.0.0/8 is a network, too, although a program of this host may use all of them: as one
/// network, a program that uses many would leave nothing to one at 127.0.0.1, and others of this host can be
/// limited better where it starts them.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// Whether an address and its network, which have so many packets or other places, may have one more while so
/// many are free.
pub fn are_within_shares(of_address: usize, of_network: usize, free: usize) -> bool {
    of_address < free && of_network < free.saturating_mul(NETWORK_SHARE)
}

fn reorder(set: &mut BTreeSet<(usize, u32)>, number: u32, before: usize, after: usize) {
    set.remove(&(before, number));
    if after > 0 {
        set.insert((after, number));
    }
}

impl Shares {
    /// Adds a connection, by its number, to a peer at `ip`; `accepted`: it is counted, since the peer made
    /// it.
    pub fn join(&mut self, index: u32, ip: IpAddr, accepted: bool) {
        let network = self.networks.insert(network_of(ip), Network::default);
        let number = self.addresses.insert(ip, || Address {
            ip,
            network,
            members: 0,
            accepted: BTreeMap::new(),
            kept: 0,
        });
        let address = &mut self.addresses.places[number as usize];
        self.networks.places[network as usize].members += usize::from(address.members == 0);
        address.members += 1;
        let accepted = accepted.then_some(self.accepted + 1);
        if let Some(accepted) = accepted {
            self.accepted = accepted;
            let before = address.accepted.len();
            address.accepted.insert(accepted, index);
            self.recount(number, before);
        }
        if self.members.len() <= index as usize {
            self.members.resize(index as usize + 1, Member::default());
        }
        self.members[index as usize] = Member { address: Some(number), accepted, kept: 0 };
    }

    /// Removes a connection, of which nothing is kept any more.
    pub fn leave(&mut self, index: u32) {
        self.set_kept(index, 0);
        let Some(member) = self.members.get_mut(index as usize).map(std::mem::take) else { return };
        let Some(number) = member.address else { return };
        let address = &mut self.addresses.places[number as usize];
        address.members -= 1;
        if let Some(accepted) = member.accepted {
            let before = address.accepted.len();
            address.accepted.remove(&accepted);
            self.recount(number, before);
        }
        let Address { ip, network, members, .. } = self.addresses.places[number as usize];
        if members == 0 {
            self.addresses.remove(ip);
            let network = &mut self.networks.places[network as usize];
            network.members -= 1;
            if network.members == 0 {
                self.networks.remove(network_of(ip));
            }
        }
    }

    /// Updates the order after an address has made or lost a connection.
    fn recount(&mut self, number: u32, before: usize) {
        let address = &self.addresses.places[number as usize];
        let (after, network_number) = (address.accepted.len(), address.network);
        let network = &mut self.networks.places[network_number as usize];
        let network_before = network.accepted;
        network.accepted = network_before - before + after;
        reorder(&mut network.by_connections, number, before, after);
        reorder(&mut self.by_connections, network_number, network_before, network.accepted);
    }

    /// The connection that must end to make room for one from `ip`: the newest of the address that made the
    /// most connections, in the network that made the most, or in the network of `ip` if that would then have
    /// as many. `None` if `ip` would then have as many as that address.
    pub fn surplus(&self, ip: IpAddr) -> Option<u32> {
        let own_network = self.networks.get(network_of(ip));
        let &(most, largest) = self.by_connections.last()?;
        let (network, fewer) = match own_network {
            Some((number, network)) if network.accepted + 1 >= most => {
                (number, self.addresses.get(ip).map_or(0, |(_, address)| address.accepted.len()) + 1)
            }
            None if most <= 1 => return None,
            _ => (largest, 0),
        };
        let &(most, address) = self.networks.places[network as usize].by_connections.last()?;
        let newest = self.addresses.places[address as usize].accepted.last_key_value();
        newest.filter(|_| fewer < most).map(|(_, index)| *index)
    }

    #[inline]
    fn address(&self, index: u32) -> Option<u32> {
        self.members.get(index as usize)?.address
    }

    pub(super) fn network(&self, index: u32) -> Option<u32> {
        self.address(index).map(|number| self.addresses.places[number as usize].network)
    }

    /// Whether one more packet of a connection is within the shares of its address and network, if `free`
    /// packets are free.
    pub(super) fn has_share(&self, index: u32, free: usize) -> bool {
        self.address(index).is_none_or(|number| {
            let address = &self.addresses.places[number as usize];
            let network = &self.networks.places[address.network as usize];
            are_within_shares(address.kept, network.kept, free)
        })
    }

    /// How many connections the address of a connection has made, and which.
    pub(super) fn made_by_address(&self, index: u32) -> Option<(usize, impl Iterator<Item = u32>)> {
        let address = &self.addresses.places[self.address(index)? as usize];
        Some((address.accepted.len(), address.accepted.values().copied()))
    }

    /// How many connections the network of a connection has made, and which.
    pub(super) fn made_by_network(&self, index: u32) -> Option<(usize, impl Iterator<Item = u32>)> {
        let network = &self.networks.places[self.network(index)? as usize];
        let addresses =
            network.by_connections.iter().map(|(_, number)| &self.addresses.places[*number as usize]);
        Some((network.accepted, addresses.flat_map(|address| address.accepted.values().copied())))
    }

    /// Counts one more kept packet of a connection.
    #[inline]
    pub(super) fn keep(&mut self, index: u32) {
        let Some(member) = self.members.get_mut(index as usize) else { return };
        let Some(number) = member.address else { return };
        member.kept += 1;
        let address = &mut self.addresses.places[number as usize];
        address.kept += 1;
        self.networks.places[address.network as usize].kept += 1;
    }

    /// Sets how many packets of a connection are kept, which is not more than before.
    #[inline]
    pub(super) fn set_kept(&mut self, index: u32, kept: usize) {
        let Some(member) = self.members.get_mut(index as usize) else { return };
        if member.kept == kept as u32 {
            return;
        }
        let Some(number) = member.address else { return };
        let fewer = (member.kept - kept as u32) as usize;
        member.kept = kept as u32;
        let address = &mut self.addresses.places[number as usize];
        address.kept -= fewer;
        self.networks.places[address.network as usize].kept -= fewer;
    }

    /// Connections with kept packets.
    pub(super) fn keeping(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.members).filter(|(_, member)| member.kept > 0).map(|(index, _)| index)
    }

    /// The allocated entries of all tables, to check a bound on memory.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn capacity(&self) -> usize {
        self.networks.capacity() + self.addresses.capacity() + self.members.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn the_address_with_the_most_connections_makes_room() {
        let mut shares = Shares::default();
        for index in 0..4 {
            shares.join(index, ip(1), true);
        }
        shares.join(4, ip(2), true);
        assert_eq!(shares.surplus(ip(1)), None, "it has the most itself");
        assert_eq!(shares.surplus(ip(3)), Some(3), "the newest");
        assert_eq!(shares.surplus(ip(2)), Some(3));
        for index in [3, 2] {
            shares.leave(index);
        }
        assert_eq!(shares.surplus(ip(2)), None, "they would change places for ever");
        assert_eq!(shares.surplus(ip(3)), Some(1));
        for index in [0, 1, 4] {
            shares.leave(index);
        }
        assert_eq!(shares.surplus(ip(3)), None);
        assert!(shares.addresses.numbers.is_empty() && shares.networks.numbers.is_empty());
        assert!(shares.by_connections.is_empty());
    }

    #[test]
    fn connections_that_we_made_stay() {
        let mut shares = Shares::default();
        for index in 0..4 {
            shares.join(index, ip(1), false);
        }
        assert_eq!(shares.surplus(ip(2)), None);
        shares.join(4, ip(1), true);
        shares.join(5, ip(1), true);
        assert_eq!(shares.surplus(ip(2)), Some(5));
    }

    #[test]
    fn packets_are_counted_by_address() {
        let mut shares = Shares::default();
        shares.join(0, ip(1), true);
        shares.join(1, ip(1), false);
        shares.join(2, ip(2), true);
        for index in [0, 0, 1, 2] {
            shares.keep(index);
        }
        let has_shares = |shares: &Shares, free| [0, 1, 2].map(|index| shares.has_share(index, free));
        assert_eq!([has_shares(&shares, 3), has_shares(&shares, 4)], [[false, false, true], [true; 3]]);
        shares.set_kept(0, 1);
        shares.leave(1);
        assert_eq!([has_shares(&shares, 1), has_shares(&shares, 2)], [[false, true, false], [true; 3]]);
        assert!(shares.keeping().eq([0, 2]));
    }

    /// An address in the network with the first number.
    fn ip_of(network: u16, host: u16) -> IpAddr {
        [0x2001, 0xdb8, 0, network, 0, 0, 0, host].into()
    }

    #[test]
    fn a_host_with_a_whole_network_takes_no_more_places() {
        let mut shares = Shares::default();
        for index in 0..4 {
            shares.join(index, ip_of(1, index as u16), true);
        }
        assert_eq!(shares.surplus(ip_of(1, 9)), None, "it is of the same network");
        assert_eq!(shares.surplus(ip(1)), Some(3), "of equal addresses the last one");
        shares.join(4, ip_of(2, 0), true);
        assert_eq!(shares.surplus(ip_of(2, 1)), Some(3), "its network has fewer");
        for index in 0..5 {
            shares.leave(index);
        }
        assert!(shares.networks.numbers.is_empty() && shares.by_connections.is_empty());
    }

    #[test]
    fn hosts_of_one_network_have_shares_of_it() {
        let mut shares = Shares::default();
        for index in 0..4 {
            shares.join(index, ip_of(1, 1), true);
        }
        assert_eq!(shares.surplus(ip_of(1, 1)), None);
        assert_eq!(shares.surplus(ip_of(1, 2)), Some(3));
    }

    #[test]
    fn ipv4_addresses_in_ipv6_form_are_no_network() {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
            IpAddr::V6(_) => ip,
        };
        assert_eq!([1, 2].map(|host| network_of(mapped(ip(host)))), [1, 2].map(ip));
        assert_eq!(network_of(ip_of(1, 1)), ip_of(1, 0));
    }
}
