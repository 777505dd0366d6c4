//! Sentences of errors that tests cannot provoke on this machine: other kernels, drivers and cards report
//! them. Each error is made here by hand. All others are provoked, most of them in `tests/*/errors.rs`.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use nocopy_proto::filter::InvalidProgram;

use crate::engine::route::RouteError;
use crate::facts::metadata::Unsupported;

use crate::port::xdp::KernelVersion;
use crate::port::{Mode, OpenError, ToHostError, xdp};
use crate::sys::uring_send::UringError;
use crate::{capture, udp};

fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn interface_name() -> String {
    "nc0".into()
}

#[test]
fn errors_that_tests_cannot_provoke_follow_the_error_format() {
    let to = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let version = KernelVersion(5, 4);
    let sentences: &[(Box<dyn std::error::Error>, &str)] = &[
        (
            Box::new(RouteError::Unreadable { to, source: io::ErrorKind::InvalidData.into() }),
            "10.0.0.1: the kernel's route names no interface; invalid data; this is a fault of nocopy or the kernel: please report it with the output of 'ip route get 10.0.0.1'",
        ),
        (
            Box::new(RouteError::System { operation: "look up a neighbour", source: os_error(libc::EPERM) }),
            "routes: cannot look up a neighbour (EPERM); operation not permitted; run it where netlink sockets are allowed",
        ),
        (
            Box::new(UringError::TurnedOff { setting: 2, source: os_error(libc::EPERM) }),
            "io_uring: turned off; kernel.io_uring_disabled is 2; 'sysctl -w kernel.io_uring_disabled=0' turns it on",
        ),
        (
            Box::new(UringError::TooOld(os_error(libc::EINVAL))),
            "io_uring: no zero-copy sends; this kernel does not report whether they copied; use Linux 6.2 or newer, built with io_uring",
        ),
        (
            Box::new(udp::OpenError::Interface {
                interface: interface_name(),
                source: os_error(libc::ENODEV),
            }),
            "nc0: not found (ENODEV); no such device; use a port on an interface of this network namespace",
        ),
        (
            Box::new(OpenError::NoCarrier { interface: interface_name(), after_attach: true }),
            "nc0: no carrier since XDP was attached (some drivers reset the link); nothing is connected, or the other end is down; check both",
        ),
        (
            Box::new(OpenError::Filter {
                source: Box::new(ToHostError::Gone { interface: interface_name() }),
            }),
            "filter: cannot run in user space; packets that do not match could not be returned to the host; nc0: not handed to the host; the interface was removed; open a port on another one",
        ),
        (
            Box::new(xdp::Error::Kernel {
                operation: "load an XDP program",
                running: version,
                needed: KernelVersion(5, 9),
            }),
            "XDP: cannot load an XDP program; Linux 5.4 is too old; use Linux 5.9 or newer",
        ),
        (
            Box::new(xdp::Error::Verifier { log: "R0 !read_ok".into(), source: os_error(libc::EACCES) }),
            "XDP: the kernel's verifier refused the program (EACCES); permission denied; R0 !read_ok; please report this",
        ),
        (
            Box::new(xdp::Error::Hints { source: Unsupported::Refused }),
            "XDP program: cannot read metadata of packets from the driver; the kernel refused the XDP program that asks the driver for it; 'nocopy doctor' shows what the driver offers",
        ),
        (
            Box::new(xdp::Error::NoNative {
                interface: interface_name(),
                source: os_error(libc::EOPNOTSUPP),
            }),
            "nc0: native XDP is not available; its driver lacks it; use generic mode, which copies",
        ),
        (
            Box::new(Unsupported::Kernel(KernelVersion(6, 3))),
            "this kernel does not offer it; use Linux 6.3 or newer",
        ),
        (
            Box::new(Unsupported::Driver),
            "the interface's driver does not offer it; do it in software, or use another card",
        ),
        (
            Box::new(Unsupported::Mode(Mode::Memory)),
            "mode 'memory' has none; do it in software, or open the port in another mode",
        ),
        (Box::new(Unsupported::Absent), "this packet has none; others of the port may"),
        (
            Box::new(Unsupported::OtherProgram),
            "the interface's program was attached by another port, which did not ask for it, or by another process; open the first port with the same settings, too",
        ),
        (
            Box::new(capture::OpenError::Filter {
                interface: interface_name(),
                source: InvalidProgram::NoSlotLeft { index: 3 },
            }),
            "nc0: the filter cannot be used on a packet socket; instruction 3 cannot be rewritten to read VLAN tags; it needs a scratch slot, and all 16 are in use; free one",
        ),
    ];
    let wrong = sentences.iter().filter(|(error, expected)| error.to_string() != *expected);
    let wrong: Vec<_> = wrong.map(|(error, _)| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
