//! The modes of AF_XDP: socket, program, binding.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, KernelRingFeatures, ToHostContext};
use super::bound_socket::BoundXdpSocket;
use super::builder::PortTuning;
use super::drivers;
use super::error::native_refusal_reason;
use super::granted::GrantedPortParts;
use super::host_path::HostPath;
use super::ladder::{ModeOrder, OpenStep};
use super::redirect::{self, RedirectProgram};
use super::user_filter::{UnmatchedDestination, UserFilter};
use super::{
    FilterPlace, Mode, OpenError, Port, PortBuilder, Refusal, SharedPort, Statistics, assemble_port,
};
use crate::facts::features;
use crate::facts::kernel::KernelVersion;
use crate::memory::area::{Area, PoolDirection};
use crate::port::xdp::Attach;
use crate::sys::capability;
use crate::sys::interface::{Interface, InterfaceError, PromiscuousGuard};
use crate::sys::netdev::XdpFeatures;
use crate::sys::xsk::{PortRings, TxKick, XskBinding, XskSocket};

/// How often to check whether the kernel has released a queue whose socket was just closed. A kernel worker
/// releases it, which stalls with the machine, so checks are counted, not time.
const RELEASE_ATTEMPTS: u32 = 500;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The most frames of one packet in copy mode: as many as a socket buffer has fragments (`MAX_SKB_FRAGS` of
/// the kernel's default configuration), or one more if the driver accepts a linear part (`xsk_build_skb`).
pub(super) const CHAIN_FRAMES_MAX: usize = 17;

/// A bound AF_XDP socket, and the program that feeds it.
#[derive(Debug)]
pub(super) struct XdpBackend {
    redirect: Arc<RedirectProgram>,
    queue: u32,
    bound: BoundXdpSocket,
    /// The handle for returning packets, if it was prepared while the process had privileges.
    host_path: Option<HostPath>,
    _promiscuous: Option<PromiscuousGuard>,
}

impl Backend for XdpBackend {
    fn statistics(&self) -> io::Result<Statistics> {
        self.bound.statistics()
    }

    fn kick_tx(&self) -> io::Result<TxKick> {
        self.bound.kick_tx()
    }

    fn kick_rx(&self) -> io::Result<()> {
        match self.bound.socket.kick_rx() {
            Err(error) if self.bound.is_device_resetting(&error) => Ok(()),
            done => done,
        }
    }

    // Only this call checks the interface: poll and epoll never report that it is down or removed.
    fn check_alive(&self) -> io::Result<()> {
        self.kick_rx()
    }

    fn kernel_ring_features(&self) -> Option<KernelRingFeatures> {
        self.bound.kernel_ring_features()
    }

    fn to_host_context(&self) -> Option<ToHostContext<'_>> {
        let Self { redirect, bound, host_path, .. } = self;
        Some(ToHostContext { redirect, query: &bound.query, host_path: host_path.as_ref() })
    }

    fn leave_packets_to_host(&self) -> bool {
        self.redirect.clear_queue(self.queue)
    }

    fn stop_receiving(&self) -> bool {
        self.leave_packets_to_host() && redirect::wait_for_running_programs()
    }
}

impl AsFd for XdpBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bound.as_fd()
    }
}

/// The AF_XDP modes as steps of the ladder, with the state that one step leaves for the next.
#[derive(Default)]
pub(super) struct XdpModeAttempts {
    socket: Option<(XskSocket, PortRings)>,
    /// The program of the previous step.
    redirect: Option<Arc<RedirectProgram>>,
    pub(super) mode: Option<Mode>,
    /// The socket made by another process, until it is used.
    granted_socket: Option<XskSocket>,
    granted: Option<GrantedPortParts>,
}

/// A socket bound in a mode that works.
pub(super) struct OpenedSocket {
    socket: XskSocket,
    rings: PortRings,
    redirect: Arc<RedirectProgram>,
    mode: Mode,
    granted: Option<GrantedPortParts>,
}

impl XdpModeAttempts {
    pub(super) fn with_grant(grant: Option<(XskSocket, GrantedPortParts)>) -> Self {
        let (granted_socket, granted) = grant.unzip();
        Self { granted_socket, granted, ..Self::default() }
    }

    /// Tries a mode. The driver's refusal of this mode is the inner error, an error for all modes the outer
    /// one.
    pub(super) fn try_mode(
        &mut self,
        settings: &PortBuilder,
        interface: &Interface,
        area: &Area,
        mode: Mode,
    ) -> Result<Result<OpenedSocket, Refusal>, OpenError> {
        self.mode = Some(mode);
        let refuse = |step, reason| Ok(Err(settings.refusal_at_step(interface, mode, step, reason)));
        if mode == Mode::XdpZeroCopy
            && !settings.multi_buffer
            && PortBuilder::zero_copy_frame_bytes(interface, area.config().headroom_bytes)
                > area.config().frame_bytes
            && !interface.loopback
        {
            return refuse(
                OpenStep::Frames { bytes: area.config().frame_bytes },
                spread_packets_error(interface),
            );
        }
        if !settings.only_sends() && !drivers::receives_in_mode(interface.driver.as_deref(), mode) {
            return refuse(OpenStep::Members, member_drivers_error(interface));
        }
        // Only a granted socket is used, and it is registered once.
        let requests = match &self.granted {
            Some(_) => settings.send_metadata,
            None => settings.registers_requests(interface, mode),
        };
        let made = self.socket.take().filter(|(socket, _)| socket.asked_for_requests == requests);
        let (mut socket, mut rings) = match made {
            Some(made) => made,
            None => settings.socket_with_rings(self.granted_socket.take(), area, requests)?,
        };
        let at = if mode == Mode::XdpCopyGeneric { Attach::Generic } else { Attach::Native };
        // An interface runs its program at one place only.
        let reused = self.redirect.take().filter(|redirect| redirect.recipe.at == at);
        let attached = match (reused, &self.granted) {
            (Some(redirect), _) => Ok(redirect),
            (None, Some(granted)) => granted.redirect_at(at),
            (None, None) => match RedirectProgram::on_interface(interface, at, settings) {
                Ok(redirect) => Ok(redirect),
                Err(error) => Err(native_refusal_reason(at, error)?),
            },
        };
        let redirect = match attached {
            Ok(redirect) => redirect,
            Err(reason) => {
                self.socket = Some((socket, rings));
                return refuse(OpenStep::Attach, reason);
            }
        };
        let zero_copy = mode == Mode::XdpZeroCopy;
        let mut bound = settings.bind_socket(interface, &socket, zero_copy)?;
        let unsupported = |error: &io::Error| error.raw_os_error() == Some(libc::EOPNOTSUPP);
        if bound.as_ref().is_err_and(unsupported) && socket.takes_requests && self.granted.is_none() {
            // Some drivers' packets cannot carry requests in any mode (virtio_net, `IFF_TX_SKB_NO_LINEAR`); a
            // port works without.
            (socket, rings) = settings.socket_with_rings(None, area, false)?;
            bound = settings.bind_socket(interface, &socket, zero_copy)?;
        }
        match bound {
            Ok(()) => {
                let mode = settings.reported_mode(&socket, at)?;
                if mode == Mode::XdpZeroCopy
                    && !settings.is_zero_copy_proven(interface, area, &socket, &mut rings)?
                {
                    let refusal =
                        settings.refusal_at_step(interface, mode, OpenStep::Proof, proof_timeout_error());
                    // The socket cannot be bound again: the next step makes another. Only an opener could
                    // make another granted one.
                    self.redirect = Some(redirect);
                    let stuck = self.granted.is_some();
                    return if stuck { Err(settings.no_mode_error(vec![refusal])) } else { Ok(Err(refusal)) };
                }
                Ok(Ok(OpenedSocket { socket, rings, redirect, mode, granted: self.granted.take() }))
            }
            Err(reason) => {
                (self.socket, self.redirect) = (Some((socket, rings)), Some(redirect));
                refuse(OpenStep::Bind, reason)
            }
        }
    }
}

impl OpenedSocket {
    pub(super) fn into_port(
        self,
        settings: PortBuilder,
        interface: &Interface,
        area: Area,
        order: &ModeOrder,
        refusals: Vec<Refusal>,
    ) -> Result<Port, OpenError> {
        let Self { socket, rings, redirect, mode, granted } = self;
        settings.wait_for_carrier(true)?;
        settings.turn_on_busy_poll(&socket)?;
        let (promiscuous, query) = settings.promiscuous_and_query(interface)?;
        let bound = BoundXdpSocket::new(&settings, mode, socket, query);
        let lent_frames = if mode == Mode::XdpZeroCopy { settings.frames_to_lend(interface) } else { 0 };
        let rx_frames = settings.rx_frames.saturating_add(lent_frames);
        let mut pools = (
            area.pool(PoolDirection::Receive, rx_frames)?,
            area.pool(PoolDirection::Send, settings.tx_frames)?,
        );
        settings.set_pool_metadata(&mut pools, mode, interface, &redirect, &bound.socket);
        if granted.is_none() && !settings.only_sends() {
            redirect
                .set_queue_socket(settings.queue, bound.as_fd())
                .map_err(|error| settings.system_error("put the socket into the XDP map", error))?;
        }
        let (program, place) = redirect.filter.clone().unzip();
        // If it is not available, `ToHost` reports why.
        let host_path = settings
            .tuning
            .prepare_host_path
            .then(|| HostPath::prepare(&settings.interface, &bound.query).ok())
            .flatten();
        let backend = XdpBackend {
            redirect,
            queue: settings.queue,
            bound,
            host_path,
            _promiscuous: promiscuous.or(granted.and_then(|granted| granted.promiscuous)),
        };
        let chain_frames_max = chain_frames_max(mode, interface);
        let mut inner = SharedPort::new(&settings, interface.index, mode, chain_frames_max, area, backend);
        (inner.order, inner.refusals, inner.filter) = (order.why, refusals, place);
        let in_user_space = matches!(inner.filter, Some(FilterPlace::UserSpace(_)));
        let mut port = assemble_port(inner, rings, pools, None, &settings);
        if let Some(program) = program.filter(|_| in_user_space) {
            let host =
                port.receiver.to_host().map_err(|source| OpenError::Filter { source: Box::new(source) })?;
            port.receiver.set_user_filter(UserFilter::new(
                program,
                interface.index,
                settings.queue,
                UnmatchedDestination::HandOver(Box::new(host)),
            ));
        }
        port.receiver
            .kick_fill_ring()
            .map_err(|error| settings.half_error("hand the frames to the device", error))?;
        Ok(port)
    }
}

impl PortBuilder {
    /// The granted socket, or a new one, with its memory and its rings.
    fn socket_with_rings(
        &self,
        granted: Option<XskSocket>,
        area: &Area,
        requests: bool,
    ) -> Result<(XskSocket, PortRings), OpenError> {
        let mut socket = granted.map_or_else(|| self.make_receiving_socket(), Ok)?;
        self.register_area(&mut socket, area, requests)?;
        let rings =
            socket.make_rings(self.rings).map_err(|error| self.system_error("make the rings", error))?;
        Ok((socket, rings))
    }

    /// Shares the area with the kernel.
    pub(super) fn register_area(
        &self,
        socket: &mut XskSocket,
        area: &Area,
        requests: bool,
    ) -> Result<(), OpenError> {
        let memory = area.memory_range();
        let registered =
            socket.register_umem(memory, area.config().frame_bytes, area.config().headroom_bytes, requests);
        registered.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => OpenError::PinnedMemory {
                interface: self.interface.clone(),
                queue: self.queue,
                bytes: memory.1,
                source,
            },
            _ => self.system_error("register the area", source),
        })
    }

    /// Makes a socket that can be received from.
    pub(super) fn make_receiving_socket(&self) -> Result<XskSocket, OpenError> {
        let socket = self.new_xdp_socket(capability::PORT)?;
        socket.size_rx_ring(self.rings.rx).map_err(|error| self.system_error("make the rx ring", error))?;
        Ok(socket)
    }

    /// Makes a socket, which needs privileges.
    pub(super) fn new_xdp_socket(
        &self,
        needed: &[(rustix::thread::CapabilitySet, &'static str)],
    ) -> Result<XskSocket, OpenError> {
        if let Some(capability) = capability::missing_capability(needed) {
            return Err(OpenError::Capability { interface: self.interface.clone(), capability });
        }
        XskSocket::new().map_err(|error| match (error.raw_os_error(), KernelVersion::running()) {
            (Some(libc::EAFNOSUPPORT), Some(running)) => {
                OpenError::Kernel { running, needed: features::PORT.kernel }
            }
            _ => self.system_error("make an AF_XDP socket", error),
        })
    }

    pub(super) fn turn_on_busy_poll(&self, socket: &XskSocket) -> Result<(), OpenError> {
        let Some((duration, packets)) = self.busy_poll else { return Ok(()) };
        socket
            .set_busy_poll(duration, packets)
            .map_err(|error| self.system_error("turn on busy polling", error))
    }

    /// Converts an error of a half while the port is opened.
    pub(super) fn half_error(&self, operation: &'static str, error: io::Error) -> OpenError {
        let interface = self.interface.clone();
        match error.kind() {
            io::ErrorKind::NetworkDown => InterfaceError::Down { interface }.into(),
            io::ErrorKind::NotConnected => InterfaceError::NotFound { interface }.into(),
            _ => self.system_error(operation, error),
        }
    }

    /// Binds; a refusal of this mode is the inner error, anything worse the outer one.
    fn bind_socket(
        &self,
        interface: &Interface,
        socket: &XskSocket,
        zero_copy: bool,
    ) -> Result<Result<(), io::Error>, OpenError> {
        let Self { queue, multi_buffer, tuning: PortTuning { need_wakeup, .. }, .. } = *self;
        let interface_index = interface.index;
        let mut attempts = 1..RELEASE_ATTEMPTS;
        loop {
            let Err(error) =
                socket.bind(XskBinding { interface_index, queue, zero_copy, need_wakeup, multi_buffer })
            else {
                return Ok(Ok(()));
            };
            match error.raw_os_error() {
                Some(libc::EBUSY) if attempts.next().is_some() => std::thread::sleep(RETRY_INTERVAL),
                Some(libc::EBUSY) => {
                    return Err(OpenError::QueueTaken { interface: self.interface.clone(), queue });
                }
                _ => {
                    return match InterfaceError::from_refusal(&self.interface, &error) {
                        Some(refused) => Err(refused.into()),
                        None => Ok(Err(error)),
                    };
                }
            }
        }
    }

    fn reported_mode(&self, socket: &XskSocket, at: Attach) -> Result<Mode, OpenError> {
        let zero_copy =
            socket.is_zero_copy().map_err(|error| self.system_error("read XDP_OPTIONS", error))?;
        Ok(match (zero_copy, at) {
            (true, _) => Mode::XdpZeroCopy,
            (false, Attach::Native) => Mode::XdpCopyNative,
            (false, Attach::Generic) => Mode::XdpCopyGeneric,
        })
    }
}

/// The most frames of one packet: in zero-copy the driver reports it.
fn chain_frames_max(mode: Mode, interface: &Interface) -> usize {
    let of_driver = || XdpFeatures::of(interface.index).ok()?.zero_copy_buffers?.try_into().ok();
    let of_driver = (mode == Mode::XdpZeroCopy).then(of_driver).flatten();
    of_driver.unwrap_or(CHAIN_FRAMES_MAX)
}

fn spread_packets_error(interface: &Interface) -> io::Error {
    let (driver, mtu_bytes) = (interface.driver_phrase(), interface.mtu_bytes);
    let words = format!(
        "{driver} counts buffers in KiB and would spread packets of MTU {mtu_bytes} over several frames"
    );
    io::Error::new(io::ErrorKind::InvalidInput, words)
}

fn member_drivers_error(interface: &Interface) -> io::Error {
    let words = format!(
        "{} runs programs in the drivers of its members, whose packets no socket of {} gets",
        interface.driver_phrase(),
        interface.name
    );
    io::Error::new(io::ErrorKind::Unsupported, words)
}

fn proof_timeout_error() -> io::Error {
    let words = "the socket was bound, but a frame sent as proof was not reported as sent in time";
    io::Error::new(io::ErrorKind::TimedOut, words)
}
