//! Sends recorded replies from memory as fast as the client reads them: the most that a client could receive.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// The word before a record: its length, and a bit for the last fragment.
const MARK_BYTES: usize = 4;

#[derive(Debug)]
pub(super) struct RecordedReplyServer {
    listener: TcpListener,
    replies: Arc<Vec<u8>>,
}

impl RecordedReplyServer {
    pub(super) fn open(at: Ipv4Addr, file: &Path) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((at, 0))?, replies: Arc::new(fs::read(file)?) })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        self.listener.local_addr().map(|address| address.port())
    }

    /// Sends on each connection from a separate thread.
    pub(super) fn run(self) -> io::Result<()> {
        loop {
            let (stream, _) = self.listener.accept()?;
            stream.set_nodelay(true)?;
            let replies = Arc::clone(&self.replies);
            std::thread::Builder::new().name("replies".into()).spawn(move || {
                // The client ends it when it has seen enough. The time of a thread that has ended would not
                // be counted.
                let _ = send_replies_repeatedly(stream, &replies);
                loop {
                    std::thread::park();
                }
            })?;
        }
    }
}

/// Sends each reply by its own call, as servers do.
fn send_replies_repeatedly(mut stream: TcpStream, replies: &[u8]) -> io::Result<()> {
    loop {
        let mut rest = replies;
        while let Some(mark) = rest.first_chunk() {
            let bytes = MARK_BYTES + (u32::from_be_bytes(*mark) & !(1 << 31)) as usize;
            let (reply, others) = rest.split_at(bytes.min(rest.len()));
            stream.write_all(reply)?;
            rest = others;
        }
    }
}
