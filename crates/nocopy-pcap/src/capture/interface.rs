//! Queries about an interface by its name, with libpcap's errors.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nocopy_proto::errno::ErrorCause;
use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::Refusal;
use crate::{packet_socket, text};

#[derive(Debug, Clone, Copy)]
pub(super) struct InterfaceKind {
    pub(super) is_loopback: bool,
}

impl InterfaceKind {
    /// Queries an interface to capture on. Errors: there is no such interface, or its packets do not begin
    /// with an Ethernet header.
    pub(super) fn query_for_capture(device: &CStr) -> Result<Self, Refusal> {
        let name = device.to_string_lossy();
        if name == "any" {
            return Err(Refusal("'any' is all interfaces, and a capture of ours is of one".into()));
        }
        if name.starts_with("isdn") || name.starts_with("isdY") {
            return Err(Refusal("ISDN devices have no Ethernet headers of their own".into()));
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|error| {
            Refusal(format!("{name}: cannot be looked at{}", ErrorCause(&io::Error::from(error))))
        })?;
        let request = interface_ioctl(socket.as_fd(), device, libc::SIOCGIFHWADDR);
        let request = request.map_err(|error| {
            Refusal(format!("{name}: not found{}; 'ip link' lists the interfaces", ErrorCause(&error)))
        })?;
        // SAFETY: the call filled the address in.
        let hardware = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        let is_loopback = hardware == libc::ARPHRD_LOOPBACK;
        if !is_loopback && hardware != libc::ARPHRD_ETHER {
            let why = format!("{name}: its packets have no Ethernet header (hardware type {hardware})");
            return Err(Refusal(why));
        }
        if Path::new(&format!("/sys/class/net/{name}/dsa/tagging")).exists() {
            return Err(Refusal(format!("{name}: its packets have the tags of a switch (DSA)")));
        }
        Ok(Self { is_loopback })
    }
}

/// Asks the kernel something about an interface.
fn interface_ioctl(socket: BorrowedFd<'_>, device: &CStr, what: c_ulong) -> io::Result<libc::ifreq> {
    // SAFETY: numbers, and a union of numbers and a pointer that the calls made here do not read.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = device.to_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    // The name is shorter than the field, as checked, so a zero remains behind it.
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        // Signed on x86-64, unsigned on arm64.
        *to = c_char::from_ne_bytes(from.to_ne_bytes());
    }
    // SAFETY: the calls made here read the name and write into the union, which is as long as they want.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The socket's error, which is cleared.
pub(super) fn take_socket_error(socket: BorrowedFd<'_>) -> io::Error {
    let error = sockopt::socket_error(socket).and_then(|error| error);
    error.err().map_or_else(|| io::Error::from_raw_os_error(0), io::Error::from)
}

/// Whether an interface that went down is up again. Errors: it was removed, or cannot be queried; in
/// libpcap's words.
pub(super) fn is_interface_up(socket: BorrowedFd<'_>, device: &CStr) -> Result<bool, String> {
    const GONE: &str = "The interface disappeared";
    let index = packet_socket::bound_interface_index(socket);
    if index.map_err(|error| text::errno_text("getsockname failed", &error))? == -1 {
        return Err(GONE.into());
    }
    match interface_ioctl(socket, device, libc::SIOCGIFFLAGS) {
        // SAFETY: the call filled the flags in.
        Ok(request) => Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }) & libc::IFF_UP != 0),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => Err(GONE.into()),
        Err(error) => {
            let tried = format!("{}: Can't get flags", device.to_string_lossy());
            Err(text::errno_text(&tried, &error))
        }
    }
}

/// Packets that an interface lost since the capture was opened because the card had no room
/// (`rx_missed_errors`, `rx_fifo_errors`).
#[derive(Debug)]
pub(super) struct InterfaceDrops {
    files: [CString; 2],
    before: AtomicU64,
    last: AtomicU64,
}

impl InterfaceDrops {
    pub(super) fn new(device: &str) -> Self {
        let file = |name| {
            let path = format!("/sys/class/net/{device}/statistics/{name}");
            CString::new(path).expect("the name was a string of C's")
        };
        let drops = Self {
            files: ["rx_missed_errors", "rx_fifo_errors"].map(file),
            before: AtomicU64::new(0),
            last: AtomicU64::new(0),
        };
        drops.before.store(drops.read_counters().unwrap_or(0), Ordering::Relaxed);
        drops
    }

    /// The number of these packets, without a lock or an allocation, because signal handlers call this. If it
    /// cannot be read, the last known number: a program may have changed its root directory.
    pub(super) fn dropped_since_open(&self) -> u64 {
        if let Some(now) = self.read_counters() {
            let count = now.wrapping_sub(self.before.load(Ordering::Relaxed));
            self.last.store(count, Ordering::Relaxed);
        }
        self.last.load(Ordering::Relaxed)
    }

    fn read_counters(&self) -> Option<u64> {
        self.files.iter().map(|file| leading_number(file)).sum()
    }
}

/// The number at the beginning of a file; 0 if there is none, as in libpcap.
fn leading_number(file: &CStr) -> Option<u64> {
    let file = open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut digits = [0_u8; 32];
    let bytes = rustix::io::read(&file, &mut digits).unwrap_or(0);
    let digits = &digits[..bytes];
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number.wrapping_mul(10).wrapping_add((digit - b'0').into())))
}
