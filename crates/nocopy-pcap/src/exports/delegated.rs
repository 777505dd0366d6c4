//! Functions of the system's libpcap: compiling, savefiles, devices, names, texts.
//!
//! Calls are passed on directly: arguments are not checked, errno is not changed, and nothing here can panic
//! once the system's libpcap is loaded.

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint};

use nocopy_proto::filter::Instruction;

use crate::abi::{BpfProgram, Opaque, PacketHeader, Pcap};
use crate::system::system_libpcap;

macro_rules! delegated {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: what the program vouches for; the function is the one that it meant to call.
            unsafe { (system_libpcap().$name)($($argument),*) }
        }
    )*};
}

delegated! {
    fn bpf_dump(program: *const BpfProgram, option: c_int);
    fn bpf_filter(program: *const Instruction, packet: *const c_uchar, original_bytes: c_uint, bytes: c_uint) -> c_uint;
    fn bpf_image(instruction: *const Instruction, number: c_int) -> *mut c_char;
    fn bpf_validate(program: *const Instruction, len: c_int) -> c_int;
    fn pcap_can_set_rfmon(handle: *mut Pcap) -> c_int;
    fn pcap_compile_nopcap(snap_bytes: c_int, link_type: c_int, program: *mut BpfProgram, expression: *const c_char, optimize: c_int, netmask: u32) -> c_int;
    fn pcap_datalink_name_to_val(name: *const c_char) -> c_int;
    fn pcap_datalink_val_to_description(link_type: c_int) -> *const c_char;
    fn pcap_datalink_val_to_description_or_dlt(link_type: c_int) -> *const c_char;
    fn pcap_datalink_val_to_name(link_type: c_int) -> *const c_char;
    fn pcap_dump_close(dumper: *mut Opaque);
    fn pcap_dump_file(dumper: *mut Opaque) -> *mut Opaque;
    fn pcap_dump_flush(dumper: *mut Opaque) -> c_int;
    fn pcap_dump_ftell(dumper: *mut Opaque) -> c_long;
    fn pcap_dump_ftell64(dumper: *mut Opaque) -> i64;
    fn pcap_ether_aton(text: *const c_char) -> *mut c_uchar;
    fn pcap_ether_hostton(name: *const c_char) -> *mut c_uchar;
    fn pcap_file(handle: *mut Pcap) -> *mut Opaque;
    fn pcap_findalldevs(devices: *mut *mut Opaque, text: *mut c_char) -> c_int;
    fn pcap_fopen_offline(file: *mut Opaque, text: *mut c_char) -> *mut Pcap;
    fn pcap_fopen_offline_with_tstamp_precision(file: *mut Opaque, precision: c_uint, text: *mut c_char) -> *mut Pcap;
    fn pcap_free_datalinks(list: *mut c_int);
    fn pcap_free_tstamp_types(list: *mut c_int);
    fn pcap_freealldevs(devices: *mut Opaque);
    fn pcap_freecode(program: *mut BpfProgram);
    fn pcap_get_tstamp_precision(handle: *mut Pcap) -> c_int;
    fn pcap_geterr(handle: *mut Pcap) -> *mut c_char;
    fn pcap_init(options: c_uint, text: *mut c_char) -> c_int;
    fn pcap_lib_version() -> *const c_char;
    fn pcap_list_tstamp_types(handle: *mut Pcap, list: *mut *mut c_int) -> c_int;
    fn pcap_lookupdev(text: *mut c_char) -> *mut c_char;
    fn pcap_lookupnet(device: *const c_char, network: *mut u32, mask: *mut u32, text: *mut c_char) -> c_int;
    fn pcap_nametoaddr(name: *const c_char) -> *mut *mut u32;
    fn pcap_nametoaddrinfo(name: *const c_char) -> *mut Opaque;
    fn pcap_nametoeproto(name: *const c_char) -> c_int;
    fn pcap_nametollc(name: *const c_char) -> c_int;
    fn pcap_nametonetaddr(name: *const c_char) -> u32;
    fn pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int) -> c_int;
    fn pcap_nametoportrange(name: *const c_char, first: *mut c_int, last: *mut c_int, protocol: *mut c_int) -> c_int;
    fn pcap_nametoproto(name: *const c_char) -> c_int;
    fn pcap_next_etherent(file: *mut Opaque) -> *mut Opaque;
    fn pcap_offline_filter(program: *const BpfProgram, header: *const PacketHeader, packet: *const c_uchar) -> c_int;
    fn pcap_open_dead(link_type: c_int, snap_bytes: c_int) -> *mut Pcap;
    fn pcap_open_dead_with_tstamp_precision(link_type: c_int, snap_bytes: c_int, precision: c_uint) -> *mut Pcap;
    fn pcap_open_offline(path: *const c_char, text: *mut c_char) -> *mut Pcap;
    fn pcap_open_offline_with_tstamp_precision(path: *const c_char, precision: c_uint, text: *mut c_char) -> *mut Pcap;
    fn pcap_perror(handle: *mut Pcap, prefix: *const c_char);
    fn pcap_statustostr(status: c_int) -> *const c_char;
    fn pcap_strerror(errno: c_int) -> *const c_char;
    fn pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int;
    fn pcap_tstamp_type_val_to_description(kind: c_int) -> *const c_char;
    fn pcap_tstamp_type_val_to_name(kind: c_int) -> *const c_char;

    // Of a handle: the system's is activated too.
    fn pcap_datalink(handle: *mut Pcap) -> c_int;
    fn pcap_datalink_ext(handle: *mut Pcap) -> c_int;
    fn pcap_dump_fopen(handle: *mut Pcap, file: *mut Opaque) -> *mut Opaque;
    fn pcap_dump_open(handle: *mut Pcap, path: *const c_char) -> *mut Opaque;
    fn pcap_dump_open_append(handle: *mut Pcap, path: *const c_char) -> *mut Opaque;
    fn pcap_is_swapped(handle: *mut Pcap) -> c_int;
    fn pcap_list_datalinks(handle: *mut Pcap, list: *mut *mut c_int) -> c_int;
    fn pcap_major_version(handle: *mut Pcap) -> c_int;
    fn pcap_minor_version(handle: *mut Pcap) -> c_int;
    fn pcap_set_datalink(handle: *mut Pcap, link_type: c_int) -> c_int;
    fn pcap_snapshot(handle: *mut Pcap) -> c_int;
}
