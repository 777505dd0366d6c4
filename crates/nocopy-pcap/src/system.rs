//! The system's libpcap: found and loaded with this library, as the loader would have done with the program, and never unloaded.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;

use nocopy_proto::filter::Instruction;

use crate::abi::{BpfProgram, Handler, Opaque, PacketHeader, Pcap, Statistics};
use crate::environment;

/// The file's name in every directory.
const FILE: &str = "libpcap.so.0.8";

/// The directories that loaders search, with Debian's directory of each architecture first (ld.so(8)).
const DIRECTORIES: [&str; 7] =
    [MULTIARCH[0], MULTIARCH[1], "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib"];

/// Debian's directories of the architecture.
const MULTIARCH: [&str; 2] = if cfg!(target_arch = "aarch64") {
    ["/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"]
} else {
    ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"]
};

/// Functions of the library, by name: a pointer to each, or to one that ends the program and names the missing function.
macro_rules! functions {
    ($($name:ident($($type:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Debug)]
        pub(crate) struct System {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($type),*) $(-> $result)?,)*
        }

        impl System {
            fn of(library: Library) -> Self {
                Self {
                    $($name: {
                        unsafe extern "C-unwind" fn missing() {
                            end(concat!("libpcap: has no function ", stringify!($name), "; the system's libpcap is another version; install libpcap 1.10"))
                        }
                        let found = library.symbol(concat!(stringify!($name), "\0"));
                        let found = found.unwrap_or(missing as *mut c_void);
                        // SAFETY: the type is that of `pcap/pcap.h`, unchanged since the function first appeared; one that is
                        // missing looks at no argument and does not return.
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

static SYSTEM: OnceLock<System> = OnceLock::new();

/// Loads the system's libpcap before the program starts, while descriptors are free and the root directory is unchanged. A program that
/// never calls libpcap also runs without it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn load_early() {
        if let Ok(library) = Library::open() {
            SYSTEM.get_or_init(|| System::of(library));
        }
    }
    load_early
};

/// The system's libpcap. Without one the program ends here with a message, as it would have in the loader.
#[inline]
pub(crate) fn system() -> &'static System {
    SYSTEM.get().unwrap_or_else(load)
}

#[cold]
fn load() -> &'static System {
    // A program's call must not change errno if libpcap would not.
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let system = SYSTEM.get_or_init(|| match Library::open() {
        Ok(library) => System::of(library),
        Err(reason) => end(&reason),
    });
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    system
}

/// Ends the program as the loader ends one whose library is missing.
fn end(reason: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "nocopy: {reason}");
    std::process::exit(127)
}

/// A loaded library, which is never closed.
#[derive(Debug, Clone, Copy)]
struct Library(NonNull<c_void>);

impl Library {
    /// Opens the library that the environment names, or the first that is found.
    fn open() -> Result<Self, String> {
        if let Some(named) = environment::variable(environment::SYSTEM_LIBPCAP) {
            return Self::open_named(&named);
        }
        let paths: Vec<PathBuf> =
            DIRECTORIES.iter().map(|directory| Path::new(directory).join(FILE)).collect();
        let ours = own_file();
        let is_other = |path: &&PathBuf| path.exists() && path.canonicalize().ok() != ours;
        let mut refusal = None;
        for path in paths.iter().filter(is_other) {
            match Self::open_at(path) {
                Ok(library) => return Ok(library),
                Err(reason) => refusal = Some(reason),
            }
        }
        Err(refusal.unwrap_or_else(|| {
            let directories = DIRECTORIES.join(", ");
            format!(
                "{FILE}: not found; the system's libpcap, which compiles filters and reads files, is in none of {directories}; \
                 'apt install libpcap0.8', or name its path in {}",
                environment::SYSTEM_LIBPCAP
            )
        }))
    }

    fn open_named(path: &OsString) -> Result<Self, String> {
        let path = Path::new(path);
        let variable = environment::SYSTEM_LIBPCAP;
        if path.canonicalize().ok().is_some_and(|file| Some(file) == own_file()) {
            let path = path.display();
            return Err(format!(
                "{path}: cannot be the system's libpcap; it is this library itself; name another in {variable}"
            ));
        }
        Self::open_at(path).map_err(|reason| format!("{reason}; name the system's libpcap in {variable}"))
    }

    fn open_at(path: &Path) -> Result<Self, String> {
        let file = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{}: cannot be loaded; its path has a zero byte", path.display()))?;
        // Its internal calls use its own functions, not those that programs find first: ours.
        // The address sanitizer does not allow that; its tests use a libpcap that was linked so.
        let own = if cfg!(nocopy_sanitizer) { 0 } else { libc::RTLD_DEEPBIND };
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | own;
        // SAFETY: opening a library runs its initialisers; those of libpcap and what it needs do nothing that matters here.
        let library = unsafe { libc::dlopen(file.as_ptr(), flags) };
        let library = NonNull::new(library).map(Self);
        library.ok_or_else(|| format!("{}: cannot be loaded; {}", path.display(), loader_words()))
    }

    /// The address of a symbol of the library; the name ends with a zero byte.
    fn symbol(self, name: &str) -> Option<*mut c_void> {
        debug_assert!(name.ends_with('\0'));
        // SAFETY: the library is open, and stays so; the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr().cast()) };
        (!found.is_null()).then_some(found)
    }
}

/// The file that contains this code.
fn own_file() -> Option<PathBuf> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for; what is found is written to `found`.
    let is_found = unsafe { libc::dladdr(own_file as *const c_void, &raw mut found) } != 0;
    let name = NonNull::new(found.dli_fname.cast_mut()).filter(|_| is_found)?;
    // SAFETY: ends with a zero, and stays as long as this code does.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).canonicalize().ok()
}

fn loader_words() -> String {
    // SAFETY: takes nothing; the text is this thread's, good until the loader is called again.
    let words = unsafe { libc::dlerror() };
    match NonNull::new(words) {
        // SAFETY: ends with a zero, and is copied at once.
        Some(words) => unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy().into_owned(),
        None => "the loader gives no reason".into(),
    }
}
