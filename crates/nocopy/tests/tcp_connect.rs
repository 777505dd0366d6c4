//! Connecting goes on whatever signals come in between.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy::socket::tcp::Socket;

/// A handler that does not ask for calls to go on behind it (`SA_RESTART`), as interpreters set them.
#[allow(unsafe_code)]
fn interrupts_calls(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all zeroes are a value of the type; the handler does nothing, so it may run at any time.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as libc::sighandler_t;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(result, 0);
}

/// A listener with as many connections that nobody accepts as it takes: it answers no more for now.
#[allow(unsafe_code)]
fn full() -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: no memory.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let patience = Duration::from_millis(100);
    let waiting = (0..10).map_while(|_| TcpStream::connect_timeout(&address, patience).ok()).collect();
    (listener, waiting)
}

#[test]
#[allow(unsafe_code)]
fn a_signal_does_not_end_it() {
    interrupts_calls(libc::SIGUSR2);
    let (listener, waiting) = full();
    let address = listener.local_addr().unwrap();
    // SAFETY: always succeeds.
    let here = unsafe { libc::pthread_self() };
    let is_over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&is_over);
    let signals = thread::spawn(move || {
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            // SAFETY: that thread waits for this one before it ends.
            unsafe { libc::pthread_kill(here, libc::SIGUSR2) };
        }
        listener.set_nonblocking(true).unwrap();
        while !stop.load(Relaxed) {
            // The kernel tries again after a second, and finds room.
            drop(listener.accept());
            thread::sleep(Duration::from_millis(5));
        }
    });
    let connected = Socket::connect(address);
    is_over.store(true, Relaxed);
    signals.join().unwrap();
    connected.unwrap();
    drop(waiting);
}
