//! Which network namespace something is in.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `linux/sockios.h`: a descriptor of a socket's network namespace (Linux 4.10).
const SIOCGSKNS: libc::c_ulong = 0x894c;

/// A network namespace, told apart from every other that lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// Of the calling thread, which may have moved since it last asked.
    pub(crate) fn of_thread() -> io::Result<Self> {
        Ok(Self::from(&std::fs::metadata("/proc/thread-self/ns/net")?))
    }

    /// Of a socket: the one it was opened in, for good.
    pub(crate) fn of_socket(socket: &impl AsFd) -> io::Result<Self> {
        // SAFETY: a live descriptor, and a request without an argument.
        let namespace = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
        if namespace < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor that nobody else owns.
        let namespace = unsafe { OwnedFd::from_raw_fd(namespace) };
        Ok(Self::from(&File::from(namespace).metadata()?))
    }

    /// Device and inode, to tell another process.
    pub(crate) const fn numbers(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

impl From<&Metadata> for NamespaceId {
    fn from(file: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self { device: file.dev(), inode: file.ino() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_stays_in_the_namespace_it_was_opened_in() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let here = NamespaceId::of_thread().unwrap();
        let (there, socket) = lab
            .left()
            .namespace()
            .run(|| (NamespaceId::of_thread().unwrap(), std::net::UdpSocket::bind("0.0.0.0:0").unwrap()));
        assert_ne!(here, there);
        assert_eq!(NamespaceId::of_socket(&socket).unwrap(), there);
        assert_eq!(NamespaceId::of_thread().unwrap(), here);
    }
}
