//! The destination of a datagram, in a form that is quick to compare and that the kernel accepts.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of the longest address: `struct sockaddr_in6`.
const BYTES_MAX: usize = 28;

/// `struct sockaddr_in` and `struct sockaddr_in6`, in bytes.
const V4_BYTES: usize = 16;
const V6_BYTES: usize = 28;

/// The longest address that the kernel reads: `struct sockaddr_storage`.
const KERNEL_BYTES_MAX: usize = 128;

/// Family, port and address of `struct sockaddr_in`; its other bytes have no meaning.
const V4_USED_BYTES: usize = 8;

/// A destination as the program gave it, or the peer to which the socket is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct Destination {
    address: [u8; BYTES_MAX],
    bytes: u32,
}

impl Destination {
    /// The peer of a connected socket.
    pub(crate) const CONNECTED: Self = Self { address: [0; BYTES_MAX], bytes: 0 };

    /// An address that the program gave; `None` if it is neither IPv4 nor IPv6, too short or too long. Its
    /// bytes are read once, because another thread may change them.
    #[inline]
    pub(crate) fn from_sockaddr(given: &[u8]) -> Option<Self> {
        let mut address = [0; BYTES_MAX];
        let given = given.get(..given.len().min(BYTES_MAX)).filter(|_| given.len() <= KERNEL_BYTES_MAX)?;
        address.get_mut(..given.len())?.copy_from_slice(given);
        let bytes = match i32::from(u16::from_ne_bytes([address[0], address[1]])) {
            libc::AF_INET => V4_BYTES,
            libc::AF_INET6 => V6_BYTES,
            _ => return None,
        };
        if bytes == V4_BYTES {
            address[V4_USED_BYTES..].fill(0);
        }
        (given.len() >= bytes).then_some(Self { address, bytes: bytes as u32 })
    }

    /// Whether it is this address; `None` stands for the peer of a connected socket.
    #[inline]
    pub(crate) fn matches(&self, address: Option<&[u8]>) -> bool {
        let Some(address) = address else { return self.bytes == 0 };
        let is_equal = match self.bytes as usize {
            V4_BYTES if address.len() >= V4_BYTES => {
                self.address.first_chunk::<V4_USED_BYTES>() == address.first_chunk()
            }
            V6_BYTES => address.first_chunk() == Some(&self.address),
            _ => false,
        };
        is_equal && address.len() <= KERNEL_BYTES_MAX
    }

    /// The address in the kernel's format; empty for the peer of a connected socket.
    pub(crate) fn sockaddr_bytes(&self) -> &[u8] {
        &self.address[..self.bytes as usize]
    }

    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        let address = self.sockaddr_bytes();
        let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
        if address.len() == V4_BYTES {
            let ip: [u8; 4] = *address.get(4..)?.first_chunk()?;
            return Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port));
        }
        let ip: [u8; 16] = *address.get(8..)?.first_chunk()?;
        Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockaddr_in(port: u16, last: u8, filling: u8) -> [u8; 16] {
        let mut address = [filling; 16];
        address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        address[2..4].copy_from_slice(&port.to_be_bytes());
        address[4..8].copy_from_slice(&[192, 0, 2, last]);
        address
    }

    #[test]
    fn padding_bytes_of_an_address_are_ignored() {
        assert_eq!(
            Destination::from_sockaddr(&sockaddr_in(9, 1, 0)),
            Destination::from_sockaddr(&sockaddr_in(9, 1, 0xff))
        );
        assert_ne!(
            Destination::from_sockaddr(&sockaddr_in(9, 1, 0)),
            Destination::from_sockaddr(&sockaddr_in(9, 2, 0))
        );
        assert_ne!(
            Destination::from_sockaddr(&sockaddr_in(9, 1, 0)),
            Destination::from_sockaddr(&sockaddr_in(10, 1, 0))
        );
        assert_ne!(Destination::from_sockaddr(&sockaddr_in(0, 0, 0)), Some(Destination::CONNECTED));
        let one = Destination::from_sockaddr(&sockaddr_in(9, 1, 0)).unwrap();
        assert!(
            one.matches(Some(&sockaddr_in(9, 1, 7)))
                && !one.matches(Some(&sockaddr_in(9, 2, 0)))
                && !one.matches(Some(&sockaddr_in(10, 1, 0)))
        );
        assert!(!one.matches(None) && !one.matches(Some(&sockaddr_in(9, 1, 0)[..15])));
        assert!(
            Destination::CONNECTED.matches(None)
                && !Destination::CONNECTED.matches(Some(&sockaddr_in(0, 0, 0)))
        );
        let address = Destination::from_sockaddr(&sockaddr_in(9, 1, 7)).unwrap().socket_address();
        assert_eq!(address, Some("192.0.2.1:9".parse().unwrap()));
    }

    #[test]
    fn short_long_and_foreign_addresses_are_refused() {
        let whole = sockaddr_in(9, 1, 0);
        let mut long = [0; KERNEL_BYTES_MAX + 1];
        long[..whole.len()].copy_from_slice(&whole);
        let (longest, known) = (&long[..KERNEL_BYTES_MAX], Destination::from_sockaddr(&whole));
        assert!(known.unwrap().matches(Some(longest)) && Destination::from_sockaddr(longest) == known);
        assert!(!known.unwrap().matches(Some(&long)) && Destination::from_sockaddr(&long).is_none());
        assert!((0..16).all(|end| Destination::from_sockaddr(&whole[..end]).is_none()));
        let mut other = whole;
        other[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(Destination::from_sockaddr(&other), None);
        assert_eq!(Destination::CONNECTED.socket_address(), None);
        let mut v6 = [0_u8; 28];
        v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        (v6[3], v6[23]) = (9, 1);
        let address = Destination::from_sockaddr(&v6).unwrap().socket_address();
        assert_eq!(address, Some("[::1]:9".parse().unwrap()));
        let one = Destination::from_sockaddr(&v6).unwrap();
        assert!(one.matches(Some(&v6)) && !one.matches(Some(&v6[..27])));
        v6[27] = 1;
        assert!(!one.matches(Some(&v6)), "another scope");
    }
}
