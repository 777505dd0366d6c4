//! What the arguments of calls that send point to: the parts and the address of a datagram. Each is read
//! once, because another thread may change the program's memory; what is checked here is what is sent.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use libc::{iovec, msghdr, socklen_t};

use crate::destination::Destination;
use crate::run::DatagramShape;

/// The most parts of a datagram that this library joins; a datagram with more is left to the kernel.
const PARTS_MAX: usize = 16;

/// A datagram of one part.
pub(super) fn single_iovec(data: *const c_void, bytes: usize) -> [iovec; 1] {
    [iovec { iov_base: data.cast_mut(), iov_len: bytes }]
}

/// The parts of a datagram, as they were when they were read.
#[derive(Clone, Copy)]
pub(super) struct DatagramIovecs<'a> {
    pub(super) all: &'a [iovec],
    /// The bytes of all of them.
    pub(super) bytes: usize,
}

impl AsRef<[iovec]> for DatagramIovecs<'_> {
    #[inline]
    fn as_ref(&self) -> &[iovec] {
        self.all
    }
}

/// Room for the parts of a datagram.
pub(super) struct IovecBuffer([MaybeUninit<iovec>; PARTS_MAX]);

impl IovecBuffer {
    #[inline]
    pub(super) const fn new() -> Self {
        Self([MaybeUninit::uninit(); PARTS_MAX])
    }

    /// Reads parts; `None` if there are too many, or too long ones.
    ///
    /// # Safety
    /// `first` points to `count` parts.
    #[inline(always)]
    unsafe fn read_iovecs(&mut self, first: *const iovec, count: usize) -> Option<DatagramIovecs<'_>> {
        if count > PARTS_MAX || (first.is_null() && count > 0) {
            return None;
        }
        let mut bytes = 0_usize;
        for (at, slot) in self.0[..count].iter_mut().enumerate() {
            // SAFETY: by contract. Volatile: read once.
            let part = unsafe { first.add(at).read_volatile() };
            bytes = bytes.checked_add(part.iov_len)?;
            slot.write(part);
        }
        // SAFETY: so many were written.
        let all = unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) };
        Some(DatagramIovecs { all, bytes })
    }

    /// The parts that `writev` writes.
    ///
    /// # Safety
    /// `first` points to `count` parts.
    #[inline(always)]
    pub(super) unsafe fn read_writev_iovecs(
        &mut self,
        first: *const iovec,
        count: i32,
    ) -> Option<DatagramIovecs<'_>> {
        // SAFETY: by contract.
        unsafe { self.read_iovecs(first, usize::try_from(count).ok()?) }
    }

    /// The parts of a message, and its address if it has one; `None` if it has more than that, or is null.
    ///
    /// # Safety
    /// The message is null, or valid for the kernel.
    #[inline(always)]
    pub(super) unsafe fn read_message(
        &mut self,
        message: *const msghdr,
    ) -> Option<(DatagramIovecs<'_>, Option<&[u8]>)> {
        if message.is_null() {
            return None;
        }
        // SAFETY: by contract. Volatile: read once.
        let message = unsafe { message.read_volatile() };
        if message.msg_controllen > 0 {
            return None;
        }
        // SAFETY: by contract.
        unsafe {
            let parts = self.read_iovecs(message.msg_iov, message.msg_iovlen)?;
            Some((parts, sockaddr_slice(message.msg_name, message.msg_namelen)))
        }
    }

    /// The parts of a message, and its shape as a datagram; `None` if it has more than that, or is null.
    ///
    /// # Safety
    /// The message is null, or valid for the kernel.
    pub(super) unsafe fn read_datagram(
        &mut self,
        message: *const msghdr,
    ) -> Option<(DatagramIovecs<'_>, DatagramShape)> {
        // SAFETY: by contract.
        let (parts, address) = unsafe { self.read_message(message) }?;
        let shape = DatagramShape { bytes: parts.bytes, destination: destination_or_peer(address)? };
        Some((parts, shape))
    }
}

/// The bytes of an address; `None` if there is none.
///
/// # Safety
/// `address` is null or points to `bytes` bytes.
#[inline]
pub(super) unsafe fn sockaddr_slice<'a>(address: *const c_void, bytes: socklen_t) -> Option<&'a [u8]> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by contract.
    Some(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes as usize) })
}

pub(super) fn destination_or_peer(address: Option<&[u8]>) -> Option<Destination> {
    address.map_or(Some(Destination::CONNECTED), Destination::from_sockaddr)
}

/// The shape of a datagram to the peer of a connected socket.
pub(super) fn shape_to_peer(bytes: usize) -> DatagramShape {
    DatagramShape { bytes, destination: Destination::CONNECTED }
}
