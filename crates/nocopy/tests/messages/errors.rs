//! Errors of message endpoints as programs print them: `subject: what failed (ERRNO); cause; what to do`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use nocopy::Port;
use nocopy::message::{Builder, Endpoint, Error};

use crate::common::errors::{ErrorTexts, NO_MEMORY, Refused, can_refuse, with_refused_calls};
use crate::common::{PATIENCE, lab};

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn endpoints_that_cannot_be_opened_say_why() {
    let mut sentences = ErrorTexts::default();
    let mut refused = |refused: Refused, builder: Builder, expected| {
        if !can_refuse(&[refused]) {
            return;
        }
        sentences.expect_text(with_refused_calls(&[refused], || builder.bind(HERE).map(drop)), expected);
    };
    refused(
        Refused::always(libc::SYS_getsockname, libc::EPERM),
        Endpoint::builder(),
        "message endpoint: cannot find out the address of its socket (EPERM); operation not permitted; give one with a port number",
    );
    refused(
        Refused::with(libc::SYS_setsockopt, libc::EINVAL, (2, libc::IP_MTU_DISCOVER)),
        Endpoint::builder(),
        "message endpoint: datagrams cannot be kept from being cut into fragments (EINVAL); invalid argument; use a kernel that supports IP_MTU_DISCOVER",
    );
    refused(
        NO_MEMORY,
        Endpoint::builder(),
        "message endpoint: no memory for packets (ENOMEM); cannot allocate memory; ask for less",
    );
    refused(
        Refused::always(libc::SYS_getrandom, libc::EPERM),
        Endpoint::builder(),
        "message endpoint: no random numbers (EPERM); operation not permitted; run it where getrandom(2) is allowed",
    );
    refused(
        Refused::always(libc::SYS_epoll_create1, libc::EMFILE),
        Endpoint::builder(),
        "message endpoint: no descriptor to wait on (EMFILE); too many open files; raise the limit of open files ('ulimit -n')",
    );
    sentences.expect_text(
        Endpoint::builder().memory(1 << 10).bind(HERE),
        "memory of 1024 B: too little; the windows and the longest message need … B; allow that much, or shorter messages",
    );
    sentences.expect_text(
        Endpoint::builder().datagram_bytes(1).bind(HERE),
        "datagrams of 1: out of range; it is from 1200 to 65507; give such a value",
    );
    let lab = lab!(nocopy_lab::Lab::builder().mtu(1000));
    let (left, address) = (lab.left(), SocketAddr::new(lab.left().ipv4().into(), 0));
    let over_port = Endpoint::builder().port(Port::builder(left.interface()));
    sentences.expect_text(
        left.namespace().run(|| over_port.bind(address)),
        "datagrams of 972 B: too short for messages, and the interface's MTU permits no longer ones; raise the MTU by 228 B",
    );
    sentences.assert_all_matched();
}

/// An endpoint that works until the sender of this is dropped.
fn served(mut endpoint: Endpoint) -> (SocketAddr, Sender<()>) {
    let at = endpoint.local_addr();
    let (running, is_over) = mpsc::channel();
    thread::spawn(move || {
        while is_over.try_recv() == Err(TryRecvError::Empty) {
            endpoint.wait(Duration::from_millis(1)).unwrap();
            while let Some(message) = endpoint.try_receive().unwrap() {
                drop(message);
            }
        }
    });
    (at, running)
}

#[test]
fn peers_that_cannot_be_reached_are_named() {
    let mut sentences = ErrorTexts::default();
    let silent = UdpSocket::bind(HERE).unwrap();
    let to = silent.local_addr().unwrap();
    let short = Duration::from_millis(10);
    let mut endpoint = Endpoint::builder().peers_max(1).bind(HERE).unwrap();
    sentences.expect_text(
        endpoint.connect(to, short),
        &format!("{to}: not connected within 10.0 ms; no answer came; check that an endpoint is bound there, and that no firewall drops UDP"),
    );
    endpoint.start_connect(to).unwrap();
    sentences.expect_text(
        endpoint.start_connect((Ipv4Addr::new(127, 0, 0, 2), 9)),
        "message endpoint: no room for another peer; it has 1, as many as it may; raise peers_max",
    );
    let mut endpoint = Endpoint::bind(HERE).unwrap();
    let calls = [libc::SYS_recvmsg, libc::SYS_recvfrom, libc::SYS_recvmmsg];
    let refused = calls.map(|call| Refused::always(call, libc::ENETDOWN));
    sentences.expect_text(with_refused_calls(&refused, || endpoint.connect(to, short).map(drop)), "message endpoint: the network cannot be used (ENETDOWN); network is down; bring the interface up: 'ip link set dev INTERFACE up'");
    let (to, _running) = served(Endpoint::builder().accept(false).bind(HERE).unwrap());
    sentences.expect_text(
        Endpoint::bind(HERE).unwrap().connect(to, PATIENCE),
        &format!("{to}: not connected; it accepts no more connections; raise peers_max there"),
    );
    sentences.assert_all_matched();
}

#[test]
fn requests_without_a_response_say_why() {
    let mut sentences = ErrorTexts::default();
    // It takes thousands of other messages.
    sentences.expect_text(
        Err::<(), _>(Error::TooManyOthers),
        "request: no response yet; too many other messages came before it; receive them first",
    );
    let (to, _running) = served(Endpoint::builder().max_message_bytes(1000).bind(HERE).unwrap());
    let mut endpoint = Endpoint::bind(HERE).unwrap();
    let peer = endpoint.connect(to, PATIENCE).unwrap();
    sentences.expect_text(
        endpoint.call(vec![0; 100_000], peer, PATIENCE).map(drop),
        "request: not sent; it is longer than 1000 bytes, the most that can be sent here; send it in parts",
    );
    sentences.expect_text(
        endpoint.call(vec![0; 10], peer, Duration::from_millis(10)).map(drop),
        "request: no response within 10.0 ms; the peer has the request, or will get it; ask again only if that does no harm",
    );
    sentences.assert_all_matched();
}
