//! The two objects. The loader may copy them into programs by their size, so they are as long as Debian's.

use std::ffi::{CStr, c_char, c_ushort};
use std::ptr::null;

/// `char pcap_version[]`: the version of libpcap whose interface this is.
#[unsafe(no_mangle)]
static mut pcap_version: [u8; 7] = *b"1.10.3\0";

/// `struct eproto`: a name in filter expressions, and its EtherType.
#[repr(C)]
struct Protocol {
    name: *const c_char,
    number: c_ushort,
}

const fn protocol(name: &'static CStr, number: c_ushort) -> Protocol {
    Protocol { name: name.as_ptr(), number }
}

/// `struct eproto eproto_db[]`: the names of EtherTypes (IEEE's list, and libpcap's ethertype.h).
#[unsafe(no_mangle)]
static mut eproto_db: [Protocol; 13] = [
    protocol(c"aarp", 0x80f3),
    protocol(c"arp", 0x0806),
    protocol(c"atalk", 0x809b),
    protocol(c"decnet", 0x6003),
    protocol(c"ip", 0x0800),
    protocol(c"ip6", 0x86dd),
    protocol(c"lat", 0x6004),
    protocol(c"loopback", 0x9000),
    protocol(c"mopdl", 0x6001),
    protocol(c"moprc", 0x6002),
    protocol(c"rarp", 0x8035),
    protocol(c"sca", 0x6007),
    Protocol { name: null(), number: 0 },
];
