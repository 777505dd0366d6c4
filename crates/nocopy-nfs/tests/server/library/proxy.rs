//! A proxy to the server that cuts each connection after some bytes, wherever in a message that is.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

pub(super) struct InterruptingProxy {
    pub(super) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl InterruptingProxy {
    /// Connections number `n` has `bytes(n)` in both directions together before it is cut; `None`: it lasts.
    pub(super) fn start(to: SocketAddr, bytes: impl Fn(usize) -> Option<i64> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counting, ending) = (Arc::clone(&accepted), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if ending.load(Ordering::SeqCst) {
                    return;
                }
                let number = counting.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(to) else { continue };
                let left = Arc::new(AtomicI64::new(bytes(number).unwrap_or(i64::MAX)));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let left = Arc::clone(&left);
                    std::thread::spawn(move || forward_until_cut(from, to, &left));
                }
            }
        });
        Self { address, accepted, is_over, thread: Some(thread) }
    }

    pub(super) fn accepted_connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn forward_until_cut(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64) {
    let mut buffer = vec![0; 10_000];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let before = left.fetch_sub(count as i64, Ordering::SeqCst);
        let carried = before.clamp(0, count as i64) as usize;
        if to.write_all(&buffer[..carried]).is_err() || carried < count {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for InterruptingProxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
