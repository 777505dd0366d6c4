//! Identifies network namespaces.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::option;

/// `linux/sockios.h`: a descriptor of a socket's network namespace (Linux 4.10).
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// A network namespace, distinct from every other existing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NamespaceId {
    /// The kernel's cookie, which any process can read from a socket: also without privileges, and after
    /// chroot(2) without `/proc`.
    Cookie(u64),
    /// Before Linux 5.14: device and inode of its file.
    File { device: u64, inode: u64 },
}

impl NamespaceId {
    /// The namespace of the calling thread, which may have changed since the last call.
    pub(crate) fn of_thread() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Self::from_socket_or_file(&socket, || std::fs::metadata("/proc/thread-self/ns/net"))
    }

    /// The namespace in which a socket was opened, which never changes.
    pub(crate) fn of_socket(socket: &impl AsFd) -> io::Result<Self> {
        Self::from_socket_or_file(socket, || namespace_file(socket)?.metadata())
    }

    fn from_socket_or_file(
        socket: &impl AsFd,
        file: impl FnOnce() -> io::Result<Metadata>,
    ) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        match option::namespace_cookie(socket) {
            Ok(cookie) => Ok(Self::Cookie(cookie)),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let file = file()?;
                Ok(Self::File { device: file.dev(), inode: file.ino() })
            }
            Err(error) => Err(error),
        }
    }

    /// As numbers, to be sent to another process.
    pub(crate) const fn numbers(self) -> (u64, u64) {
        match self {
            Self::Cookie(cookie) => (0, cookie), // no device is 0
            Self::File { device, inode } => (device, inode),
        }
    }
}

fn namespace_file(socket: &impl AsFd) -> io::Result<File> {
    // SAFETY: a live descriptor, and a request without an argument.
    let namespace = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
    if namespace < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(namespace) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_stays_in_its_namespace() {
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

    #[test]
    fn namespace_files_of_thread_and_socket_are_equal() {
        use std::os::unix::fs::MetadataExt;
        let thread = std::fs::metadata("/proc/thread-self/ns/net").unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = match namespace_file(&socket) {
            Ok(file) => file.metadata().unwrap(),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_NET_ADMIN"));
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!((thread.dev(), thread.ino()), (file.dev(), file.ino()));
    }
}
