use std::fs;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::missing::require_capabilities;
use crate::netlink::{address, ethtool, link};
use crate::{Error, Interface, Namespace};

/// The prefix of the lab's network, 10.77.0.0/24.
pub const PREFIX_BITS: u8 = 24;

pub(crate) const LEFT_IPV4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const RIGHT_IPV4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The name of the interface at either end.
pub(crate) const NAMES: [&str; 2] = ["nc0", "nc1"];

/// The name of a bond at an end; there is one per namespace.
const BOND: &str = "ncb";

/// Real drivers negotiate: 2.5 s for an emulated igb.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(10);
const CARRIER_POLL: Duration = Duration::from_millis(2);

/// One end of the pair: an interface and the namespace it is in.
#[derive(Debug)]
pub struct End {
    namespace: Namespace,
    interface: &'static str,
    index: u32,
    mac: [u8; 6],
    ipv4: Ipv4Addr,
    neighbour: (Ipv4Addr, [u8; 6]),
}

/// Two namespaces joined by a veth pair, or by [`Lab::of_interfaces`]. Dropped, or its process killed,
/// nothing of it remains.
#[derive(Debug)]
pub struct Lab {
    left: End,
    right: End,
}

/// Options of a [`Lab`].
#[derive(Debug, Clone)]
pub struct Builder {
    mtu: u32,
    queues: u32,
    gro: [bool; 2],
    processors: Option<[usize; 2]>,
}

impl Lab {
    /// A lab with an MTU of 1500 and one queue.
    ///
    /// # Errors
    /// [`Error::Missing`] names what this machine lacks.
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Options first.
    pub fn builder() -> Builder {
        Builder { mtu: 1500, queues: 1, gro: [false; 2], processors: None }
    }

    /// A lab of two interfaces that exist already in the calling thread's namespace and are wired to each
    /// other: each is moved into its own namespace, renamed to `nc0` or `nc1`, given its address, and set up.
    /// Their other settings stay unchanged. When the lab is dropped the kernel returns hardware interfaces to
    /// the first namespace.
    ///
    /// # Errors
    /// [`Error::Netlink`], with `ENODEV` when there is no such interface; [`Error::NoCarrier`] when they are
    /// not wired.
    pub fn of_interfaces(left: &str, right: &str) -> Result<Self, Error> {
        require_capabilities()?;
        Self::of_interfaces_in([new_quiet_namespace()?, new_quiet_namespace()?], left, right)
    }

    pub(crate) fn of_interfaces_in(
        namespaces: [Namespace; 2],
        left: &str,
        right: &str,
    ) -> Result<Self, Error> {
        let all = [Interface::find(left)?, Interface::find(right)?];
        for ((interface, namespace), name) in all.iter().zip(&namespaces).zip(NAMES) {
            link::move_and_rename(interface, namespace, name)?;
        }
        let lab = Self::in_namespaces(namespaces)?;
        for End { namespace, interface, index, ipv4, .. } in [&lab.left, &lab.right] {
            address::add_address(namespace, interface, *index, *ipv4, PREFIX_BITS)?;
        }
        lab.left.bring_interface_up()?;
        lab.right.bring_interface_up()?;
        lab.wait_for_carrier()?;
        Ok(lab)
    }

    /// The lab that another process made of interfaces in these namespaces.
    ///
    /// # Errors
    /// [`Error::Netlink`], with `ENODEV` when they are not there.
    pub fn in_namespaces([left, right]: [Namespace; 2]) -> Result<Self, Error> {
        let macs =
            [left.run(|| Interface::find(NAMES[0]))?.mac, right.run(|| Interface::find(NAMES[1]))?.mac];
        Ok(Self {
            left: End::find(left, NAMES[0], macs[0], LEFT_IPV4, (RIGHT_IPV4, macs[1]))?,
            right: End::find(right, NAMES[1], macs[1], RIGHT_IPV4, (LEFT_IPV4, macs[0]))?,
        })
    }

    /// The end `nc0`, 10.77.0.1.
    pub fn left(&self) -> &End {
        &self.left
    }

    /// The end `nc1`, 10.77.0.2.
    pub fn right(&self) -> &End {
        &self.right
    }

    /// Deletes both interfaces, as if the device had been pulled out. The namespaces stay.
    ///
    /// # Errors
    /// [`Error::Netlink`]; `ENODEV` if the pair has been deleted already.
    pub fn delete_pair(&self) -> Result<(), Error> {
        link::delete_link(&self.left.namespace, self.left.interface, self.left.index)
    }

    /// Waits until both ends have carrier, as after [`End::bring_interface_up`].
    ///
    /// # Errors
    /// [`Error::NoCarrier`] after 10 s.
    pub fn wait_for_carrier(&self) -> Result<(), Error> {
        self.left.wait_for_carrier()?;
        self.right.wait_for_carrier()
    }
}

impl Builder {
    /// The MTU of both ends in bytes; 1500 unless set.
    pub fn mtu(mut self, mtu_bytes: u32) -> Self {
        self.mtu = mtu_bytes;
        self
    }

    /// The number of receive and of transmit queues of both ends; 1 unless set.
    pub fn queues(mut self, count: u32) -> Self {
        self.queues = count;
        self
    }

    /// Generic receive offload on the left end. On veth it also makes the end take frames that XDP
    /// redirects to it, without its own program.
    pub fn gro_left(mut self, on: bool) -> Self {
        self.gro[0] = on;
        self
    }

    /// Generic receive offload on the right end; see [`Builder::gro_left`].
    pub fn gro_right(mut self, on: bool) -> Self {
        self.gro[1] = on;
        self
    }

    /// The processors on which packets are received, at the left end and at the right, as a card receives all
    /// packets of a connection on one. Otherwise veth receives on whatever processor sends, so that packets
    /// of a connection that two processors send overtake each other.
    ///
    /// Set by receive packet steering (RPS): the kernel's Documentation/networking/scaling.rst. Nothing is
    /// set before Linux 6.3, which has no default for new interfaces.
    pub fn receive_on(mut self, processors: [usize; 2]) -> Self {
        self.processors = Some(processors);
        self
    }

    /// Makes the lab; both ends are up and have carrier when it returns.
    ///
    /// # Errors
    /// [`Error::Missing`] names what this machine lacks; other errors come from the kernel.
    pub fn build(self) -> Result<Lab, Error> {
        require_capabilities()?;
        let left = self.veth_end_settings(NAMES[0], [0x02, 0x6e, 0x63, 0, 0, 1]);
        let right = self.veth_end_settings(NAMES[1], [0x02, 0x6e, 0x63, 0, 0, 2]);
        let ends = (new_quiet_namespace()?, new_quiet_namespace()?);
        if let Some([left, right]) = self.processors {
            steer_new_interfaces(&ends.0, left)?;
            steer_new_interfaces(&ends.1, right)?;
        }
        link::create_veth_pair(&ends.0, &left, &ends.1, &right)?;
        let lab = Lab {
            left: End::configure(ends.0, left.name, left.mac, LEFT_IPV4, (RIGHT_IPV4, right.mac))?,
            right: End::configure(ends.1, right.name, right.mac, RIGHT_IPV4, (LEFT_IPV4, left.mac))?,
        };
        for (end, gro) in [(&lab.left, self.gro[0]), (&lab.right, self.gro[1])] {
            end.bring_interface_up()?;
            // In this order: veth tells its peer that frames may be redirected to this end only when GRO is
            // switched on while the end is up.
            end.set_gro(gro)?;
        }
        lab.wait_for_carrier()?;
        Ok(lab)
    }

    pub(crate) fn veth_end_settings(&self, name: &'static str, mac: [u8; 6]) -> link::VethEndSettings {
        link::VethEndSettings::new(name, mac, self.mtu, self.queues)
    }
}

impl End {
    pub(crate) fn configure(
        namespace: Namespace,
        interface: &'static str,
        mac: [u8; 6],
        ipv4: Ipv4Addr,
        neighbour: (Ipv4Addr, [u8; 6]),
    ) -> Result<Self, Error> {
        let end = Self::find(namespace, interface, mac, ipv4, neighbour)?;
        address::add_address(&end.namespace, interface, end.index, ipv4, PREFIX_BITS)?;
        Ok(end)
    }

    /// An end that has its address already.
    fn find(
        namespace: Namespace,
        interface: &'static str,
        mac: [u8; 6],
        ipv4: Ipv4Addr,
        neighbour: (Ipv4Addr, [u8; 6]),
    ) -> Result<Self, Error> {
        let index = namespace.run(|| Interface::find(interface))?.index;
        Ok(Self { namespace, interface, index, mac, ipv4, neighbour })
    }

    /// The namespace this end is in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The interface's name, `nc0` or `nc1`.
    pub fn interface(&self) -> &'static str {
        self.interface
    }

    /// The interface's index inside its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The interface's MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The interface's IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.ipv4
    }

    /// Sets the interface up. Does not wait for carrier; see [`Lab::wait_for_carrier`].
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn bring_interface_up(&self) -> Result<(), Error> {
        link::set_link_up_or_down(&self.namespace, self.interface, self.index, true)?;
        // Each time, since going down flushes an interface's neighbours, even permanent ones.
        let (ipv4, mac) = self.neighbour;
        address::add_neighbour(&self.namespace, self.interface, self.index, ipv4, mac)
    }

    /// Sets the interface down. The other end loses carrier.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn set_down(&self) -> Result<(), Error> {
        link::set_link_up_or_down(&self.namespace, self.interface, self.index, false)
    }

    /// Renames the interface; this end keeps the old name, which then does not exist.
    ///
    /// # Errors
    /// [`Error::Netlink`]; `EBUSY` while it is up, before Linux 6.2.
    pub fn rename(&self, name: &str) -> Result<(), Error> {
        link::rename_link(&self.namespace, self.interface, self.index, name)
    }

    /// Moves the interface into another namespace, where it is down; this end then has no interface.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn move_to(&self, there: &Namespace) -> Result<(), Error> {
        self.namespace.run(|| {
            let interface = Interface::find(self.interface)?;
            link::move_and_rename(&interface, there, self.interface)
        })
    }

    /// Changes the interface's MTU, in bytes.
    ///
    /// # Errors
    /// [`Error::Netlink`]; `EINVAL` outside 68..=65535 or when an XDP program cannot take it.
    pub fn set_mtu(&self, mtu_bytes: u32) -> Result<(), Error> {
        link::set_link_mtu(&self.namespace, self.interface, self.index, mtu_bytes)
    }

    /// Switches generic receive offload; see [`Builder::gro_left`].
    ///
    /// # Errors
    /// [`Error::Netlink`], [`Error::Missing`] on a kernel without ethtool over netlink.
    pub fn set_gro(&self, on: bool) -> Result<(), Error> {
        ethtool::set_feature(&self.namespace, self.interface, "rx-gro", on)
    }

    /// Switches scatter-gather for sending; without it the kernel's sockets copy what they send.
    ///
    /// # Errors
    /// As [`End::set_gro`].
    pub fn set_scatter_gather(&self, on: bool) -> Result<(), Error> {
        // Both, as 'ethtool -K sg' does.
        ["tx-scatter-gather", "tx-scatter-gather-fraglist"]
            .iter()
            .try_for_each(|feature| ethtool::set_feature(&self.namespace, self.interface, feature, on))
    }

    /// Puts the interface into its own bond (active-backup), which has its hardware address but no IP
    /// address, and returns the bond's name once it has carrier.
    ///
    /// # Errors
    /// [`Error::Missing`] on a kernel without bonding, [`Error::Netlink`], [`Error::NoCarrier`].
    pub fn move_into_bond(&self) -> Result<&'static str, Error> {
        self.set_down()?;
        link::create_bond(&self.namespace, BOND, self.interface, self.index)?;
        wait_for_carrier(&self.namespace, BOND)?;
        Ok(BOND)
    }

    /// Changes how many combined queues the interface has.
    ///
    /// # Errors
    /// [`Error::Netlink`]; `EINVAL` when the device cannot have so many (a veth has no combined queues), or
    /// when a zero-copy AF_XDP socket is bound to a queue that would be removed.
    pub fn set_queues(&self, count: u32) -> Result<(), Error> {
        ethtool::set_combined_queues(&self.namespace, self.interface, count)
    }

    /// Whether the interface leaves the checksums of its host's packets to the device. On veth, which
    /// computes none, they are never completed: AF_XDP receives packets with wrong ones. The lab leaves it
    /// on, as the kernel does.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn set_tx_checksum(&self, on: bool) -> Result<(), Error> {
        ethtool::set_feature(&self.namespace, self.interface, "tx-checksum-ip-generic", on)
    }

    /// Whether the device takes several TCP segments at a time and cuts them, as veth pretends to; off, the
    /// kernel cuts them before the device. Only then does GRO at the other end of a veth pair join them
    /// (kernel: `veth_skb_is_eligible_for_gro`).
    ///
    /// # Errors
    /// As [`End::set_gro`].
    pub fn set_tcp_segmentation(&self, on: bool) -> Result<(), Error> {
        // All TCP segmentation features, as 'ethtool -K tso' does.
        ["", "-ecn", "-mangleid", "6"].iter().try_for_each(|kind| {
            let feature = format!("tx-tcp{kind}-segmentation");
            ethtool::set_feature(&self.namespace, self.interface, &feature, on)
        })
    }

    /// Whether the device cuts long UDP messages into datagrams (`UDP_SEGMENT`); off, the kernel does, before
    /// the device.
    ///
    /// # Errors
    /// As [`End::set_gro`].
    pub fn set_udp_segmentation(&self, on: bool) -> Result<(), Error> {
        ethtool::set_feature(&self.namespace, self.interface, "tx-udp-segmentation", on)
    }

    /// The number of the XDP program on the interface, if there is one.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn xdp_program(&self) -> Result<Option<u32>, Error> {
        Ok(self.namespace.run(|| Interface::find(self.interface))?.xdp_program)
    }

    /// True when the interface is up and so is the other end.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn has_carrier(&self) -> Result<bool, Error> {
        Ok(self.namespace.run(|| Interface::find(self.interface))?.carrier)
    }

    pub(crate) fn wait_for_carrier(&self) -> Result<(), Error> {
        wait_for_carrier(&self.namespace, self.interface)
    }
}

/// Waits until an interface and its peer are up.
pub(crate) fn wait_for_carrier(namespace: &Namespace, interface: &'static str) -> Result<(), Error> {
    let start = Instant::now();
    while !namespace.run(|| Interface::find(interface))?.carrier {
        if start.elapsed() > CARRIER_WAIT_MAX {
            let waited_ms = start.elapsed().as_millis();
            return Err(Error::NoCarrier { interface, waited_ms });
        }
        sleep(CARRIER_POLL);
    }
    Ok(())
}

/// A new namespace with its loopback up, in which the kernel itself sends nothing.
pub(crate) fn new_quiet_namespace() -> Result<Namespace, Error> {
    let namespace = Namespace::new()?;
    silence_ipv6(&namespace)?;
    link::set_link_up_or_down(&namespace, "lo", 1, true)?;
    Ok(namespace)
}

/// Turns off router solicitations and duplicate address detection, whose frames would disturb counts.
fn silence_ipv6(namespace: &Namespace) -> Result<(), Error> {
    // A kernel without IPv6 is silent anyway.
    ["all", "default"]
        .iter()
        .try_for_each(|scope| set(namespace, format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1"))
}

/// Has interfaces that are made in `namespace` from now on receive on `processor`.
fn steer_new_interfaces(namespace: &Namespace, processor: usize) -> Result<(), Error> {
    set(namespace, "/proc/sys/net/core/rps_default_mask".into(), &processor_mask(processor))
}

/// A bitmap in words of 32 bits, the highest first.
fn processor_mask(processor: usize) -> String {
    format!("{:x}{}", 1_u32 << (processor % 32), ",00000000".repeat(processor / 32))
}

/// Writes a setting of a namespace, if this kernel has it.
fn set(namespace: &Namespace, path: String, value: &str) -> Result<(), Error> {
    match namespace.run(|| fs::write(&path, value)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Setting { path, source: error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn masks_of_processors_have_words_of_32_bits() {
        assert_eq!([0, 5, 33].map(super::processor_mask), ["1", "20", "2,00000000"]);
    }
}
