//! Interfaces: making pairs, querying, changing, deleting.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    BondMode, InfoBond, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    LinkXdp,
};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{NetlinkSocket, netlink_error};
use crate::{Error, Missing, Namespace};

/// The interval at which a bond checks its members for carrier.
const BOND_LOOK_INTERVAL_MS: u32 = 20;

/// The properties of one end of a new pair.
pub(crate) struct VethEndSettings {
    pub(crate) name: &'static str,
    pub(crate) mac: [u8; 6],
    mtu_bytes: u32,
    queue_count: u32,
}

impl VethEndSettings {
    pub(crate) fn new(name: &'static str, mac: [u8; 6], mtu_bytes: u32, queue_count: u32) -> Self {
        Self { name, mac, mtu_bytes, queue_count }
    }

    fn attributes(&self) -> Vec<LinkAttribute> {
        vec![
            LinkAttribute::IfName(self.name.into()),
            LinkAttribute::Address(self.mac.to_vec()),
            LinkAttribute::Mtu(self.mtu_bytes),
            LinkAttribute::NumTxQueues(self.queue_count),
            LinkAttribute::NumRxQueues(self.queue_count),
        ]
    }
}

/// The kernel's description of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The index in its namespace.
    pub index: u32,
    /// The hardware address; zeros on a device without one.
    pub mac: [u8; 6],
    /// Its MTU in bytes.
    pub mtu_bytes: u32,
    /// The number of receive queues; the lab's own devices have as many transmit queues.
    pub queue_count: u32,
    /// True when both the interface and its peer are up.
    pub carrier: bool,
    /// The number of the XDP program on it.
    pub xdp_program: Option<u32>,
}

impl Interface {
    /// The interface of that name in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Netlink`]; `ENODEV` when there is none.
    pub fn find(name: &str) -> Result<Self, Error> {
        let mut message = LinkMessage::default();
        message.attributes = vec![LinkAttribute::IfName(name.into())];
        let operation = format!("look at {name}");
        let found =
            NetlinkSocket::open(NETLINK_ROUTE).and_then(|connection| request_links(&connection, message, 0));
        let found = found.map_err(netlink_error(operation.clone()))?;
        found.first().map(Self::parse).ok_or_else(|| {
            let source = io::Error::from_raw_os_error(nix::libc::ENODEV);
            Error::Netlink { operation, source }
        })
    }

    fn parse(link: &LinkMessage) -> Self {
        let mut interface = Interface {
            name: String::new(),
            index: link.header.index,
            mac: [0; 6],
            mtu_bytes: 0,
            queue_count: 0,
            carrier: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running),
            xdp_program: None,
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name = name.clone(),
                LinkAttribute::Mtu(bytes) => interface.mtu_bytes = *bytes,
                LinkAttribute::NumRxQueues(count) => interface.queue_count = *count,
                LinkAttribute::Address(bytes) => {
                    interface.mac = bytes.as_slice().try_into().unwrap_or_default();
                }
                LinkAttribute::Xdp(xdp) => {
                    interface.xdp_program = xdp.iter().find_map(|attribute| match attribute {
                        LinkXdp::ProgId(id) => Some(*id),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        interface
    }
}

impl Namespace {
    /// A new network namespace whose only interface, the loopback, is up.
    ///
    /// # Errors
    /// As [`Namespace::new`], and [`Error::Netlink`].
    pub fn new_with_loopback() -> Result<Self, Error> {
        let namespace = Self::new()?;
        set_link_up_or_down(&namespace, "lo", 1, true)?;
        Ok(namespace)
    }

    /// The interfaces inside, in the kernel's order.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        let found = NetlinkSocket::open_in_namespace(self, NETLINK_ROUTE)
            .and_then(|connection| request_links(&connection, LinkMessage::default(), NLM_F_DUMP));
        let found = found.map_err(netlink_error("list the interfaces".into()))?;
        Ok(found.iter().map(Interface::parse).collect())
    }
}

/// Whether it is a member of another interface, or others are made on it (a veth end only has the other end).
/// In the calling thread's namespace.
pub(crate) fn is_joined_to_others(interface: &Interface) -> Result<bool, Error> {
    let found = NetlinkSocket::open(NETLINK_ROUTE)
        .and_then(|connection| request_links(&connection, LinkMessage::default(), NLM_F_DUMP));
    let found = found.map_err(netlink_error("list the interfaces".into()))?;
    let (mine, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|link| link.header.index == interface.index);
    let has =
        |link: &LinkMessage, wanted: &dyn Fn(&LinkAttribute) -> bool| link.attributes.iter().any(wanted);
    let is_veth = |attribute: &LinkAttribute| {
        let info = if let LinkAttribute::LinkInfo(info) = attribute { &info[..] } else { &[] };
        info.contains(&LinkInfo::Kind(InfoKind::Veth))
    };
    let is_made_on_it = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Link(index) | LinkAttribute::Controller(index) => *index == interface.index,
        _ => false,
    };
    Ok(mine.iter().any(|link| has(link, &|attribute| matches!(attribute, LinkAttribute::Controller(_))))
        || others.iter().any(|link| has(link, &is_made_on_it) && !has(link, &is_veth)))
}

/// Makes a veth pair with one end in each namespace; neither end is ever visible anywhere else.
pub(crate) fn create_veth_pair(
    here: &Namespace,
    plan: &VethEndSettings,
    there: &Namespace,
    peer_plan: &VethEndSettings,
) -> Result<(), Error> {
    let mut peer = LinkMessage::default();
    peer.attributes = peer_plan.attributes();
    peer.attributes.push(LinkAttribute::NetNsFd(there.as_fd().as_raw_fd()));
    let mut pair = LinkMessage::default();
    pair.attributes = plan.attributes();
    pair.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    send_change(
        here,
        RouteNetlinkMessage::NewLink(pair),
        NLM_F_CREATE | NLM_F_EXCL,
        format!("make the pair {}/{} (mtu {})", plan.name, peer_plan.name, plan.mtu_bytes),
    )
    .map_err(missing_kernel_feature("veth interfaces (CONFIG_VETH)"))
}

/// The error of making an interface, if the kernel was built without that kind of them.
fn missing_kernel_feature(kind: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Netlink { source, .. } if source.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => {
            Error::Missing(Missing::Kernel(kind))
        }
        other => other,
    }
}

/// Makes a bond of one interface, which must be down: a new interface with the member's hardware address.
pub(crate) fn create_bond(namespace: &Namespace, name: &str, member: &str, index: u32) -> Result<(), Error> {
    let mut bond = LinkMessage::default();
    let settings = vec![InfoBond::Mode(BondMode::ActiveBackup), InfoBond::MiiMon(BOND_LOOK_INTERVAL_MS)];
    bond.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bond),
            LinkInfo::Data(InfoData::Bond(settings)),
        ]),
    ];
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    send_change(namespace, RouteNetlinkMessage::NewLink(bond), flags, format!("make the bond {name}"))
        .map_err(missing_kernel_feature("bonded interfaces (CONFIG_BONDING)"))?;
    let bond = namespace.run(|| Interface::find(name))?.index;
    let operation = format!("put {member} into {name}");
    set_link_attributes(namespace, index, vec![LinkAttribute::Controller(bond)], operation)?;
    set_link_up_or_down(namespace, name, bond, true)
}

/// Moves an interface of the calling thread's namespace into another one and gives it a new name there.
pub(crate) fn move_and_rename(interface: &Interface, there: &Namespace, name: &str) -> Result<(), Error> {
    let attributes = vec![
        LinkAttribute::NetNsFd(there.as_fd().as_raw_fd()),
        // In one request: the move sets the interface down, and only then may it be renamed.
        LinkAttribute::IfName(name.into()),
    ];
    let operation = format!("move {} into a namespace as {name}", interface.name);
    set_link_attributes(&Namespace::current()?, interface.index, attributes, operation)
}

pub(crate) fn rename_link(namespace: &Namespace, name: &str, index: u32, to: &str) -> Result<(), Error> {
    set_link_attributes(
        namespace,
        index,
        vec![LinkAttribute::IfName(to.into())],
        format!("rename {name} to {to}"),
    )
}

pub(crate) fn set_link_up_or_down(
    namespace: &Namespace,
    name: &str,
    index: u32,
    up: bool,
) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.change_mask = LinkFlags::Up;
    message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
    let operation = format!("set {name} {}", if up { "up" } else { "down" });
    send_change(namespace, RouteNetlinkMessage::SetLink(message), 0, operation)
}

pub(crate) fn set_link_mtu(
    namespace: &Namespace,
    name: &str,
    index: u32,
    mtu_bytes: u32,
) -> Result<(), Error> {
    let operation = format!("set the MTU of {name} to {mtu_bytes}");
    set_link_attributes(namespace, index, vec![LinkAttribute::Mtu(mtu_bytes)], operation)
}

pub(crate) fn delete_link(namespace: &Namespace, name: &str, index: u32) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    send_change(namespace, RouteNetlinkMessage::DelLink(message), 0, format!("delete {name}"))
}

/// Changes attributes of the interface with that index.
fn set_link_attributes(
    namespace: &Namespace,
    index: u32,
    attributes: Vec<LinkAttribute>,
    operation: String,
) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    send_change(namespace, RouteNetlinkMessage::SetLink(message), 0, operation)
}

fn request_links(
    connection: &NetlinkSocket,
    message: LinkMessage,
    flags: u16,
) -> io::Result<Vec<LinkMessage>> {
    let link = |answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    };
    let answers = connection.request(RouteNetlinkMessage::GetLink(message), flags)?;
    Ok(answers.into_iter().filter_map(link).collect())
}

pub(super) fn send_change(
    namespace: &Namespace,
    message: RouteNetlinkMessage,
    flags: u16,
    operation: String,
) -> Result<(), Error> {
    NetlinkSocket::open_in_namespace(namespace, NETLINK_ROUTE)
        .and_then(|connection| connection.request(message, flags))
        .map_err(netlink_error(operation))?;
    Ok(())
}
