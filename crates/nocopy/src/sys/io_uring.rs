//! Whether io_uring and its zero-copy receive exist, found by calls that the kernel refuses.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// linux/io_uring.h
const IORING_SETUP_CQE32: u32 = 1 << 11;
const IORING_SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const IORING_SETUP_DEFER_TASKRUN: u32 = 1 << 13;
/// Since Linux 6.15.
const IORING_REGISTER_ZCRX_IFQ: u32 = 32;

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct UringParameters {
    entries: [u32; 2],
    flags: u32,
    rest: [u32; 27],
}

/// An instance that is never used.
fn create_instance(flags: u32) -> io::Result<OwnedFd> {
    let mut parameters = UringParameters { flags, ..UringParameters::default() };
    // SAFETY: `UringParameters` is as large as the structure this call reads and writes (120 bytes), and
    // outlives it.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut parameters) };
    let fd = i32::try_from(fd).expect("a descriptor or -1");
    let _ = (parameters.entries, parameters.rest);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether this process may use io_uring. Errors: the kernel's refusal: `EPERM` if it is turned off, `ENOSYS`
/// if it was not built in.
pub(crate) fn check_available() -> io::Result<()> {
    create_instance(0).map(drop)
}

/// Whether the kernel has io_uring's zero-copy receive. Errors: the kernel's refusal to answer: `EPERM`
/// without CAP_NET_ADMIN.
pub(crate) fn has_zero_copy_receive() -> io::Result<bool> {
    // Before Linux 6.1 such an instance is not possible: the flags are refused.
    let ring =
        match create_instance(IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
            ring => ring?,
        };
    // SAFETY: the argument is no address of ours: the kernel that reads it answers EFAULT, one that does not
    // know the operation or was built without it refuses before.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), IORING_REGISTER_ZCRX_IFQ, usize::MAX, 1)
    };
    let error = io::Error::last_os_error();
    match (result, error.raw_os_error()) {
        (-1, Some(libc::EFAULT)) => Ok(true),
        (-1, Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_kernels_size() {
        assert_eq!(size_of::<UringParameters>(), 120);
    }
}
