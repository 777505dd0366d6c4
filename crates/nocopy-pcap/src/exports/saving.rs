//! Writes packets into capture files by the system's libpcap, without locks in processes with one thread.
//!
//! libpcap writes each packet by two calls of fwrite(3), each of which locks and unlocks the file: four
//! atomic instructions, a quarter of tcpdump's time for a packet. A process with one thread (as glibc
//! reports) needs none of them.

use std::ffi::{c_char, c_int, c_uchar};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI8, Ordering};

use crate::abi::{Opaque, PacketHeader};
use crate::system::system_libpcap;

// stdio_ext.h
const FSETLOCKING_BYCALLER: c_int = 2;

unsafe extern "C" {
    fn __fsetlocking(file: *mut Opaque, kind: c_int) -> c_int;
}

/// Whether the calling thread is the only one of this process.
fn has_one_thread() -> bool {
    // sys/single_threaded.h; glibc has it since 2.32, and this library is loaded by older ones.
    static SINGLE_THREADED: OnceLock<Option<&'static AtomicI8>> = OnceLock::new();
    let flag = SINGLE_THREADED.get_or_init(|| {
        // SAFETY: the name ends with a zero; the object is a `char` that stays as long as the C library.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
            found.cast::<c_char>().cast::<AtomicI8>().as_ref()
        }
    });
    // Only a thread can make a second one, and this one does not meanwhile.
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_dump(
    dumper: *mut c_uchar,
    header: *const PacketHeader,
    packet: *const c_uchar,
) {
    let system = system_libpcap();
    if !has_one_thread() {
        // SAFETY: the caller guarantees it.
        return unsafe { (system.pcap_dump)(dumper, header, packet) };
    }
    // SAFETY: the caller guarantees an open dumper, whose file is open, too; a signal handler that interrupts
    // this runs in the same thread.
    unsafe {
        let file = (system.pcap_dump_file)(dumper.cast());
        let locking = __fsetlocking(file, FSETLOCKING_BYCALLER);
        (system.pcap_dump)(dumper, header, packet);
        __fsetlocking(file, locking);
    }
}
