//! The receiving half of one connection.

use std::io;
use std::net::TcpStream;

use nocopy::pool::Pool;
use nocopy::tcp::{ReceiveMethod, Stream};

/// One buffer is written while the next is filled.
const BUFFERS: u32 = 2;

pub(super) fn open_stream(stream: TcpStream, method: Option<ReceiveMethod>) -> io::Result<Stream> {
    let mut builder = Stream::builder();
    if let Some(method) = method {
        builder = builder.receive_method(method);
    }
    if let Some(ReceiveMethod::Recv { bytes }) = method {
        builder = builder.receive_pool(&Pool::new(BUFFERS, bytes as usize)?);
    }
    builder.wrap(stream).map_err(io::Error::other)
}

/// The method used and why, in lines; and if pages were to be mapped, why some were not.
pub(super) fn explanation_lines(stream: &mut Stream) -> Vec<String> {
    let text = stream.receiver().explain().to_string();
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}
