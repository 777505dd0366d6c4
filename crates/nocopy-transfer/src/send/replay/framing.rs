//! How recorded packets become Ethernet frames, by the link type of their recording.

use nocopy_proto::MacAddress;
use nocopy_proto::wire::ethernet::{EtherType, Frame, HEADER_BYTES, Repr};

// Link types: <https://www.tcpdump.org/linktypes.html>. The first three of IP have numbers of BSDs, which
// files have, too.
const ETHERNET: u16 = 1;
const NULL: u16 = 0;
const LOOP: u16 = 108;
const RAW_IP: [u16; 3] = [101, 12, 14];
const IPV4: u16 = 228;
const IPV6: u16 = 229;
const LINUX_SLL: u16 = 113;
const LINUX_SLL2: u16 = 276;

/// The least EtherType; a lower number is a length.
const TYPE_MIN: u16 = 0x600;

/// The MAC addresses of the frames.
#[derive(Debug, Clone, Copy)]
pub(in crate::send) struct MacAddresses {
    /// In every frame, instead of the recorded one.
    pub source: Option<MacAddress>,
    pub destination: Option<MacAddress>,
    /// Where none was recorded.
    pub own: MacAddress,
    pub absent: MacAddress,
}

/// What is done with a packet: its first bytes are left out, and a header goes in front of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Framing {
    header: Option<Repr>,
    skip: usize,
}

/// Why a packet is no Ethernet frame, and cannot become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UnsendableCause {
    LinkType(u16),
    /// It is of a protocol that has no EtherType.
    NoEtherType,
    /// It is shorter than its own header.
    TooShort,
}

/// Whether packets of a link type can become frames.
pub(super) fn is_supported_link_type(link_type: u16) -> bool {
    let with_header = [NULL, LOOP, IPV4, IPV6, LINUX_SLL, LINUX_SLL2];
    link_type == ETHERNET || with_header.contains(&link_type) || RAW_IP.contains(&link_type)
}

impl Framing {
    /// What has to be done with a packet of a link type.
    #[inline]
    pub(super) fn for_packet(
        link_type: u16,
        packet: &[u8],
        addresses: &MacAddresses,
    ) -> Result<Self, UnsendableCause> {
        match link_type {
            ETHERNET => Ok(Self { header: None, skip: 0 }),
            other => Self::with_new_header(other, packet, addresses),
        }
    }

    fn with_new_header(
        link_type: u16,
        packet: &[u8],
        addresses: &MacAddresses,
    ) -> Result<Self, UnsendableCause> {
        let (skip, ether_type, sender) = match link_type {
            NULL | LOOP => (4, ether_type_of_family(packet)?, None),
            IPV4 => (0, EtherType::IPV4, None),
            IPV6 => (0, EtherType::IPV6, None),
            raw if RAW_IP.contains(&raw) => (0, ether_type_of_ip_version(packet)?, None),
            LINUX_SLL => (16, ether_type_of_cooked(packet, 16, (14, 2))?, sender_address(packet, 5, 6)),
            LINUX_SLL2 => (20, ether_type_of_cooked(packet, 20, (0, 8))?, sender_address(packet, 11, 12)),
            other => return Err(UnsendableCause::LinkType(other)),
        };
        let header = Repr {
            destination: addresses.destination.unwrap_or(addresses.absent),
            source: addresses.source.or(sender).unwrap_or(addresses.own),
            ether_type,
        };
        Ok(Self { header: Some(header), skip })
    }

    /// The length of the frame.
    pub(super) fn frame_bytes(&self, packet: &[u8]) -> usize {
        let header_bytes = if self.header.is_some() { HEADER_BYTES } else { 0 };
        header_bytes + packet.len() - self.skip
    }

    /// Whether the frame has a VLAN tag.
    pub(super) fn is_tagged(&self, packet: &[u8]) -> bool {
        match self.header {
            None => Frame::parse(packet).is_ok_and(|frame| frame.ether_type().is_vlan()),
            Some(header) => header.ether_type.is_vlan(),
        }
    }

    /// Writes the frame into a buffer of its length.
    pub(super) fn write(&self, packet: &[u8], addresses: &MacAddresses, frame: &mut [u8]) {
        match self.header {
            None => frame.copy_from_slice(packet),
            Some(header) => {
                header.emit(frame).expect("a frame is longer than its header");
                frame[HEADER_BYTES..].copy_from_slice(&packet[self.skip..]);
            }
        }
        // Frames shorter than their header are not sent.
        if let (Some(MacAddress(destination)), Some(field)) = (addresses.destination, frame.get_mut(..6)) {
            field.copy_from_slice(&destination);
        }
        if let (Some(MacAddress(source)), Some(field)) = (addresses.source, frame.get_mut(6..12)) {
            field.copy_from_slice(&source);
        }
    }
}

/// The address family in front of a packet, of the system that recorded it, in the byte order of that system
/// or of networks.
fn ether_type_of_family(packet: &[u8]) -> Result<EtherType, UnsendableCause> {
    let family = *packet.first_chunk().ok_or(UnsendableCause::TooShort)?;
    match u32::from_le_bytes(family).min(u32::from_be_bytes(family)) {
        2 => Ok(EtherType::IPV4),
        // Linux; Windows; NetBSD and OpenBSD; FreeBSD; Darwin.
        10 | 23 | 24 | 28 | 30 => Ok(EtherType::IPV6),
        _ => Err(UnsendableCause::NoEtherType),
    }
}

fn ether_type_of_ip_version(packet: &[u8]) -> Result<EtherType, UnsendableCause> {
    match packet.first().ok_or(UnsendableCause::TooShort)? >> 4 {
        4 => Ok(EtherType::IPV4),
        6 => Ok(EtherType::IPV6),
        _ => Err(UnsendableCause::NoEtherType),
    }
}

/// The protocol of a packet with one of Linux' headers, from where that has the protocol and the kind of
/// hardware.
fn ether_type_of_cooked(
    packet: &[u8],
    header_bytes: usize,
    at: (usize, usize),
) -> Result<EtherType, UnsendableCause> {
    // Those whose protocol is no EtherType: libpcap, pcap/sll.h.
    const FRAME_RELAY: u16 = 770;
    const IEEE_802_11: [u16; 3] = [801, 802, 803];
    const NETLINK: u16 = 824;
    // Protocols below the EtherTypes.
    const NOVELL_802_3: u16 = 1;
    const LLC: u16 = 4;
    let field = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let (Some(protocol), Some(hardware), true) = (field(at.0), field(at.1), packet.len() >= header_bytes)
    else {
        return Err(UnsendableCause::TooShort);
    };
    let is_other = [FRAME_RELAY, NETLINK].contains(&hardware) || IEEE_802_11.contains(&hardware);
    match protocol {
        _ if is_other => Err(UnsendableCause::NoEtherType),
        TYPE_MIN.. => Ok(EtherType(protocol)),
        NOVELL_802_3 | LLC => u16::try_from(packet.len() - header_bytes)
            .ok()
            .filter(|bytes| *bytes < TYPE_MIN)
            .map(EtherType)
            .ok_or(UnsendableCause::NoEtherType),
        _ => Err(UnsendableCause::NoEtherType),
    }
}

/// The link-layer address of the sender, if it can be a station's; its length is at `length_at`.
fn sender_address(packet: &[u8], length_at: usize, at: usize) -> Option<MacAddress> {
    let address = MacAddress(*packet.get(at..)?.first_chunk()?);
    let is_station = packet[length_at] == 6 && !address.is_multicast();
    (is_station && address != MacAddress::UNSPECIFIED).then_some(address)
}

impl UnsendableCause {
    /// Its name among the counts of packets that were not sent.
    pub(super) fn name(self) -> String {
        match self {
            Self::TooShort => "too_short".into(),
            Self::NoEtherType => "no_ethertype".into(),
            Self::LinkType(number) => match link_type_name(number) {
                Some(name) => format!("link_type_{name}"),
                None => format!("link_type_{number}"),
            },
        }
    }
}

/// The names of link types that are recorded where Ethernet is, too, or are often found in files.
pub(super) fn link_type_name(link_type: u16) -> Option<&'static str> {
    Some(match link_type {
        6 => "ieee802_5",
        9 => "ppp",
        10 => "fddi",
        50 => "ppp_hdlc",
        51 => "ppp_ether",
        104 => "c_hdlc",
        105 => "ieee802_11",
        107 => "frelay",
        117 => "pflog",
        119 => "ieee802_11_prism",
        127 => "ieee802_11_radiotap",
        147..=162 => "user",
        163 => "ieee802_11_avs",
        187 => "bluetooth_hci_h4",
        189 => "usb_linux",
        190 => "can20b",
        192 => "ppi",
        195 => "ieee802_15_4_withfcs",
        197 => "erf",
        201 => "bluetooth_hci_h4_with_phdr",
        220 => "usb_linux_mmapped",
        227 => "can_socketcan",
        230 => "ieee802_15_4_nofcs",
        231 => "dbus",
        239 => "nflog",
        240 => "netanalyzer",
        242 => "ipoib",
        247 => "infiniband",
        249 => "usbpcap",
        251 => "bluetooth_le_ll",
        252 => "wireshark_upper_pdu",
        253 => "netlink",
        254 => "bluetooth_linux_monitor",
        258 => "pktap",
        266 => "usb_darwin",
        271 => "vsock",
        _ => return None,
    })
}
