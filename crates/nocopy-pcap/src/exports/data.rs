//! The two objects. The loader may copy them into programs by their size, so they are as long as Debian's.

use std::ffi::{CStr, c_char, c_ushort};
use std::ptr::null;

/// `char pcap_version[]`: the version of libpcap whose interface this is.
#[unsafe(no_mangle)]
static mut pcap_version: [u8; 7] = *b"1.10.3\0";

/// `struct eproto`: a name in filter expressions, and its EtherType.
#[repr(C)]
struct EtherTypeEntry {
    name: *const c_char,
    number: c_ushort,
}

const fn ether_type_entry(name: &'static CStr, number: c_ushort) -> EtherTypeEntry {
    EtherTypeEntry { name: name.as_ptr(), number }
}

/// `struct eproto eproto_db[]`: the names of EtherTypes (IEEE's list, and libpcap's ethertype.h).
#[unsafe(no_mangle)]
static mut eproto_db: [EtherTypeEntry; 13] = [
    ether_type_entry(c"aarp", 0x80f3),
    ether_type_entry(c"arp", 0x0806),
    ether_type_entry(c"atalk", 0x809b),
    ether_type_entry(c"decnet", 0x6003),
    ether_type_entry(c"ip", 0x0800),
    ether_type_entry(c"ip6", 0x86dd),
    ether_type_entry(c"lat", 0x6004),
    ether_type_entry(c"loopback", 0x9000),
    ether_type_entry(c"mopdl", 0x6001),
    ether_type_entry(c"moprc", 0x6002),
    ether_type_entry(c"rarp", 0x8035),
    ether_type_entry(c"sca", 0x6007),
    EtherTypeEntry { name: null(), number: 0 },
];
