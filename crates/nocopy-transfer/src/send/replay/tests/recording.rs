//! Capture files as their specifications have them, written by hand. (The tests of the command use this file,
//! too.)

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedPacket {
    pub(crate) time_ns: u64,
    pub(crate) interface: u32,
    pub(crate) bytes: Vec<u8>,
    /// Bytes on the wire beyond those recorded.
    pub(crate) cut_bytes: u32,
}

impl RecordedPacket {
    pub(crate) fn new(time_ns: u64, bytes: Vec<u8>) -> Self {
        Self { time_ns, interface: 0, bytes, cut_bytes: 0 }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteOrder {
    pub(crate) big_endian: bool,
}

impl ByteOrder {
    pub(crate) fn u16(self, value: u16) -> [u8; 2] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(crate) fn u32(self, value: u32) -> [u8; 4] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(crate) fn u64(self, value: u64) -> [u8; 8] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }
}

pub(crate) fn pcap_file(
    big_endian: bool,
    nanoseconds: bool,
    link_type: u32,
    packets: &[RecordedPacket],
) -> Vec<u8> {
    let order = ByteOrder { big_endian };
    let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = order.u32(magic).to_vec();
    file.extend(order.u16(2).iter().chain(&order.u16(4)));
    file.extend([0; 8]);
    file.extend(order.u32(262_144).iter().chain(&order.u32(link_type)));
    for packet in packets {
        let fraction = packet.time_ns % 1_000_000_000 / if nanoseconds { 1 } else { 1000 };
        let bytes = packet.bytes.len() as u32;
        let header =
            [(packet.time_ns / 1_000_000_000) as u32, fraction as u32, bytes, bytes + packet.cut_bytes];
        file.extend(header.map(|word| order.u32(word)).as_flattened());
        file.extend(&packet.bytes);
    }
    file
}

/// An interface of a pcapng file; the resolution as in its option `if_tsresol`, if it is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenInterface {
    pub(crate) link_type: u16,
    pub(crate) resolution: Option<u8>,
    pub(crate) offset_s: Option<i64>,
    /// The option `if_fcslen`.
    pub(crate) fcs: Option<u8>,
}

pub(crate) const ETHERNET: WrittenInterface =
    WrittenInterface { link_type: 1, resolution: None, offset_s: None, fcs: None };

pub(crate) fn pcapng_block(order: ByteOrder, kind: u32, content: &[u8]) -> Vec<u8> {
    let padding = content.len().next_multiple_of(4) - content.len();
    let bytes = order.u32((12 + content.len() + padding) as u32);
    [&order.u32(kind)[..], &bytes, content, &[0; 3][..padding], &bytes].concat()
}

pub(crate) fn section_header(order: ByteOrder) -> Vec<u8> {
    let version = [order.u16(1), order.u16(0)];
    let content = [&order.u32(0x1a2b_3c4d)[..], version.as_flattened(), &[0xff; 8]].concat();
    pcapng_block(order, 0x0a0d_0d0a, &content)
}

pub(crate) fn interface_description(order: ByteOrder, interface: WrittenInterface) -> Vec<u8> {
    let mut content = [&order.u16(interface.link_type)[..], &[0; 2], &order.u32(0)].concat();
    let mut option = |code: u16, value: &[u8]| {
        content.extend(order.u16(code).iter().chain(&order.u16(value.len() as u16)).chain(value));
        content.resize(content.len().next_multiple_of(4), 0);
    };
    if let Some(resolution) = interface.resolution {
        option(9, &[resolution]);
    }
    if let Some(fcs) = interface.fcs {
        option(13, &[fcs]);
    }
    if let Some(offset) = interface.offset_s {
        option(14, &order.u64(offset as u64));
    }
    option(0, &[]);
    pcapng_block(order, 1, &content)
}

pub(crate) fn enhanced_packet(
    order: ByteOrder,
    interface: u32,
    ticks: u64,
    packet: &RecordedPacket,
) -> Vec<u8> {
    let bytes = packet.bytes.len() as u32;
    let words = [interface, (ticks >> 32) as u32, ticks as u32, bytes, bytes + packet.cut_bytes];
    let content = [words.map(|word| order.u32(word)).as_flattened(), &packet.bytes].concat();
    pcapng_block(order, 6, &content)
}

/// One section; interfaces in nanoseconds by default, and blocks of unknown types between the packets.
pub(crate) fn pcapng_file(
    big_endian: bool,
    interfaces: &[WrittenInterface],
    packets: &[RecordedPacket],
) -> Vec<u8> {
    let order = ByteOrder { big_endian };
    let mut file = section_header(order);
    for &one in interfaces {
        file.extend(self::interface_description(order, WrittenInterface { resolution: Some(9), ..one }));
    }
    for packet in packets {
        file.extend(pcapng_block(order, 0x0bad, b"a custom block"));
        file.extend(enhanced_packet(order, packet.interface, packet.time_ns, packet));
    }
    file
}
