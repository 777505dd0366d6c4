//! Answers of a socket that is bound to all addresses of the host: they come from the address that was asked.
//! Otherwise the kernel would choose the source by its routes, and a peer that asked another address ignores
//! the answer.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nocopy::Reason;
use nocopy::udp::{Ancillary, Metadata, Sender};

/// Sends a copy of the bytes, from the address that was asked if what is known about the question is given.
/// Does not wait: the address may be forged, and the kernel keeps what is sent to a host that does not exist.
pub(crate) fn send_answer(
    sender: &mut Sender,
    bytes: &[u8],
    to: SocketAddr,
    metadata: Option<Metadata>,
) -> io::Result<()> {
    if !sender.has_room_for(to, bytes.len()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let source = metadata.and_then(|known| known.reply_from);
    let mut to = to;
    if let (SocketAddr::V6(to), Some(IpAddr::V6(source))) = (&mut to, source)
        && source.is_unicast_link_local()
    {
        to.set_scope_id(metadata.and_then(|known| known.interface).unwrap_or(to.scope_id()));
    }
    match sender.send_copy_with(bytes, to, Ancillary { source, ..Ancillary::default() }) {
        // An anycast address cannot be a source (RFC 4291, section 2.6): the kernel chooses one.
        Err(Reason::ForeignSource { .. }) => Ok(sender.send_copy_to(bytes, to)?),
        sent => Ok(sent?),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nocopy::udp::Socket;
    use nocopy_lab::patience::PATIENCE;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;

    /// The kernel waits for them, and keeps the answers meanwhile; nobody else waits.
    #[test]
    fn answers_to_absent_hosts_do_not_fill_the_send_buffer() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, right) = (lab.left(), lab.right());
        let client = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        right.namespace().run(|| {
            for wildcard in [false, true] {
                let address = if wildcard { std::net::Ipv4Addr::UNSPECIFIED } else { right.ipv4() };
                let server = Socket::builder().receive_metadata(true).bind((address, 0)).unwrap();
                let port = server.local_addr().unwrap().port();
                let (mut receiver, mut sender) = server.split();
                let buffer = 100 << 10; // the kernel doubles it
                set_socket_send_buffer_size(sender.kernel_socket().unwrap(), buffer).unwrap();
                client.send_to(b"question", (right.ipv4(), port)).unwrap();
                let question = receiver.receive().unwrap().next().unwrap();
                let (from, local) = (question.source(), Some(question.metadata()).filter(|_| wildcard));
                let network = u32::from(right.ipv4()) & !0xff;
                for host in (100..150).cycle().take(200) {
                    let forged = SocketAddr::new(std::net::Ipv4Addr::from(network | host).into(), 9);
                    let _ = send_answer(&mut sender, b"a", forged, local);
                }
                let socket = sender.kernel_socket().unwrap();
                let mut half = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
                assert_eq!(poll(&mut half, Some(&Timespec::default())), Ok(1), "less than half is free");
                for _ in 0..50 {
                    send_answer(&mut sender, b"answer", from, local).unwrap();
                    assert_eq!(client.recv(&mut [0; 16]).unwrap(), 6);
                }
            }
        });
    }

    #[test]
    fn answers_come_from_the_requested_address() {
        if !nocopy_lab::ipv6_or_skip() {
            return;
        }
        for (wildcard, asked) in
            [("0.0.0.0:0", &["127.0.0.1", "127.0.0.9"][..]), ("[::]:0", &["127.0.0.1", "127.0.0.9", "::1"])]
        {
            let server = Socket::builder().receive_metadata(true).bind(wildcard).unwrap();
            let port = server.local_addr().unwrap().port();
            let (mut receiver, mut sender) = server.split();
            for asked in asked {
                let to = SocketAddr::new(asked.parse().unwrap(), port);
                let from = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
                let client = UdpSocket::bind(from).unwrap();
                client.connect(to).unwrap(); // takes nothing from other addresses
                client.send(b"question").unwrap();
                let question = receiver.receive().unwrap().next().unwrap();
                send_answer(&mut sender, b"answer", question.source(), Some(question.metadata())).unwrap();
                assert_eq!(client.recv(&mut [0; 16]).unwrap(), 6, "{asked}");
            }
        }
    }
}
