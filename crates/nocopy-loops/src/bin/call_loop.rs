//! Counts the instructions of calls that the library of `nocopy run --batch-udp` leaves alone.
//! `cargo xtask instructions` runs this under callgrind, with that library preloaded and without, collects
//! only inside the functions named `measured_*`, and divides by the calls. The kernel's work is not counted.
#![allow(missing_docs)]

use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, Write};
use std::net::UdpSocket;

const BATCH: usize = 64;

/// Datagrams that have no run, after which the library leaves their socket alone for 65,536 more.
const WARM_UP: usize = 62_720;

/// Two sizes in turn, so that no two datagrams in a row are equal.
static DATA: [u8; 1400] = [7; 1400];
const SIZES: [usize; 2] = [1400, 1000];

struct SocketAndFile {
    socket: UdpSocket,
    file: File,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    let mut descriptors = open_socket_and_file();
    for (name, work) in [
        ("send-alone", measured_datagram_sends as fn(&mut SocketAndFile)),
        ("write-file", measured_file_writes),
        ("receive-nothing", measured_empty_receives),
        ("open-close", measured_socket_opens),
    ] {
        if which == name || which == "all" {
            if name == "send-alone" {
                (0..WARM_UP).for_each(|at| send_datagram(&descriptors, at));
            }
            (0..batches).for_each(|_| work(&mut descriptors));
            println!("{name}: {batches} batches");
        }
    }
}

/// A socket that sends to itself: what has no room there is dropped, and the call succeeds.
fn open_socket_and_file() -> SocketAndFile {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(socket.local_addr().expect("its address")).expect("itself");
    let file = File::options().write(true).open("/dev/null").expect("/dev/null");
    SocketAndFile { socket, file }
}

fn send_datagram(descriptors: &SocketAndFile, at: usize) {
    let bytes = SIZES[at % SIZES.len()];
    assert_eq!(descriptors.socket.send(&DATA[..bytes]).expect("a datagram"), bytes);
}

#[inline(never)]
fn measured_datagram_sends(descriptors: &mut SocketAndFile) {
    (0..BATCH).for_each(|at| send_datagram(descriptors, at));
}

#[inline(never)]
fn measured_file_writes(descriptors: &mut SocketAndFile) {
    for _ in 0..BATCH {
        assert_eq!(descriptors.file.write(black_box(&DATA)).expect("written"), DATA.len());
    }
}

#[inline(never)]
fn measured_empty_receives(descriptors: &mut SocketAndFile) {
    descriptors.socket.set_nonblocking(true).expect("a mode");
    for _ in 0..BATCH {
        let nothing = descriptors.socket.recv(&mut [0; 4]).map_err(|error| error.kind());
        assert_eq!(nothing, Err(ErrorKind::WouldBlock));
    }
}

#[inline(never)]
fn measured_socket_opens(_: &mut SocketAndFile) {
    for _ in 0..BATCH {
        black_box(UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    }
}
