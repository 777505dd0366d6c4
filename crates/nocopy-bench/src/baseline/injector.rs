//! A program that injects frames by libpcap's functions, as one would write it in C, in its own process.
//!
//! It asks the loader for libpcap by its name, as programs do that were linked with it, so whatever library
//! was preloaded under that name is the one it gets.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::child::{ChildKind, ScopedChild, UNDER_WAY};
use crate::cpu;
use crate::frame::HEADER_BYTES;
use crate::lines::PATIENCE;
use nocopy_report::Outcome;

/// The frame, and the interface to send it on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InjectTask {
    interface: String,
    frame: Vec<u8>,
}

/// Debian's name, and that of others.
const LIBRARIES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];

/// `PCAP_ERRBUF_SIZE`
const ERROR_BYTES: usize = 256;

/// Frames between two checks for errors.
const BURST: u64 = 256;

/// The process, as the bench sees it.
#[derive(Debug)]
pub(crate) struct RunningInjector {
    child: ScopedChild,
}

impl RunningInjector {
    /// Starts it in the calling thread's namespace; returns when frames were sent.
    pub(crate) fn start(
        interface: &str,
        frame: &[u8],
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let task = InjectTask { interface: interface.into(), frame: frame.into() };
        let mut command = ChildKind::Inject.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = ScopedChild(command.spawn()?);
        child.wait_for_first_send("the program that injects")?;
        Ok(Self { child })
    }

    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        cpu::cpu_time_of_process(self.child.id())
    }

    pub(crate) fn stop(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(io::Error::other(format!("the program that injects ended ({status})")));
                }
                None if Instant::now() > give_up => {
                    return Err(io::Error::other("the program that injects does not end"));
                }
                None => sleep(Duration::from_millis(2)),
            }
        }
    }
}

type PcapHandle = *mut c_void;

/// libpcap's functions, as `pcap/pcap.h` declares them.
struct PcapFunctions {
    create: unsafe extern "C" fn(*const c_char, *mut c_char) -> PcapHandle,
    activate: unsafe extern "C" fn(PcapHandle) -> c_int,
    inject: unsafe extern "C" fn(PcapHandle, *const c_void, usize) -> c_int,
    text: unsafe extern "C" fn(PcapHandle) -> *const c_char,
    close: unsafe extern "C" fn(PcapHandle),
}

impl PcapFunctions {
    fn load_library() -> Result<Self, String> {
        // SAFETY: a string that ends with a zero; the library stays loaded.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let library = LIBRARIES.into_iter().map(open).find(|library| !library.is_null());
        let library = library.ok_or("libpcap: not found")?;
        // SAFETY: the functions of those names have these types, in every version of the library.
        unsafe {
            Ok(Self {
                create: find_function(library, c"pcap_create")?,
                activate: find_function(library, c"pcap_activate")?,
                inject: find_function(library, c"pcap_inject")?,
                text: find_function(library, c"pcap_geterr")?,
                close: find_function(library, c"pcap_close")?,
            })
        }
    }
}

/// A function of an open library.
///
/// # Safety
///
/// `F` is a pointer to a function, of the type that the library's function has.
unsafe fn find_function<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library, and a string that ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("no {}", name.to_string_lossy()));
    }
    // SAFETY: a function was found, whose type the caller names.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

/// The process: injects frames until its standard input ends.
pub(crate) fn child_main(task: InjectTask) -> Result<Outcome, Failure> {
    if let Err(words) = inject_until_stdin_ends(task) {
        writeln!(io::stdout(), "{words}").map_err(nocopy_report::Failure::Print)?;
        return Ok(Outcome::Negative);
    }
    Ok(Outcome::Positive)
}

fn inject_until_stdin_ends(InjectTask { interface, mut frame }: InjectTask) -> Result<(), String> {
    if frame.len() < HEADER_BYTES + 8 {
        return Err("not a frame".into());
    }
    let functions = PcapFunctions::load_library()?;
    let handle = open_activated_handle(&functions, &interface)?;
    // SAFETY: an open handle; the text ends with a zero.
    let error_text = || unsafe { CStr::from_ptr((functions.text)(handle)).to_string_lossy().into_owned() };
    let over = std::thread::spawn(|| drop(io::stdin().read_to_end(&mut Vec::new())));
    let mut sequence = 0_u64;
    while !over.is_finished() {
        for _ in 0..BURST {
            frame[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&sequence.to_be_bytes());
            // SAFETY: an open handle; the pointer and length are the frame's.
            if unsafe { (functions.inject)(handle, frame.as_ptr().cast(), frame.len()) } < 0 {
                return Err(error_text());
            }
            sequence += 1;
        }
        if sequence == BURST {
            writeln!(io::stdout(), "{UNDER_WAY}").map_err(|error| error.to_string())?;
        }
    }
    // SAFETY: an open handle, closed once.
    unsafe { (functions.close)(handle) };
    Ok(())
}

fn open_activated_handle(functions: &PcapFunctions, interface: &str) -> Result<PcapHandle, String> {
    let device = CString::new(interface).map_err(|error| error.to_string())?;
    let mut text = [0; ERROR_BYTES];
    // SAFETY: a string that ends with a zero, and a buffer as long as libpcap wants it.
    let handle = unsafe { (functions.create)(device.as_ptr(), text.as_mut_ptr()) };
    if handle.is_null() {
        // SAFETY: libpcap ends its text with a zero.
        return Err(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned());
    }
    // SAFETY: an open handle.
    if unsafe { (functions.activate)(handle) } < 0 {
        // SAFETY: an open handle; the text ends with a zero.
        return Err(unsafe { CStr::from_ptr((functions.text)(handle)) }.to_string_lossy().into_owned());
    }
    Ok(handle)
}
