//! The system's libpcap, loaded when a filter expression is to be compiled.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;

use nocopy_proto::filter::Instruction;

/// File names of libpcap: Debian's, and those of other systems.
const NAMES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];

/// `DLT_EN10MB`: Ethernet.
const ETHERNET: c_int = 1;

/// The length to which matching packets are cut: no packet is longer, as with tcpdump's largest snap length.
const SNAP_BYTES: c_int = 262_144;

/// `PCAP_NETMASK_UNKNOWN`: an expression that asks for broadcasts of an IPv4 network is refused.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// `struct bpf_program` of `pcap/bpf.h`.
#[repr(C)]
struct BpfProgram {
    len: u32,
    instructions: *mut Instruction,
}

/// A `pcap_t`.
#[repr(C)]
struct PcapHandle {
    _opaque: [u8; 0],
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut PcapHandle;
type Compile = unsafe extern "C" fn(*mut PcapHandle, *mut BpfProgram, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut BpfProgram);
type GetError = unsafe extern "C" fn(*mut PcapHandle) -> *mut c_char;
type Close = unsafe extern "C" fn(*mut PcapHandle);

#[derive(Debug, Clone, Copy)]
struct PcapFunctions {
    open_dead: OpenDead,
    compile: Compile,
    free_code: FreeCode,
    get_error: GetError,
    close: Close,
}

/// Loaded once, and never unloaded. Locked while compiling: before libpcap 1.8 the compiler used global
/// state.
static LOADED: Mutex<Option<PcapFunctions>> = Mutex::new(None);

/// Why an expression was not compiled, in libpcap's or the loader's words.
#[derive(Debug)]
pub(crate) enum CompileFailure {
    NoLibrary(String),
    Expression(String),
}

/// Compiles an expression for Ethernet frames.
pub(crate) fn compile(expression: &CStr) -> Result<Vec<Instruction>, CompileFailure> {
    let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let functions = match *loaded {
        Some(functions) => functions,
        None => *loaded.insert(PcapFunctions::load_library().map_err(CompileFailure::NoLibrary)?),
    };
    functions.compile(expression).map_err(CompileFailure::Expression)
}

impl PcapFunctions {
    fn load_library() -> Result<Self, String> {
        // SAFETY: opening a library runs its initialisers; the system's libpcap has none that matter.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let library = NAMES.into_iter().find_map(|name| NonNull::new(open(name))).ok_or_else(loader_error)?;
        // SAFETY: the types are those of `pcap/pcap.h`, unchanged since its first versions.
        unsafe {
            Ok(Self {
                open_dead: std::mem::transmute::<*mut c_void, OpenDead>(look_up_symbol(
                    library,
                    c"pcap_open_dead",
                )?),
                compile: std::mem::transmute::<*mut c_void, Compile>(look_up_symbol(
                    library,
                    c"pcap_compile",
                )?),
                free_code: std::mem::transmute::<*mut c_void, FreeCode>(look_up_symbol(
                    library,
                    c"pcap_freecode",
                )?),
                get_error: std::mem::transmute::<*mut c_void, GetError>(look_up_symbol(
                    library,
                    c"pcap_geterr",
                )?),
                close: std::mem::transmute::<*mut c_void, Close>(look_up_symbol(library, c"pcap_close")?),
            })
        }
    }

    fn compile(self, expression: &CStr) -> Result<Vec<Instruction>, String> {
        // SAFETY: takes two numbers.
        let handle = unsafe { (self.open_dead)(ETHERNET, SNAP_BYTES) };
        if handle.is_null() {
            return Err("out of memory".into());
        }
        let mut program = BpfProgram { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, the program is written by a call that succeeds, the expression ends
        // with a zero.
        let result =
            unsafe { (self.compile)(handle, &raw mut program, expression.as_ptr(), 1, NETMASK_UNKNOWN) };
        let compiled = if result == 0 {
            // SAFETY: `pcap_compile` succeeded, so the program has that many instructions, of this layout.
            let copied = unsafe { std::slice::from_raw_parts(program.instructions, program.len as usize) };
            let copied = copied.to_vec();
            // SAFETY: compiled above, freed once.
            unsafe { (self.free_code)(&raw mut program) };
            Ok(copied)
        } else {
            // SAFETY: the handle is open; its message ends with a zero and is copied before anything else is
            // called.
            Err(unsafe { CStr::from_ptr((self.get_error)(handle)) }.to_string_lossy().into_owned())
        };
        // SAFETY: opened above, closed once.
        unsafe { (self.close)(handle) };
        compiled
    }
}

fn look_up_symbol(library: NonNull<c_void>, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and stays so.
    let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    if address.is_null() { Err(loader_error()) } else { Ok(address) }
}

fn loader_error() -> String {
    // SAFETY: takes nothing; the text is this thread's, good until the loader is called again.
    let message = unsafe { libc::dlerror() };
    match NonNull::new(message) {
        // SAFETY: ends with a zero, and is copied at once.
        Some(message) => unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned(),
        None => "it does not say why".into(),
    }
}
