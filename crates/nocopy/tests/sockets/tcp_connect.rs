//! Connecting continues after signals.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy::tcp::Stream;
use nocopy_lab::patience::wait_until;

use crate::common::calls::{POLL, this_thread_id, wait_until_thread_is_in_call};

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// A handler without `SA_RESTART`, as interpreters install them.
#[allow(unsafe_code)]
fn install_interrupting_handler(signal: i32) {
    extern "C" fn count_signal(_: i32) {
        HANDLED.fetch_add(1, Relaxed);
    }
    // SAFETY: all zeroes are a value of the type; the handler only adds to a number, so it may run at any
    // time.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as extern "C" fn(i32) as libc::sighandler_t;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

/// Connections that wait to be accepted, and how many the listener allows.
#[allow(unsafe_code)]
fn accept_queue_length(listener: &TcpListener) -> (u32, u32) {
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: all zeroes are a value of the type; the kernel writes at most so many bytes to it.
    let (result, info) = unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let (socket, place) = (listener.as_raw_fd(), (&raw mut info).cast());
        (libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut bytes), info)
    };
    assert_eq!(result, 0);
    (info.tcpi_unacked, info.tcpi_sacked) // `tcp_get_info` of net/ipv4/tcp.c, for listeners
}

/// A listener with as many waiting connections as it allows: it answers no more for now.
#[allow(unsafe_code)]
fn listener_with_full_queue() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: no memory.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let mut streams = Vec::new();
    // It accepts one more than its limit.
    while accept_queue_length(&listener) < (1, 0) {
        let before = accept_queue_length(&listener).0;
        streams.push(TcpStream::connect(address).unwrap());
        wait_until("queued", || accept_queue_length(&listener).0 > before);
    }
    assert_eq!(accept_queue_length(&listener), (1, 0));
    (listener, streams)
}

#[test]
#[allow(unsafe_code)]
fn signals_do_not_interrupt_connecting() {
    const SIGNALS: usize = 20;
    install_interrupting_handler(libc::SIGUSR2);
    let (listener, waiting) = listener_with_full_queue();
    let address = listener.local_addr().unwrap();
    // SAFETY: always succeeds.
    let (here, connecting) = (unsafe { libc::pthread_self() }, this_thread_id());
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_over);
    let signals = thread::spawn(move || {
        for number in 1..=SIGNALS {
            assert!(wait_until_thread_is_in_call(connecting, POLL), "it waits for the connection");
            // SAFETY: that thread waits for this one before it ends.
            unsafe { libc::pthread_kill(here, libc::SIGUSR2) };
            wait_until("handled", || HANDLED.load(Relaxed) == number);
        }
        listener.set_nonblocking(true).unwrap();
        while !stop.load(Relaxed) {
            // The kernel tries again after a second, and then finds room.
            drop(listener.accept());
            thread::sleep(Duration::from_millis(5));
        }
    });
    let connected = Stream::connect(address);
    is_over.store(true, Relaxed);
    signals.join().unwrap();
    connected.unwrap();
    assert_eq!(HANDLED.load(Relaxed), SIGNALS);
    drop(waiting);
}
