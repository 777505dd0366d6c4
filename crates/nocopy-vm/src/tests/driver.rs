use std::net::UdpSocket;
use std::time::Duration;

use nocopy_lab::End;

use crate::guest::Guest;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "the interfaces are the driver's, wired to each other, and the kernel's own sockets reach across",
    on: &[Topology::Igb, Topology::Virtio],
    kernel: Kernel::Newest,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    // That they are the driver's is how the guest found them: by sysfs, before they were given to the lab.
    let (left, right) = (bind(guest.lab().left())?, bind(guest.lab().right())?);
    let mut bytes = [0; 16];
    left.send_to(b"ping", right.local_addr()?)?;
    let (length, from) = right.recv_from(&mut bytes)?;
    assert_eq!((&bytes[..length], from), (&b"ping"[..], left.local_addr()?));
    right.send_to(b"pong", from)?;
    let length = left.recv(&mut bytes)?;
    assert_eq!(&bytes[..length], b"pong");
    for end in guest.ends() {
        assert!(end.has_carrier()?);
    }
    Ok(())
}

fn bind(end: &End) -> std::io::Result<UdpSocket> {
    let socket = end.namespace().run(|| UdpSocket::bind((end.ipv4(), 7000)))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    Ok(socket)
}
