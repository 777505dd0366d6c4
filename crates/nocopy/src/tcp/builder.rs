//! Settings and opening of a stream.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Type};

use super::choice;
use super::open_error::OpenError;
use super::receiver;
use super::sender::{RING_SENDS, StreamQueue};
use super::{
    Listener, Method, NonblockingReceiver, NonblockingSender, PublishedMethod, ReceiveMethod, Receiver,
    Sender, Stream,
};
use crate::engine::address;
use crate::engine::path::SocketPaths;
use crate::engine::wait::Wait;
use crate::memory::pool::{BufferCache, Pool};
use crate::memory::send_queue::{KernelSocket, NoZeroCopyReason};
use crate::sys::option;

/// Bytes and number of buffers of the sender's own pool: small enough to stay in the processor's cache.
const BUFFER_BYTES: usize = 64 << 10;
const BUFFERS: u32 = 64;

const LOCAL: &str = "the peer is on this machine: what is sent without a copy is copied when it arrives";

/// Connections that may wait to be accepted (the kernel limits it to `net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Settings of a [`Stream`], or of all streams that a [`Listener`] accepts.
///
/// Lengths are in bytes. Settings that depend on each other:
///
/// * [`send_buffer`](Self::send_buffer), [`receive_buffer`](Self::receive_buffer): set before
///   [`connect`](Self::connect), because they decide the scale of the window; connections inherit a
///   listener's.
/// * [`send_pool`](Self::send_pool): shared by all connections of a listener, and by all streams it is given
///   to. Each stream may then have only a share of the pool in flight without a copy.
/// * [`receive_pool`](Self::receive_pool): [`ReceiveMethod::Recv`] may ask for at most the length of one of
///   its buffers.
/// * [`method`](Self::method): with [`wrap`](Self::wrap), [`Method::ZeroCopy`] is refused.
/// * [`return_buffers`](Self::return_buffers): [`Sender::completed`](NonblockingSender::completed) returns
///   nothing without it.
/// * [`connect_timeout`](Self::connect_timeout): for [`connect`](Self::connect) only.
///
/// ```
/// use nocopy::tcp::{Method, ReceiveMethod, Stream};
/// use std::time::Duration;
/// let listener = Stream::builder().receive_buffer(4 << 20).listen("127.0.0.1:0")?;
/// let builder = Stream::builder()
///     .send_buffer(4 << 20)
///     .method(Method::Plain) // no measurements, no zero-copy
///     .receive_method(ReceiveMethod::Recv { bytes: 64 << 10 })
///     .connect_timeout(Duration::from_secs(5));
/// let stream = builder.connect(listener.local_addr()?)?;
/// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "settings alone make no socket"]
pub struct Builder {
    method: Option<Method>,
    published_method: Option<PublishedMethod>,
    receive_method: Option<ReceiveMethod>,
    wait: Wait,
    send_pool: Option<Pool>,
    receive_pool: Option<Pool>,
    return_buffers: bool,
    send_buffer_bytes: Option<usize>,
    receive_buffer_bytes: Option<usize>,
    connect_timeout: Option<Duration>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            method: None,
            published_method: None,
            receive_method: None,
            wait: Wait::Interrupt,
            send_pool: None,
            receive_pool: None,
            return_buffers: false,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            connect_timeout: None,
        }
    }

    /// Sends owned buffers only by this method, instead of the one measured to be best.
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Sends from buffers of this pool (default: its own, of 64 buffers of 64 KiB). Several streams may share
    /// a pool: each then has at most as many buffers in flight as it leaves in the pool, and copies further
    /// data, so that a peer that reads slowly cannot hold all buffers.
    pub fn send_pool(mut self, pool: &Pool) -> Self {
        self.send_pool = Some(pool.clone());
        self
    }

    /// Sends published data only by this method.
    #[doc(hidden)]
    pub fn published_method(mut self, method: PublishedMethod) -> Self {
        self.published_method = Some(method);
        self
    }

    /// Receives chunks only by this method, instead of the one measured to be best. What is read as a slice
    /// ([`io::Read`](std::io::Read), [`io::BufRead`](std::io::BufRead) and their asynchronous forms) is
    /// always copied.
    pub fn receive_method(mut self, method: ReceiveMethod) -> Self {
        self.receive_method = Some(method);
        self
    }

    /// How the receiving half waits (default: [`Wait::Interrupt`]); see [`Receiver::set_wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Receives into buffers of this pool (default: its own, of 16 buffers of 1 MiB, whose memory is
    /// allocated when used). A waiting receiver holds one buffer, so a pool for several connections needs a
    /// buffer for each, and more for chunks that are kept.
    pub fn receive_pool(mut self, pool: &Pool) -> Self {
        self.receive_pool = Some(pool.clone());
        self
    }

    /// Keeps buffers whose memory is free, for [`Sender::completed`](NonblockingSender::completed), instead
    /// of returning them to their pool. They accumulate until they are taken.
    pub fn return_buffers(mut self, on: bool) -> Self {
        self.return_buffers = on;
        self
    }

    /// Bytes that may wait in the kernel to be sent (`SO_SNDBUF`); by default the kernel adjusts this.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer_bytes = Some(bytes);
        self
    }

    /// Bytes that may wait in the kernel to be received (`SO_RCVBUF`); by default the kernel adjusts this.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// How long connecting to an address may take (default: the kernel's limit, some two minutes).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Connects to that address, or to the first of several that answers.
    ///
    /// # Errors
    /// See [`OpenError`]; that of the last address.
    pub fn connect(self, address: impl ToSocketAddrs) -> Result<Stream, OpenError> {
        address::first_success(address, OpenError::Lookup, |address| self.clone().connect_to(address))
    }

    fn connect_to(self, address: SocketAddr) -> Result<Stream, OpenError> {
        let socket = self.new_socket(address)?;
        // By this call also without a timeout, because signals do not end it.
        let connected =
            socket.connect_timeout(&address.into(), self.connect_timeout.unwrap_or(Duration::MAX));
        connected.map_err(|source| OpenError::Connect { address, source })?;
        self.into_stream(socket.into(), false)
    }

    /// Takes over a connected stream. Use no other handles to it (`try_clone`) from then on: their data would
    /// be mixed in. The stream becomes blocking (`O_NONBLOCK` is cleared) for all handles.
    ///
    /// [`Method::ZeroCopy`] is never used: the kernel numbers the calls of all descriptors of a stream
    /// together, and another part of the program, or another process, may have such a descriptor. Zero-copy
    /// sends use io_uring.
    ///
    /// ```
    /// use nocopy::tcp::{Listener, Stream};
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let connected = std::net::TcpStream::connect(listener.local_addr()?)?;
    /// let mut stream = Stream::builder().wrap(connected)?;
    /// stream.sender().send_copy(b"hello")?;
    /// assert_eq!(listener.accept()?.0.receiver().receive()?.expect("bytes").to_vec(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`OpenError`]. Other handles to the stream remain usable.
    pub fn wrap(self, stream: TcpStream) -> Result<Stream, OpenError> {
        self.wrap_with_settings(stream, true)
    }

    /// Like [`wrap`](Self::wrap), for a stream that has no other user: all methods are available.
    ///
    /// # Errors
    /// See [`OpenError`].
    ///
    /// # Safety
    /// As long as the result exists, neither this nor another process makes a `MSG_ZEROCOPY` call by another
    /// descriptor of the stream, or reads its error queue. (Such a call would shift the numbers by which the
    /// kernel reports free memory.)
    #[doc(hidden)]
    #[allow(unsafe_code)]
    pub unsafe fn wrap_unshared(self, stream: TcpStream) -> Result<Stream, OpenError> {
        self.wrap_with_settings(stream, false)
    }

    /// Listens at that address, or at the first of several that can be bound; port 0 chooses a free one,
    /// `[::]` stands for all addresses of both families.
    /// All connections have these settings. They share the pool to send from. They also share a given pool to
    /// receive into; without one each has its own, whose memory is allocated when used.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn listen(self, address: impl ToSocketAddrs) -> Result<Listener, OpenError> {
        address::first_success(address, OpenError::Lookup, |address| self.clone().listen_at(address))
    }

    fn listen_at(mut self, address: SocketAddr) -> Result<Listener, OpenError> {
        let socket = self.new_socket(address)?;
        let bound = socket.set_reuse_address(true).and_then(|()| address::bind(&socket, address));
        let listens = bound.and_then(|()| socket.listen(BACKLOG));
        listens.map_err(|source| OpenError::Bind { address, source })?;
        let pool = self.send_pool.map_or_else(new_send_pool, Ok).map_err(OpenError::Memory)?;
        self.send_pool = Some(pool);
        Ok(Listener { listener: TcpListener::from(socket), builder: self })
    }

    /// A new socket with these settings. They are made before it connects or listens: the window's scale is
    /// settled then, and accepted connections inherit it with the buffer sizes.
    pub(super) fn new_socket(&self, address: SocketAddr) -> Result<socket2::Socket, OpenError> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(OpenError::Socket)?;
        self.apply_socket_settings(&socket)?;
        Ok(socket)
    }

    /// A stream of a connected socket with these settings.
    fn wrap_with_settings(self, stream: TcpStream, is_shared: bool) -> Result<Stream, OpenError> {
        self.apply_socket_settings(&stream)?;
        self.into_stream(stream.into(), is_shared)
    }

    fn apply_socket_settings(&self, socket: &impl AsFd) -> Result<(), OpenError> {
        let socket = SockRef::from(socket);
        let refused = |setting| move |source| OpenError::Setting { setting, source };
        if let Some(bytes) = self.send_buffer_bytes {
            socket.set_send_buffer_size(bytes).map_err(refused("send buffer"))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes).map_err(refused("receive buffer"))?;
        }
        // The last part of flushed data is sent at once, also if it fills no segment.
        socket.set_tcp_nodelay(true).map_err(refused("no delay"))
    }

    pub(super) fn into_stream(self, socket: OwnedFd, is_shared: bool) -> Result<Stream, OpenError> {
        let socket = Arc::new(socket);
        let mut policy = choice::tcp_policy(self.method);
        let peer = address::peer_addr(&*socket).ok().map(|peer| peer.ip());
        let paths = SocketPaths::of_socket(&*socket);
        if self.method.is_none() && paths.is_local_address(peer) {
            // Not measured: calls look cheap if the copy is made later, and it is reported later still.
            policy.mark_unavailable(Method::ZeroCopy, LOCAL);
            policy.mark_unavailable(Method::UringZeroCopy, LOCAL);
        }
        if let Err(refused) = check_zero_copy(&socket, is_shared) {
            if let Some(method @ Method::ZeroCopy) = self.method {
                return Err(OpenError::Method { method, source: io::Error::other(refused) });
            }
            policy.mark_unavailable(Method::ZeroCopy, refused.why());
        }
        let buffers = buffer_cache(self.receive_pool, receiver::default_receive_pool)?;
        let receiver = NonblockingReceiver::new(Arc::clone(&socket), self.receive_method, buffers)?;
        let mut receiver = Receiver(receiver);
        receiver.set_wait(self.wait);
        let buffers = buffer_cache(self.send_pool, new_send_pool)?;
        let mut queue =
            StreamQueue::new(KernelSocket::new(Arc::clone(&socket)), buffers, self.return_buffers);
        if let Some(method @ Method::UringZeroCopy) = self.method {
            let refused = |refused| OpenError::Method { method, source: io::Error::other(refused) };
            queue.open_ring(RING_SENDS).map_err(refused)?;
        }
        // Last: a sender that is dropped ends the stream, of which the caller may have another descriptor.
        let mut sender = NonblockingSender::new(queue, policy, paths, peer, self.published_method);
        if is_shared {
            sender.allow_other_senders().expect("made by this process");
        }
        Ok(Stream { socket, sender: Sender(sender), receiver })
    }
}

impl Listener {
    /// Accepts the next connection, with the settings of the listener; waits for one, unless the listener was
    /// made non-blocking.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn accept(&self) -> Result<(Stream, SocketAddr), OpenError> {
        let (stream, from) = self.accept_tcp()?;
        self.wrap_accepted(stream).map(|stream| (stream, from))
    }

    pub(crate) fn accept_tcp(&self) -> Result<(TcpStream, SocketAddr), OpenError> {
        self.listener.accept().map_err(OpenError::Accept)
    }

    /// Makes a [`Stream`] with the settings of the listener.
    pub(crate) fn wrap_accepted(&self, stream: TcpStream) -> Result<Stream, OpenError> {
        self.builder.clone().wrap_with_settings(stream, false)
    }
}

/// Whether the kernel accepts `MSG_ZEROCOPY` calls, and only we make them, so that the first has number 0.
fn check_zero_copy(socket: &OwnedFd, is_shared: bool) -> Result<(), NoZeroCopyReason> {
    match option::allows_zero_copy(socket).map_err(NoZeroCopyReason::Kernel)? {
        true => Err(NoZeroCopyReason::Used),
        false if is_shared => Err(NoZeroCopyReason::Shared),
        false => Ok(()),
    }
}

fn new_send_pool() -> io::Result<Pool> {
    Pool::new(BUFFERS, BUFFER_BYTES)
}

/// The buffers of a half: from the given pool, or from its own.
fn buffer_cache(given: Option<Pool>, own: fn() -> io::Result<Pool>) -> Result<BufferCache, OpenError> {
    let cache =
        given.map_or_else(|| own().map(BufferCache::new), |pool| Ok(BufferCache::without_buffers(pool)));
    cache.map_err(OpenError::Memory)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_refused_stream_stays_open_for_another_descriptor() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let builder = Stream::builder().receive_method(ReceiveMethod::Recv { bytes: u32::MAX });
        let refused = builder.wrap(stream.try_clone().unwrap()).unwrap_err();
        assert!(matches!(refused, OpenError::ChunkLength { .. }), "{refused}");
        stream.write_all(b"as before").unwrap();
        drop(stream);
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"as before");
    }

    #[test]
    fn a_stream_with_so_zerocopy_already_set_is_copied() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let used = || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            option::allow_zero_copy(&stream).unwrap();
            stream
        };
        let refused = Stream::builder().method(Method::ZeroCopy).wrap(used()).unwrap_err();
        assert!(refused.to_string().contains("SO_ZEROCOPY is set"), "{refused}");
        assert!(Stream::builder().method(Method::Plain).wrap(used()).is_ok());
        let mut socket = Stream::builder().wrap(used()).unwrap();
        assert!(socket.sender().explain().to_string().contains("other descriptors"));
    }
}
