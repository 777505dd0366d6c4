//! The system's libpcap, which is loaded with this library, as the loader would have done with the program,
//! and never unloaded.

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use nocopy_proto::filter::Instruction;

use crate::abi::{BpfProgram, Handler, Opaque, PacketHeader, Pcap, Statistics};
use crate::loader::LoadedLibrary;

/// Functions of the library, by name: a pointer to each, or to one that ends the program and names the
/// missing function.
macro_rules! functions {
    ($($name:ident($($type:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Debug)]
        pub(crate) struct SystemLibpcap {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($type),*) $(-> $result)?,)*
        }

        impl SystemLibpcap {
            fn from_library(library: LoadedLibrary) -> Self {
                Self {
                    $($name: {
                        unsafe extern "C-unwind" fn missing() {
                            exit_with_error(concat!("libpcap: has no function ", stringify!($name), "; the system's libpcap is another version; install libpcap 1.10"))
                        }
                        let found = library.symbol(concat!(stringify!($name), "\0"));
                        let found = found.unwrap_or(missing as *mut c_void);
                        // SAFETY: the type is that of `pcap/pcap.h`, unchanged since the function first
                        // appeared; one that is missing looks at no argument and does not return.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(found)
                        }
                    },)*
                }
            }
        }
    };
}

functions! {
    bpf_dump(*const BpfProgram, c_int);
    bpf_filter(*const Instruction, *const c_uchar, c_uint, c_uint) -> c_uint;
    bpf_image(*const Instruction, c_int) -> *mut c_char;
    bpf_validate(*const Instruction, c_int) -> c_int;
    pcap_activate(*mut Pcap) -> c_int;
    pcap_breakloop(*mut Pcap);
    pcap_bufsize(*mut Pcap) -> c_int;
    pcap_can_set_rfmon(*mut Pcap) -> c_int;
    pcap_close(*mut Pcap);
    pcap_compile(*mut Pcap, *mut BpfProgram, *const c_char, c_int, u32) -> c_int;
    pcap_compile_nopcap(c_int, c_int, *mut BpfProgram, *const c_char, c_int, u32) -> c_int;
    pcap_create(*const c_char, *mut c_char) -> *mut Pcap;
    pcap_datalink(*mut Pcap) -> c_int;
    pcap_datalink_ext(*mut Pcap) -> c_int;
    pcap_datalink_name_to_val(*const c_char) -> c_int;
    pcap_datalink_val_to_description(c_int) -> *const c_char;
    pcap_datalink_val_to_description_or_dlt(c_int) -> *const c_char;
    pcap_datalink_val_to_name(c_int) -> *const c_char;
    pcap_dispatch(*mut Pcap, c_int, Option<Handler>, *mut c_uchar) -> c_int;
    pcap_dump(*mut c_uchar, *const PacketHeader, *const c_uchar);
    pcap_dump_close(*mut Opaque);
    pcap_dump_file(*mut Opaque) -> *mut Opaque;
    pcap_dump_flush(*mut Opaque) -> c_int;
    pcap_dump_fopen(*mut Pcap, *mut Opaque) -> *mut Opaque;
    pcap_dump_ftell(*mut Opaque) -> c_long;
    pcap_dump_ftell64(*mut Opaque) -> i64;
    pcap_dump_open(*mut Pcap, *const c_char) -> *mut Opaque;
    pcap_dump_open_append(*mut Pcap, *const c_char) -> *mut Opaque;
    pcap_ether_aton(*const c_char) -> *mut c_uchar;
    pcap_ether_hostton(*const c_char) -> *mut c_uchar;
    pcap_file(*mut Pcap) -> *mut Opaque;
    pcap_fileno(*mut Pcap) -> c_int;
    pcap_findalldevs(*mut *mut Opaque, *mut c_char) -> c_int;
    pcap_fopen_offline(*mut Opaque, *mut c_char) -> *mut Pcap;
    pcap_fopen_offline_with_tstamp_precision(*mut Opaque, c_uint, *mut c_char) -> *mut Pcap;
    pcap_free_datalinks(*mut c_int);
    pcap_free_tstamp_types(*mut c_int);
    pcap_freealldevs(*mut Opaque);
    pcap_freecode(*mut BpfProgram);
    pcap_get_required_select_timeout(*mut Pcap) -> *const libc::timeval;
    pcap_get_selectable_fd(*mut Pcap) -> c_int;
    pcap_get_tstamp_precision(*mut Pcap) -> c_int;
    pcap_geterr(*mut Pcap) -> *mut c_char;
    pcap_getnonblock(*mut Pcap, *mut c_char) -> c_int;
    pcap_init(c_uint, *mut c_char) -> c_int;
    pcap_inject(*mut Pcap, *const Opaque, usize) -> c_int;
    pcap_is_swapped(*mut Pcap) -> c_int;
    pcap_lib_version() -> *const c_char;
    pcap_list_datalinks(*mut Pcap, *mut *mut c_int) -> c_int;
    pcap_list_tstamp_types(*mut Pcap, *mut *mut c_int) -> c_int;
    pcap_lookupdev(*mut c_char) -> *mut c_char;
    pcap_lookupnet(*const c_char, *mut u32, *mut u32, *mut c_char) -> c_int;
    pcap_loop(*mut Pcap, c_int, Option<Handler>, *mut c_uchar) -> c_int;
    pcap_major_version(*mut Pcap) -> c_int;
    pcap_minor_version(*mut Pcap) -> c_int;
    pcap_nametoaddr(*const c_char) -> *mut *mut u32;
    pcap_nametoaddrinfo(*const c_char) -> *mut Opaque;
    pcap_nametoeproto(*const c_char) -> c_int;
    pcap_nametollc(*const c_char) -> c_int;
    pcap_nametonetaddr(*const c_char) -> u32;
    pcap_nametoport(*const c_char, *mut c_int, *mut c_int) -> c_int;
    pcap_nametoportrange(*const c_char, *mut c_int, *mut c_int, *mut c_int) -> c_int;
    pcap_nametoproto(*const c_char) -> c_int;
    pcap_next(*mut Pcap, *mut PacketHeader) -> *const c_uchar;
    pcap_next_etherent(*mut Opaque) -> *mut Opaque;
    pcap_next_ex(*mut Pcap, *mut *mut PacketHeader, *mut *const c_uchar) -> c_int;
    pcap_offline_filter(*const BpfProgram, *const PacketHeader, *const c_uchar) -> c_int;
    pcap_open_dead(c_int, c_int) -> *mut Pcap;
    pcap_open_dead_with_tstamp_precision(c_int, c_int, c_uint) -> *mut Pcap;
    pcap_open_live(*const c_char, c_int, c_int, c_int, *mut c_char) -> *mut Pcap;
    pcap_open_offline(*const c_char, *mut c_char) -> *mut Pcap;
    pcap_open_offline_with_tstamp_precision(*const c_char, c_uint, *mut c_char) -> *mut Pcap;
    pcap_perror(*mut Pcap, *const c_char);
    pcap_sendpacket(*mut Pcap, *const c_uchar, c_int) -> c_int;
    pcap_set_buffer_size(*mut Pcap, c_int) -> c_int;
    pcap_set_datalink(*mut Pcap, c_int) -> c_int;
    pcap_set_immediate_mode(*mut Pcap, c_int) -> c_int;
    pcap_set_promisc(*mut Pcap, c_int) -> c_int;
    pcap_set_protocol_linux(*mut Pcap, c_int) -> c_int;
    pcap_set_rfmon(*mut Pcap, c_int) -> c_int;
    pcap_set_snaplen(*mut Pcap, c_int) -> c_int;
    pcap_set_timeout(*mut Pcap, c_int) -> c_int;
    pcap_set_tstamp_precision(*mut Pcap, c_int) -> c_int;
    pcap_set_tstamp_type(*mut Pcap, c_int) -> c_int;
    pcap_setdirection(*mut Pcap, c_uint) -> c_int;
    pcap_setfilter(*mut Pcap, *mut BpfProgram) -> c_int;
    pcap_setnonblock(*mut Pcap, c_int, *mut c_char) -> c_int;
    pcap_snapshot(*mut Pcap) -> c_int;
    pcap_stats(*mut Pcap, *mut Statistics) -> c_int;
    pcap_statustostr(c_int) -> *const c_char;
    pcap_strerror(c_int) -> *const c_char;
    pcap_tstamp_type_name_to_val(*const c_char) -> c_int;
    pcap_tstamp_type_val_to_description(c_int) -> *const c_char;
    pcap_tstamp_type_val_to_name(c_int) -> *const c_char;
}

static SYSTEM: OnceLock<SystemLibpcap> = OnceLock::new();

/// Loads the system's libpcap before the program starts, while descriptors are free and the root directory is
/// unchanged. A program that never calls libpcap also runs without it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn load_before_main() {
        if let Ok(library) = LoadedLibrary::open() {
            SYSTEM.get_or_init(|| SystemLibpcap::from_library(library));
        }
    }
    load_before_main
};

/// The system's libpcap. Without one the program ends here with a message, as it would have in the loader.
#[inline]
pub(crate) fn system_libpcap() -> &'static SystemLibpcap {
    SYSTEM.get().unwrap_or_else(load_or_exit)
}

/// Whether there is one: a program that can do without libpcap finds none otherwise.
pub(crate) fn is_libpcap_loaded() -> bool {
    SYSTEM.get().is_some()
}

#[cold]
fn load_or_exit() -> &'static SystemLibpcap {
    // A program's call must not change errno if libpcap would not.
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let system = SYSTEM.get_or_init(|| match LoadedLibrary::open() {
        Ok(library) => SystemLibpcap::from_library(library),
        Err(reason) => exit_with_error(&reason),
    });
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    system
}

/// Ends the program as the loader ends one whose library is missing.
fn exit_with_error(reason: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "nocopy: {reason}");
    std::process::exit(127)
}
