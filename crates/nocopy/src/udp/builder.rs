//! Settings and opening of a socket.

#[cfg_attr(not(feature = "port"), path = "builder/absent.rs")]
mod with_port;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nocopy_proto::UdpChecksum;
use socket2::{Domain, Protocol, Type};

use super::choice;
use super::open_error::{OpenError, setting_error};
use super::settings::{SocketSettings, join_group};
use super::{Method, NonblockingReceiver, NonblockingSender, Receiver, Sender, Socket, kernel, over_port};
use crate::engine::address;
use crate::engine::path::SocketPaths;
use crate::engine::wait::Wait;
use crate::events::Half;
use crate::memory::pool::Pool;
use crate::memory::send_queue::KernelSocket;
use crate::port::PortBuilder;
use crate::sys::udp_send;

/// Bytes of a buffer: the longest message that the kernel delivers or coalesces.
const BUFFER_BYTES: usize = 64 << 10;
const BUFFERS: u32 = 64;

/// Settings of a [`Socket`].
///
/// Lengths are in bytes. Settings that depend on each other:
///
/// * [`port`](Self::port): datagrams are received into the port's frames, so
///   [`receive_pool`](Self::receive_pool) is not used, and groups are joined on its interface, so the
///   interface of [`multicast`](Self::multicast) is not used. Only with a port is [`Method::Xdp`] available.
/// * [`checksum`](Self::checksum): `Offloaded` needs a port with [`PortBuilder::send_metadata`].
/// * [`receive_pool`](Self::receive_pool): with buffers of less than 64 KiB the kernel coalesces no
///   datagrams, and a datagram longer than a buffer [is truncated](super::Datagram::is_truncated).
/// * [`wait`](Self::wait): with [`Wait::Coalesced`], the [`receive_buffer`](Self::receive_buffer) must hold
///   what arrives during a sleep.
/// * [`return_buffers`](Self::return_buffers): [`Sender::completed`](NonblockingSender::completed) returns
///   nothing without it.
/// * [`receive_metadata`](Self::receive_metadata): without it, a kernel socket's
///   [`metadata`](super::Datagram::metadata) has only the segment length.
///
/// ```
/// use nocopy::{Pool, udp::Socket};
/// let pool = Pool::new(16, 4096)?; // each datagram in a buffer of its own
/// let builder = Socket::builder().receive_pool(&pool).receive_metadata(true);
/// let mut socket = builder.bind("127.0.0.1:0")?;
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// client.send_to(&[7; 5000], socket.local_addr()?)?;
/// let datagram = socket.receiver().receive()?.next().expect("a datagram");
/// assert_eq!((datagram.len(), datagram.is_truncated()), (4096, true));
/// assert_eq!(datagram.metadata().destination, Some([127, 0, 0, 1].into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "settings alone make no socket"]
pub struct Builder {
    port: Option<PortBuilder>,
    method: Option<Method>,
    send_pool: Option<Pool>,
    receive_pool: Option<Pool>,
    return_buffers: bool,
    wait: Option<Wait>,
    settings: SocketSettings,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            port: None,
            method: None,
            send_pool: None,
            receive_pool: None,
            return_buffers: false,
            wait: None,
            settings: SocketSettings::default(),
        }
    }

    /// Sends only by this method, instead of the one that measures best.
    ///
    /// ```
    /// use nocopy::udp::{Method, Socket};
    /// let builder = Socket::builder()
    ///     .method(Method::Gso) // no measurements, no zero-copy
    ///     .send_buffer(1 << 20)
    ///     .receive_buffer(1 << 20)
    ///     .hop_limit(16)
    ///     .broadcast(true);
    /// let mut sockets = builder.bind_queues("127.0.0.1:0")?; // without a port it is one socket
    /// let to = sockets[0].local_addr()?;
    /// sockets[0].sender().send_copy_to(b"hello", to)?;
    /// assert_eq!(sockets[0].receiver().receive()?.count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Sends from buffers of this pool (default: its own, of 64 buffers of 64 KiB). Several sockets may share
    /// one.
    pub fn send_pool(mut self, pool: &Pool) -> Self {
        self.send_pool = Some(pool.clone());
        self
    }

    /// Receives into buffers of this pool (default: its own, of 64 buffers of 64 KiB). A port receives into
    /// its frames instead.
    pub fn receive_pool(mut self, pool: &Pool) -> Self {
        self.receive_pool = Some(pool.clone());
        self
    }

    /// Keeps messages whose memory is free, for [`Sender::completed`](NonblockingSender::completed), instead
    /// of returning their buffers to the pool. They accumulate until they are taken. Frames sent by a port
    /// always return to their pool.
    pub fn return_buffers(mut self, on: bool) -> Self {
        self.return_buffers = on;
        self
    }

    /// Bytes that may wait in the kernel to be sent (`SO_SNDBUF`).
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.settings.send_buffer_bytes = Some(bytes);
        self
    }

    /// Bytes that may wait in the kernel to be received (`SO_RCVBUF`); with CAP_NET_ADMIN beyond
    /// `net.core.rmem_max`. If [`stats`](NonblockingReceiver::stats) counts `sk_drops`, ask for more.
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.settings.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Allows broadcasts.
    pub fn broadcast(mut self, on: bool) -> Self {
        self.settings.broadcast = on;
        self
    }

    /// Shares the address with other sockets with this setting (`SO_REUSEADDR`): for several receivers of one
    /// multicast group.
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.settings.reuse_address = on;
        self
    }

    /// How [`Receiver::receive`] waits (default: [`Wait::Interrupt`], or the port's setting). For a kernel
    /// socket, `Spin` repeats the receiving call, `Interrupt` sleeps in it, `Adaptive` first spins and then
    /// sleeps, and `Coalesced` sleeps for a time that follows the measured rate, up to its delay: choose a
    /// [receive buffer](Self::receive_buffer) that holds the datagrams arriving during the sleep.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Requests [what is known](super::Datagram::metadata) about each received datagram from the kernel: ECN,
    /// destination and interface; the time is a [setting](Self::receive_times) of its own. A port reads ECN
    /// and addresses from the headers, without this setting; datagrams that it receives through the kernel
    /// need it.
    ///
    /// ```
    /// use nocopy::udp::{Ecn, Socket};
    /// let mut socket = Socket::builder().receive_metadata(true).bind("0.0.0.0:0")?;
    /// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// client.send_to(b"hello", ("127.0.0.2", socket.local_addr()?.port()))?;
    /// let datagram = socket.receiver().receive()?.next().expect("a datagram");
    /// let metadata = datagram.metadata();
    /// assert_eq!(metadata.ecn, Some(Ecn::NotEct)); // `Ce`: a router on the way had a long queue
    /// assert_eq!(metadata.destination, Some([127, 0, 0, 2].into()));
    /// assert_eq!(metadata.reply_from, metadata.destination);
    /// println!("arrived on interface {:?}", metadata.interface);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn receive_metadata(mut self, on: bool) -> Self {
        self.settings.receive_metadata = on;
        self
    }

    /// Requests the kernel's time of each received datagram (`SO_TIMESTAMPNS`), in its
    /// [metadata](super::Datagram::metadata). While a socket has this setting, the kernel reads the clock for
    /// each packet of the host. A port has times by its own [settings](crate::metadata).
    pub fn receive_times(mut self, on: bool) -> Self {
        self.settings.receive_times = on;
        self
    }

    /// Requests only the destination and interface of each datagram: for the carrier of messages.
    #[cfg(feature = "message")]
    pub(crate) fn local_addresses(mut self, on: bool) -> Self {
        self.settings.local_addresses = on;
        self
    }

    /// Sends datagrams that routers may mark (ECT(0), RFC 3168), and requests only the marks of received
    /// ones: for the carrier of messages.
    #[cfg(feature = "message")]
    pub(crate) fn congestion_marks(mut self, on: bool) -> Self {
        self.settings.congestion_marks = on;
        self
    }

    /// How to set the UDP checksum of sent datagrams (default: it is computed). `Omitted` is for IPv4 only.
    /// `Offloaded` leaves it to the card if the port supports that ([`PortBuilder::send_metadata`]); kernel
    /// sockets always do this if they can.
    pub fn checksum(mut self, checksum: UdpChecksum) -> Self {
        self.settings.checksum = Some(checksum);
        self
    }

    /// TTL or hop limit of datagrams to one host (default: the host's setting).
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.settings.hop_limit = Some(hops);
        self
    }

    /// Also receives from this multicast group, on the interface of [`multicast`](Self::multicast) or,
    /// without one, on the interface that the routing table names; with a port, on its interface. May be
    /// called for several groups.
    ///
    /// ```
    /// use nocopy::udp::Socket;
    /// # use std::time::Duration;
    /// let (loopback, group) = (1, std::net::IpAddr::from([239, 1, 2, 3]));
    /// let builder = Socket::builder()
    ///     .reuse_address(true) // other programs may receive from the group, too
    ///     .multicast(loopback, 1); // by its index, and not beyond this network
    /// let mut socket = builder.group(group).bind("0.0.0.0:0")?;
    /// let to = std::net::SocketAddr::from((group, socket.local_addr()?.port()));
    /// socket.sender().send_copy_to(b"to all", to)?;
    /// let datagram = socket.receiver().receive_timeout(Duration::from_secs(5))?.next().expect("it is a member");
    /// assert_eq!(&datagram[..], b"to all");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(mut self, group: IpAddr) -> Self {
        self.settings.groups.push(group);
        self
    }

    /// The index of the interface for sending to multicast groups and joining them (default: 0, the one that
    /// the routing table names; a port always uses its own), and the TTL or hop limit of datagrams to a group
    /// (the kernel's default is 1: this network only).
    pub fn multicast(mut self, interface: u32, hops: u8) -> Self {
        self.settings.multicast_interface = (interface != 0).then_some(interface);
        self.settings.multicast_hops = Some(hops);
        self
    }

    /// Makes the socket, with this address; port 0 chooses a free one. `[::]` stands for all addresses of
    /// both families. Over a port it must be an address of the port's interface. Of several addresses the
    /// first that can be bound is used.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<Socket, OpenError> {
        address::first_success(address, OpenError::Lookup, |address| self.clone().bind_to(address))
    }

    fn bind_to(mut self, address: SocketAddr) -> Result<Socket, OpenError> {
        match self.port.take() {
            None => self.bind_kernel(address),
            Some(port) => {
                let under = over_port::Socket::open(port, address, &self.settings)?;
                let pool = given_or_new_pool(self.send_pool.clone())?;
                self.socket_over_port(under, &pool)
            }
        }
    }

    /// Makes a socket for each queue of the port's interface, in order, over one area and with one address;
    /// without a port, a single socket.
    ///
    /// The card decides on which queue a datagram arrives ([`Queues`](crate::port::Queues)), so a program
    /// must receive from all of them. It may send by any of them, even frames that another one received. Any
    /// of the sockets may receive datagrams that arrive through the kernel. Only the first sender uses
    /// `MSG_ZEROCOPY`, because the kernel numbers such calls of all senders together; it keeps this right
    /// until all of its memory has returned. The others send without a copy by the port and by io_uring. The
    /// kernel's counts for the address (`sk_drops`, `peer_errors`) are only in the stats of the first socket,
    /// so that a sum over all is right.
    ///
    /// # Errors
    /// See [`OpenError`]; if one cannot be opened, all are closed.
    pub fn bind_queues(self, address: impl ToSocketAddrs) -> Result<Vec<Socket>, OpenError> {
        address::first_success(address, OpenError::Lookup, |address| self.clone().bind_queues_to(address))
    }

    fn bind_queues_to(mut self, address: SocketAddr) -> Result<Vec<Socket>, OpenError> {
        let Some(port) = self.port.take() else { return Ok(vec![self.bind_kernel(address)?]) };
        let under = over_port::Socket::open_queues(port, address, &self.settings)?;
        let pool = given_or_new_pool(self.send_pool.clone())?;
        under.into_iter().map(|under| self.socket_over_port(under, &pool)).collect()
    }

    /// Only the receiving half, for the carrier of messages, which makes its own sending calls; errors of the
    /// network are not reported. One call receives into at most `batch` buffers.
    #[cfg(feature = "message")]
    pub(crate) fn bind_receiver(
        self,
        address: SocketAddr,
        batch: usize,
    ) -> Result<kernel::Receiver, OpenError> {
        let socket = OwnedFd::from(self.bind_socket(address)?);
        self.new_kernel_receiver(Arc::new(socket), batch)
    }

    fn bind_kernel(self, address: SocketAddr) -> Result<Socket, OpenError> {
        self.settings.check_bind_address(address)?;
        let socket = Arc::new(OwnedFd::from(self.bind_socket(address)?));
        udp_send::enable_error_queue(&socket, address.is_ipv6())
            .map_err(setting_error("errors of the network"))?;
        let kernel = KernelSocket::new(Arc::clone(&socket));
        let pool = given_or_new_pool(self.send_pool.clone())?;
        let sender = self.new_sender(Arc::clone(&kernel), pool, None)?;
        let mut receiver = self.new_kernel_receiver(socket, kernel::Receiver::BATCH)?;
        receiver.store_errors_for_sender(kernel);
        receiver.set_wait(self.wait.unwrap_or(Wait::Interrupt));
        let receiver = Receiver(NonblockingReceiver::from_kernel(receiver));
        Ok(Socket { address: None, sender, receiver })
    }

    /// A bound socket with these settings, and nothing else.
    pub(crate) fn bind_socket(&self, address: SocketAddr) -> Result<socket2::Socket, OpenError> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
            .map_err(OpenError::Socket)?;
        self.settings.apply_to_socket(&socket, address.is_ipv6())?;
        let bound = address::bind(&socket, address);
        bound.map_err(|source| OpenError::Bind { address, source })?;
        let interface = self.settings.multicast_interface.unwrap_or(0); // the one that the routing table names
        self.settings.groups.iter().try_for_each(|group| join_group(&socket, *group, interface))?;
        Ok(socket)
    }

    fn new_kernel_receiver(&self, socket: Arc<OwnedFd>, batch: usize) -> Result<kernel::Receiver, OpenError> {
        kernel::Receiver::new(socket, given_or_new_pool(self.receive_pool.clone())?, batch)
            .map_err(setting_error("coalescing"))
    }

    fn new_sender(
        &self,
        socket: Arc<KernelSocket>,
        pool: Pool,
        port: Option<over_port::Sender>,
    ) -> Result<Sender, OpenError> {
        if let (Some(method @ Method::Xdp), None) = (self.method, &port) {
            let source = io::Error::other("no port was given to Builder::port");
            return Err(OpenError::Method { method, source });
        }
        let policy = choice::udp_policy(self.method, port.is_some());
        let paths = SocketPaths::of_socket(&*socket);
        let mut sender = NonblockingSender::new(socket, pool, policy, paths, self.return_buffers);
        sender.copies_over_port = port.is_some() && self.method.is_none_or(|method| method == Method::Xdp);
        sender.port = port.map(Box::new);
        if self.method.is_none_or(Method::is_by_flag)
            && let Err(refused) = sender.queue.allow_zero_copy()
        {
            match self.method {
                Some(method) => return Err(OpenError::Method { method, source: io::Error::other(refused) }),
                None => choice::exclude_zero_copy(&mut sender.policy, refused.why()),
            }
        }
        if let Some(method) = self.method.filter(|method| method.is_by_ring()) {
            sender.open_ring().map_err(|source| OpenError::Method { method, source })?;
        }
        sender.policy.report_as(Half::UdpSender);
        Ok(Sender(sender))
    }
}

fn given_or_new_pool(given: Option<Pool>) -> Result<Pool, OpenError> {
    given.map_or_else(|| Pool::new(BUFFERS, BUFFER_BYTES), Ok).map_err(OpenError::Memory)
}
