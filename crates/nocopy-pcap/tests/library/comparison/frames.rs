//! Frames of many kinds that no host answers, sent one after the other by one thread, so that every tap
//! receives them in one order.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::common::on_one_processor;
use nocopy_lab::End;

/// The port of the last frame in each direction.
pub(crate) const LAST_PORT: u16 = 9999;

pub(crate) const KINDS: usize = 13;

const ETHERNET_BYTES: usize = 14;

/// An end as a sender of raw frames.
pub(crate) struct FrameSender {
    socket: OwnedFd,
    index: u32,
    source: [u8; 6],
}

impl FrameSender {
    pub(crate) fn open(end: &End) -> Self {
        let protocol = 0; // receives nothing
        // SAFETY: takes numbers.
        let socket = end
            .namespace()
            .run(|| unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) });
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it was opened above, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        Self { socket, index: end.index(), source: end.mac() }
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        // SAFETY: a C structure of numbers, of which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = self.index as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the frame and the address are read as far as they go.
        let sent = unsafe {
            let address = (&raw const address).cast();
            libc::sendto(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, address, length)
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The frame that marks the end for the programs, addressed to a host that does not exist.
    pub(crate) fn send_last_frame(&self) {
        self.send(&self.last_frame());
    }

    pub(crate) fn last_frame(&self) -> Vec<u8> {
        self.udp_frame(LAST_PORT, b"the last")
    }

    pub(crate) fn udp_frame(&self, port: u16, payload: &[u8]) -> Vec<u8> {
        let ports = [7000_u16.to_be_bytes(), port.to_be_bytes()].concat();
        let length = (8 + payload.len() as u16).to_be_bytes();
        self.ipv4_frame(17, &[&ports[..], &length, &[0, 0], payload].concat())
    }

    /// A segment that opens a connection.
    pub(crate) fn tcp_frame(&self, port: u16) -> Vec<u8> {
        let ports = [7000_u16.to_be_bytes(), port.to_be_bytes()].concat();
        let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0x20, 0, 0, 0, 0, 0];
        self.ipv4_frame(6, &[&ports[..], &rest].concat())
    }

    fn ipv4_frame(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let length = (20 + payload.len() as u16).to_be_bytes();
        let mut header =
            [0x45, 0, length[0], length[1], 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 88, 10, 77, 0, 77];
        let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        self.multicast_frame(0x0800, &[&header[..], payload].concat())
    }

    /// A request for an unused address.
    pub(crate) fn arp_frame(&self) -> Vec<u8> {
        let fixed = [0, 1, 8, 0, 6, 4, 0, 1];
        let addresses = [10, 77, 0, 88, 0, 0, 0, 0, 0, 0, 10, 77, 0, 77];
        self.multicast_frame(0x0806, &[&fixed[..], &self.source, &addresses].concat())
    }

    /// A frame of that type to a multicast group without members.
    pub(crate) fn multicast_frame(&self, ether_type: u16, payload: &[u8]) -> Vec<u8> {
        let destination = [0x03, 0x6e, 0x63, 0, 0, 9];
        [&destination[..], &self.source, &ether_type.to_be_bytes(), payload].concat()
    }

    /// One frame of each kind that filters distinguish, the `number`th time.
    pub(crate) fn frames_of_every_kind(&self, number: u16) -> [Vec<u8>; KINDS] {
        let udp = |port, bytes: usize| self.udp_frame(port, &vec![number as u8; bytes]);
        [
            udp(7001, 0),
            udp(7001 + number, 18),
            udp(7002, 1472),
            self.tcp_frame(80 + number),
            self.arp_frame(),
            vlan_tagged(&udp(7003, 100 + usize::from(number)), &[(0x8100, 5)]),
            vlan_tagged(&self.tcp_frame(443), &[(0x8100, 0x6000 | number)]),
            vlan_tagged(&udp(7004, 40), &[(0x88a8, 100), (0x8100, 7)]),
            vlan_tagged(&self.arp_frame(), &[(0x8100, 0)]),
            self.multicast_frame(0x86dd, &[0x60; 60]),
            self.multicast_frame(0x88b5, &number.to_be_bytes()),
            self.multicast_frame(0x88b6, &[3; 1500]),
            udp(7005, 1000),
        ]
    }
}

/// The frame with tags behind its addresses, the outer first.
fn vlan_tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|&(kind, tag)| [kind.to_be_bytes(), tag.to_be_bytes()]).flatten();
    let (addresses, rest) = frame.split_at(ETHERNET_BYTES - 2);
    addresses.iter().copied().chain(tags).chain(rest.iter().copied()).collect()
}

/// Sends everything both ways, in turns, and the last of both.
pub(crate) fn send_frames_of_every_kind(wires: &[FrameSender; 2], rounds: u16) {
    on_one_processor(|| {
        for number in 0..rounds {
            let [left, right] = wires.each_ref().map(|wire| wire.frames_of_every_kind(number));
            for (from_left, from_right) in left.iter().zip(&right) {
                wires[0].send(from_left);
                wires[1].send(from_right);
            }
        }
        wires.iter().for_each(FrameSender::send_last_frame);
    });
}
