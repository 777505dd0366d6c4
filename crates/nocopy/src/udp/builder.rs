//! How a socket is made.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Type};

use super::choice::Chooser;
use super::multicast::Multicast;
use super::{Method, Receiver, Sender, Socket, over_port};
use crate::engine::address;
use crate::engine::path::Paths;
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::pool::Pool;
use crate::sys::{udp_receive, udp_send};

/// Bytes of a buffer: the longest message the kernel takes or joins.
const BUFFER_BYTES: usize = 64 << 10;
const BUFFERS: u32 = 64;

/// Settings of a [`Socket`].
#[derive(Debug, Clone)]
#[must_use = "settings alone make no socket"]
pub struct Builder {
    method: Option<Method>,
    send_pool: Option<Pool>,
    receive_pool: Option<Pool>,
    return_buffers: bool,
    send_buffer_bytes: Option<usize>,
    receive_buffer_bytes: Option<usize>,
    broadcast: bool,
    reuse_address: bool,
    receive_batch: usize,
    local_addresses: bool,
    congestion_marks: bool,
    multicast: Multicast,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel makes none.
    #[error("no UDP socket ({0}); look at 'ulimit -n' and the sandbox this process runs in")]
    Socket(#[source] io::Error),
    /// The address is not this host's, or taken.
    #[error("{address}: not bound ({source}): {}", bind_advice(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A setting was refused.
    #[error("{setting}: refused ({source}); leave it out, or use a kernel that knows it")]
    Setting {
        /// Which.
        setting: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The method asked for is not to be had.
    #[error("{method}: not to be had here ({source}); leave the choice to the policy")]
    Method {
        /// Which.
        method: Method,
        /// The reason.
        source: io::Error,
    },
    /// No memory for buffers.
    #[error("no memory for buffers ({0}); ask for fewer")]
    Memory(#[source] io::Error),
}

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has it; see 'ss -ulnp', or take port 0",
        io::ErrorKind::AddrNotAvailable => "it is no address of this host; see 'ip address'",
        io::ErrorKind::PermissionDenied => "ports under 1024 need CAP_NET_BIND_SERVICE",
        _ => "see 'ip address'",
    }
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            method: None,
            send_pool: None,
            receive_pool: None,
            return_buffers: false,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            broadcast: false,
            reuse_address: false,
            receive_batch: Receiver::BATCH,
            local_addresses: false,
            congestion_marks: false,
            multicast: Multicast::default(),
        }
    }

    /// Sends by this method only, instead of the one that is measured to be best.
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Sends from buffers of this pool (default: one of its own, of 64 buffers of 64 KiB). Several sockets may share one.
    pub fn send_pool(mut self, pool: &Pool) -> Self {
        self.send_pool = Some(pool.clone());
        self
    }

    /// Receives into buffers of this pool (default: one of its own, of 64 buffers of 64 KiB).
    pub fn receive_pool(mut self, pool: &Pool) -> Self {
        self.receive_pool = Some(pool.clone());
        self
    }

    /// Hands messages whose memory is free to [`Sender::completed`], instead of sending their buffers home. They pile up there until
    /// they are taken.
    pub fn return_buffers(mut self, on: bool) -> Self {
        self.return_buffers = on;
        self
    }

    /// Bytes that may wait in the kernel to be sent (`SO_SNDBUF`).
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer_bytes = Some(bytes);
        self
    }

    /// Bytes that may wait in the kernel to be received (`SO_RCVBUF`); with CAP_NET_ADMIN beyond `net.core.rmem_max`.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Allows broadcasts.
    pub fn broadcast(mut self, on: bool) -> Self {
        self.broadcast = on;
        self
    }

    /// Shares the address with other sockets that do so too (`SO_REUSEADDR`): several receivers of one multicast group.
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = on;
        self
    }

    /// How many buffers one call may receive into (default: 16). The receiver keeps as many of its pool to itself.
    pub fn receive_batch(mut self, buffers: usize) -> Self {
        self.receive_batch = buffers;
        self
    }

    /// Has the kernel tell of each datagram [where it was sent to](super::Run::local), and by which interface it came.
    pub fn local_addresses(mut self, on: bool) -> Self {
        self.local_addresses = on;
        self
    }

    /// Sends what routers may mark instead of dropping it where queues are long (ECT(0), RFC 3168), and has the kernel tell of
    /// [marks](super::Run::is_congested). Only for who answers them by sending less.
    pub fn congestion_marks(mut self, on: bool) -> Self {
        self.congestion_marks = on;
        self
    }

    /// Sends what is for a multicast group by the interface of this index, instead of the one that the routing table says.
    pub fn multicast_interface(mut self, index: u32) -> Self {
        self.multicast.interface = Some(index);
        self
    }

    /// How many routers may pass on what is sent to a group, and one more (TTL, hop limit; the kernel's default is 1: this network only).
    pub fn multicast_hops(mut self, hops: u32) -> Self {
        self.multicast.hops = Some(hops);
        self
    }

    /// Whether receivers on this host get what is sent to their group, too (the kernel's default: they do).
    pub fn multicast_to_this_host(mut self, on: bool) -> Self {
        self.multicast.to_this_host = Some(on);
        self
    }

    /// Makes the socket, with this address; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(self, address: SocketAddr) -> Result<Socket, OpenError> {
        let socket = Arc::new(OwnedFd::from(self.bound(address)?));
        let kernel = KernelSocket::new(Arc::clone(&socket));
        let sender = self.sender(kernel, address.is_ipv6(), false)?;
        let receiver = Self::receiver(Arc::clone(&socket), self.receive_pool, self.receive_batch)?;
        Ok(Socket { socket, sender, receiver })
    }

    /// The receiving half alone, for who sends by calls of its own; errors of the network are not reported.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn bind_receiver(self, address: SocketAddr) -> Result<Receiver, OpenError> {
        let socket = OwnedFd::from(self.bound(address)?);
        Self::receiver(Arc::new(socket), self.receive_pool, self.receive_batch)
    }

    fn bound(&self, address: SocketAddr) -> Result<socket2::Socket, OpenError> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
            .map_err(OpenError::Socket)?;
        self.set(&socket, address.is_ipv6())?;
        socket.bind(&address.into()).map_err(|source| OpenError::Bind { address, source })?;
        Ok(socket)
    }

    fn receiver(socket: Arc<OwnedFd>, pool: Option<Pool>, batch: usize) -> Result<Receiver, OpenError> {
        Receiver::new(socket, own_or(pool)?, batch)
            .map_err(|source| OpenError::Setting { setting: "coalescing", source })
    }

    /// Makes a sender that has a port as one more way, and its address: that of the port's own ordinary socket, which the
    /// kernel's ways go by. Frames of the port ([`Sender::frame`]) go over it without a copy, other memory is copied into
    /// frames. It sends to addresses; it is not connected.
    ///
    /// Of senders that share a socket, over ports on [several queues](over_port::Socket::open_queues), only the first has the methods by
    /// `MSG_ZEROCOPY`, since the kernel numbers such calls of all of them together; it has them until all of its memory is back. The
    /// others send without a copy by the port and by io_uring.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn over(self, port: over_port::Sender) -> Result<Sender, OpenError> {
        let mut sender = self.sender(Arc::clone(port.kernel_socket()), port.is_ipv6(), true)?;
        sender.set_port(port);
        Ok(sender)
    }

    fn set(&self, socket: &socket2::Socket, is_ipv6: bool) -> Result<(), OpenError> {
        let refused = |setting| move |source| OpenError::Setting { setting, source };
        if self.broadcast {
            socket.set_broadcast(true).map_err(refused("broadcast"))?;
        }
        if self.reuse_address {
            socket.set_reuse_address(true).map_err(refused("reuse address"))?;
        }
        if let Some(bytes) = self.send_buffer_bytes {
            socket.set_send_buffer_size(bytes).map_err(refused("send buffer"))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            // Beyond the limit for all, if this process may; else up to it.
            if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
                socket.set_recv_buffer_size(bytes).map_err(refused("receive buffer"))?;
            }
        }
        if self.local_addresses {
            udp_receive::tell_local_address(socket, is_ipv6).map_err(refused("local addresses"))?;
        }
        if self.congestion_marks {
            udp_receive::use_congestion_marks(socket, is_ipv6).map_err(refused("congestion marks"))?;
        }
        let refused = |(setting, source)| OpenError::Setting { setting, source };
        self.multicast.set(socket, is_ipv6).map_err(refused)
    }

    fn sender(&self, socket: Arc<KernelSocket>, is_ipv6: bool, has_port: bool) -> Result<Sender, OpenError> {
        if let (Some(method @ Method::Xdp), false) = (self.method, has_port) {
            return Err(OpenError::Method {
                method,
                source: io::Error::other("no port was given: see Builder::over"),
            });
        }
        udp_send::report_errors(&*socket, is_ipv6)
            .map_err(|source| OpenError::Setting { setting: "errors of the network", source })?;
        let chooser = Chooser::new(self.method, has_port);
        let local = address::local(&*socket).ok();
        let paths = Paths::of(&*socket, local.map(|local| local.ip()));
        let pool = own_or(self.send_pool.clone())?;
        let mut sender = Sender::new(socket, pool, chooser, paths, self.return_buffers);
        if self.method.is_none_or(Method::is_by_flag)
            && let Err(refused) = sender.allow_zero_copy()
        {
            match self.method {
                Some(method) => return Err(OpenError::Method { method, source: io::Error::other(refused) }),
                None => sender.without_zero_copy(refused.why()),
            }
        }
        if let Some(method) = self.method.filter(|method| method.is_by_ring()) {
            sender.open_ring().map_err(|source| OpenError::Method { method, source })?;
        }
        Ok(sender)
    }
}

fn own_or(given: Option<Pool>) -> Result<Pool, OpenError> {
    given.map_or_else(|| Pool::new(BUFFERS, BUFFER_BYTES), Ok).map_err(OpenError::Memory)
}
