//! Ports for processes without privileges: a privileged process *grants* a port to another over a Unix
//! socket.
//!
//! ```text
//!   opener (privileged)                                 client (no capabilities)
//!   socket, program, map, link; socket into the map
//!   Grant::send ── unbound socket, link ──────────────▶ Grant::receive: everything is checked
//!   (its copies are closed)                             registers its memory, maps the rings, binds: a Port
//! ```
//!
//! The socket is passed unbound, because kernels before 6.4 refuse to map the rings of a bound one, and the
//! memory must be the client's. It is put into the map before it is passed; the kernel drops the queue's
//! packets until it is bound (`xsk_rcv_check`).
//!
//! The map is not passed: a client that may use bpf(2) could bind the socket to another queue and put it into
//! the map there. So the client cannot take the socket out when the port closes, and the frames it lent for
//! receiving are retired. The kernel takes the socket out when its last descriptor and the last mapping of
//! its rings are gone.
//!
//! The link is passed, so that the program is detached when the client ends. What else a client can do with
//! it by bpf(2) is little: detach the program. (A program that it could put in its place takes privileges to
//! load.) A descriptor with less power cannot keep a link: a pidfd or an eventfd would tell the opener that
//! the client has ended, but the opener may exit.
//!
//! The client does not ask the opener to fill the map after binding. That would avoid the drops before
//! binding, but the opener could not exit, and a client could keep it waiting. Since Linux 7.1 the map
//! accepts no socket without an rx ring, so the opener creates that ring. The client checks what it received
//! without bpf(2), by `/proc/self/fdinfo`, and finds the length of the rx ring by mapping it. Whether the
//! opener kept duplicates cannot be seen. With a duplicate of the socket it could write to the rings, so it
//! is trusted with the bytes in the area.

pub(super) mod message;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use message::{GrantMessage, MESSAGE_BYTES, VERSION, XdpProgramHeader};

use super::drivers;
use super::error::native_refusal_reason;
use super::granted::GrantedPortParts;
use super::redirect::RedirectProgram;
use super::{FilterPlace, Mode, OpenError, Port, PortBuilder, Purpose, open};
use crate::facts::features;
use crate::facts::io_error::convert_to_io_error;
use crate::facts::kernel::KernelVersion;
use crate::port::xdp::{self, Attach};
use crate::sys::descriptor::{self, FdInfo};
use crate::sys::interface::{Interface, InterfaceError, PromiscuousGuard};
use crate::sys::namespace::NamespaceId;
use crate::sys::option::namespace_cookie;
use crate::sys::xsk::{XskSocket, checkable_entries_min};

const FIND_NAMESPACE: &str = "find out the network namespace";

pub(super) const INSPECT_MAP: &str = "look at its map";
const INSPECT_LINK: &str = "look at its link";

/// How often an owner may replace the program while it is looked at.
const CHECKS_MAX: u32 = 100;

const OF_XDP: &str = "only the modes of AF_XDP can be granted";

/// The socket and the link.
const DESCRIPTORS: usize = 2;

/// Lets a process without privileges open one port: made by [`PortBuilder::grant`] in a privileged process,
/// consumed by [`PortBuilder::open_granted`].
///
/// Until it is used, packets of the queue are dropped. Dropping it unused undoes everything.
///
/// # Rights of the client
/// The client can receive the packets of the queue. It can send on *every* interface of the network
/// namespace, because it binds the socket, and, if promiscuous mode was granted, put each of them into that
/// mode. It can take the packets of no other queue from the host. But if it binds the socket to another queue
/// of an interface whose driver has zero-copy, that driver writes the queue's packets to the client's memory
/// before the host gets them, so it can read them.
///
/// If it may use bpf(2) (unprivileged: since Linux 5.19, or where `kernel.unprivileged_bpf_disabled` is 0),
/// it can detach the program, and so stop other granted queues of this interface: grants of one process on an
/// interface share their program.
///
/// # Trust in the opener
/// The client checks the grant ([`Grant::receive`]), but cannot see whether the opener kept duplicates. With
/// a duplicate of the socket, the opener can map the port's rings and write frame addresses to them, so that
/// the kernel changes the bytes of a packet while the client reads them, or sends changed data. It can also
/// share the area (`XDP_SHARED_UMEM`): send its contents, and receive into it. With a duplicate of the map or
/// the program it can take the port's packets away. It cannot make the client touch memory outside of the
/// area, or give a frame two owners: all addresses from rings are checked. So accept grants only from a
/// process that may see and change everything in the area; give such a port an area of its own.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use nocopy::{Port, port::Grant};
/// let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
/// // In the opener:
/// Port::builder("eth0").queue(1).grant()?.send(&ours)?;
/// // In the client:
/// let grant = Grant::receive(&theirs)?;
/// let mut port = Port::builder(grant.interface()).open_granted(grant)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Grant {
    namespace: (u64, u64),
    interface: String,
    interface_index: u32,
    queue: u32,
    /// Entries of the rx ring, which already exists, or the map would not accept the socket.
    rx_entries: u32,
    socket: XskSocket,
    rest: GrantedPortParts,
}

/// Why a grant could not be sent or received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The other end closed the socket.
    #[error(
        "grant: not received; the other end closed the connection; look at the error of the program that opens the port"
    )]
    Closed,
    /// The message is incomplete.
    #[error("grant: incomplete; it has {bytes} B of {MESSAGE_BYTES}; connect to a program that grants ports")]
    Truncated {
        /// Bytes received.
        bytes: usize,
    },
    /// The message is not a grant.
    #[error(
        "grant: not recognised; the message does not begin like a grant; connect to a program that grants ports"
    )]
    Foreign,
    /// The message is of another version of this library.
    #[error(
        "grant: cannot be read; it is of version {theirs}, and this program reads version {VERSION}; build both programs with the same \
         nocopy"
    )]
    Version {
        /// The version received.
        theirs: u32,
    },
    /// A field has an impossible value.
    #[error("grant: refused; its {field} is impossible; connect to a program that grants ports")]
    Field {
        /// The impossible field.
        field: &'static str,
    },
    /// Too many or too few descriptors.
    #[error(
        "grant: refused; it came with {received} descriptor(s){}, not with {expected}; connect to a program that grants ports, and raise 'ulimit -n' if this process has too many files open",
        if *cut { " or more" } else { "" }
    )]
    Descriptors {
        /// How many were received.
        received: usize,
        /// Whether more were sent than received.
        cut: bool,
        /// The number of descriptors in a grant.
        expected: usize,
    },
    /// A descriptor is of the wrong kind.
    #[error("grant: refused; its {descriptor} is {found}; connect to a program that grants ports")]
    Kind {
        /// The descriptor.
        descriptor: &'static str,
        /// The kind of descriptor that was received.
        found: String,
    },
    /// The interface is in another network namespace.
    #[error(
        "{interface}: cannot be used; the port was granted in another network namespace; start both programs in the same one"
    )]
    Namespace {
        /// The interface.
        interface: String,
    },
    /// The program is no longer attached to the interface.
    #[error(
        "{interface}: cannot be used; the XDP program of the grant is no longer attached: the interface was deleted, or the program detached; grant the port again"
    )]
    Detached {
        /// The interface.
        interface: String,
    },
    /// The kernel refused to describe the received descriptors.
    #[error("{interface}: the grant cannot be checked; cannot {operation}{cause}; {}", failed_check_advice(operation, source), cause = ErrorCause(.source))]
    Check {
        /// The interface.
        interface: String,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The message could not be sent.
    #[error("grant: cannot be sent{cause}; check that the client is running and reads", cause = ErrorCause(.0))]
    Send(#[source] io::Error),
    /// The message could not be received.
    #[error("grant: cannot be received{cause}; give a Unix socket that is connected to the program that opens the port", cause = ErrorCause(.0))]
    Receive(#[source] io::Error),
}

convert_to_io_error!(GrantError {
    Self::Closed | Self::Truncated { .. } => io::ErrorKind::UnexpectedEof,
    Self::Version { .. } => io::ErrorKind::Unsupported,
    Self::Namespace { .. } | Self::Detached { .. } => io::ErrorKind::NotFound,
    _ => io::ErrorKind::InvalidData,
});

impl Grant {
    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Sends the grant to another process, in one message that fits any socket buffer, and closes this
    /// process's copies.
    ///
    /// # Errors
    /// The kernel refused it; all steps are then undone.
    pub fn send(self, stream: &UnixStream) -> Result<(), GrantError> {
        let bytes = self.grant_message().emit();
        let mut descriptors = vec![self.socket.as_fd(), self.rest.redirect.link()];
        descriptors.extend(self.rest.promiscuous.as_ref().map(AsFd::as_fd));
        match descriptor::send_descriptors(stream.as_fd(), &bytes, &descriptors) {
            Ok(MESSAGE_BYTES) => Ok(()),
            Ok(_) => Err(GrantError::Send(io::ErrorKind::WriteZero.into())),
            Err(error) => Err(GrantError::Send(error)),
        }
    }

    fn grant_message(&self) -> GrantMessage {
        let GrantedPortParts { redirect, native_refused, promiscuous } = &self.rest;
        let header = XdpProgramHeader {
            namespace: self.namespace,
            interface_index: self.interface_index,
            interface: self.interface.clone(),
            at: redirect.recipe.at,
            fragments: redirect.recipe.fragments,
        };
        let Self { queue, rx_entries, .. } = *self;
        let (native_refused, promiscuous) = (*native_refused, promiscuous.is_some());
        GrantMessage { header, queue, native_refused, promiscuous, rx_entries }
    }

    /// Receives a grant. Waits for it as long as the stream does ([`UnixStream::set_read_timeout`]).
    ///
    /// It checks each field; what each descriptor refers to; that sockets and link belong to this thread's
    /// network namespace, and the link's program is attached as stated; and the length of the rx ring. Not
    /// checked, because the kernel does not report it: that the program's map has the socket at the queue's
    /// place, and that no other process has the descriptors; see [trust in the
    /// opener](Self#trust-in-the-opener).
    ///
    /// # Errors
    /// [`GrantError`] says what is wrong with it. All received descriptors are then closed.
    pub fn receive(stream: &UnixStream) -> Result<Self, GrantError> {
        let mut bytes = [0; MESSAGE_BYTES];
        let received =
            descriptor::receive_descriptors(stream.as_fd(), &mut bytes).map_err(GrantError::Receive)?;
        match received.bytes {
            0 => return Err(GrantError::Closed),
            MESSAGE_BYTES => {}
            bytes => return Err(GrantError::Truncated { bytes }),
        }
        let message = GrantMessage::parse(&bytes)?;
        let (count, expected) = (received.descriptors.len(), DESCRIPTORS + usize::from(message.promiscuous));
        if received.cut || count != expected {
            return Err(GrantError::Descriptors { received: count, cut: received.cut, expected });
        }
        let mut descriptors = received.descriptors.into_iter();
        let mut next = || descriptors.next().expect("counted");
        let (socket, link) = (next(), next());
        check_socket_family("AF_XDP socket", &socket, libc::AF_XDP)?;
        let promiscuous = descriptors.next();
        if let Some(membership) = &promiscuous {
            check_socket_family("promiscuous membership", membership, libc::AF_PACKET)?;
        }
        check_link_program(&message.header, &link)?;
        check_namespace(&message.header, [Some(&socket), promiscuous.as_ref()])?;
        let GrantMessage { header, queue, native_refused, rx_entries, .. } = message;
        let socket = XskSocket::from(socket);
        check_rx_ring(&header, &socket, rx_entries)?;
        let XdpProgramHeader { namespace, interface, interface_index, at, fragments } = header;
        let redirect = RedirectProgram::adopt(at, fragments, link);
        let promiscuous = promiscuous.map(PromiscuousGuard::from);
        let rest = GrantedPortParts { redirect, native_refused, promiscuous };
        Ok(Self { namespace, interface, interface_index, queue, rx_entries, socket, rest })
    }
}

fn failed_check_advice(operation: &str, error: &io::Error) -> &'static str {
    match (error.raw_os_error(), operation) {
        (Some(libc::EMFILE | libc::ENFILE), _) => "close files, or raise 'ulimit -n'",
        (Some(libc::ENOMEM | libc::ENOBUFS), _) => "free memory",
        (_, INSPECT_MAP | INSPECT_LINK | FIND_NAMESPACE) => "mount /proc for this process",
        _ => "if this process is in a sandbox, allow this call there",
    }
}

/// Checks that the link's program is attached as stated.
pub(super) fn check_link_program(header: &XdpProgramHeader, link: &OwnedFd) -> Result<(), GrantError> {
    let interface = || header.interface.clone();
    let check = |operation| {
        move |source| GrantError::Check { interface: header.interface.clone(), operation, source }
    };
    let link_info = FdInfo::read(link).map_err(check(INSPECT_LINK))?;
    if link_info.text_value("link_type") != Some("xdp") {
        return Err(GrantError::Kind { descriptor: "link", found: descriptor::target_name(link) });
    }
    if namespace_numbers().map_err(check(FIND_NAMESPACE))? != header.namespace {
        return Err(GrantError::Namespace { interface: interface() });
    }
    let state_of =
        |link: &FdInfo| (link.u32_value("ifindex"), link.u32_value("prog_id").map(|id| (id, header.at)));
    let mut last_state = state_of(&link_info);
    for _ in 0..CHECKS_MAX {
        let attached = xdp::attached_program(header.interface_index)
            .map_err(check("ask for the XDP program of the interface"))?;
        if last_state.1.is_some() && last_state == (Some(header.interface_index), attached) {
            return Ok(());
        }
        // The owner may have replaced the program in between, as it does for a filter.
        let current_state = state_of(&FdInfo::read(link).map_err(check(INSPECT_LINK))?);
        if std::mem::replace(&mut last_state, current_state) == current_state {
            break;
        }
    }
    Err(GrantError::Detached { interface: interface() })
}

/// Whether sockets are of the stated network namespace, in which they bind and join (reported since Linux
/// 5.14).
fn check_namespace(header: &XdpProgramHeader, sockets: [Option<&OwnedFd>; 2]) -> Result<(), GrantError> {
    let interface = || header.interface.clone();
    let check = |source| GrantError::Check { interface: interface(), operation: FIND_NAMESPACE, source };
    let (here, _) = UnixStream::pair().map_err(check)?;
    let here = namespace_cookie(&here).ok();
    let is_here = |socket| here.is_none() || namespace_cookie(socket).ok() == here;
    if sockets.into_iter().flatten().all(is_here) {
        return Ok(());
    }
    Err(GrantError::Namespace { interface: interface() })
}

/// Whether the rx ring has `rx_entries` entries: with another number, entries would be read at wrong offsets.
fn check_rx_ring(header: &XdpProgramHeader, socket: &XskSocket, rx_entries: u32) -> Result<(), GrantError> {
    let look = "map its rx ring";
    let check = |source| GrantError::Check { interface: header.interface.clone(), operation: look, source };
    if rx_entries < checkable_entries_min() || !socket.has_rx_ring(rx_entries).map_err(check)? {
        return Err(message::invalid_field("size of the rx ring"));
    }
    Ok(())
}

fn check_socket_family(descriptor: &'static str, socket: &OwnedFd, family: i32) -> Result<(), GrantError> {
    match descriptor::socket_family(socket) {
        Some(found) if i32::from(found) == family => Ok(()),
        Some(found) => Err(GrantError::Kind { descriptor, found: format!("a socket of family {found}") }),
        None => Err(GrantError::Kind { descriptor, found: descriptor::target_name(socket) }),
    }
}

impl PortBuilder {
    /// Does the privileged part, so that another process can open the port without privileges: makes the
    /// socket, attaches the program, and puts the socket into its map. It uses the settings
    /// [`queue`](Self::queue), [`mode`](Self::mode), [`filter`](Self::filter),
    /// [`promiscuous`](Self::promiscuous), [`busy_poll`](Self::busy_poll) and the rx ring's size
    /// ([`ring_sizes`](Self::ring_sizes)); [`multi_buffer`](Self::multi_buffer) is used here and by
    /// [`open_granted`](Self::open_granted), all other settings only there.
    ///
    /// # Errors
    /// As [`PortBuilder::open`].
    pub fn grant(self) -> Result<Grant, OpenError> {
        if self.mode == Some(Mode::PacketRing) {
            return Err(self.not_granted_error("mode", OF_XDP));
        }
        self.check_settings()?;
        if self.rings.rx < checkable_entries_min() {
            let advice = "the client cannot check how long a ring is that is less than a page; give the rx ring 256 entries or \
                          more, or 4096 where pages are of 64 KiB";
            return Err(self.not_granted_error("ring_sizes", advice));
        }
        let namespace = namespace_numbers().map_err(|error| self.system_error(FIND_NAMESPACE, error))?;
        let interface = self.check_interface()?;
        self.wait_for_carrier(false)?;
        let socket = self.make_receiving_socket()?;
        self.turn_on_busy_poll(&socket)?;
        let (redirect, native_refused) = self.attach_native_or_generic(&interface)?;
        if let Some((_, FilterPlace::UserSpace(_))) = &redirect.filter {
            return Err(self.not_granted_error("filter", "the kernel does not take it; give a shorter one"));
        }
        redirect.reserve_queue(self.queue, socket.as_fd()).map_err(|error| self.socket_map_error(error))?;
        let promiscuous = self.turn_on_promiscuous(&interface)?;
        let Interface { name, index, .. } = interface;
        let (queue, rx_entries) = (self.queue, self.rings.rx);
        let rest = GrantedPortParts { redirect, native_refused, promiscuous };
        Ok(Grant { namespace, interface: name, interface_index: index, queue, rx_entries, socket, rest })
    }

    /// Opens a port that another process granted; needs no privileges. The grant decides interface, queue and
    /// the size of the rx ring.
    ///
    /// # Errors
    /// As [`PortBuilder::open`]. The area counts against the user's limit of locked memory (`ulimit -l`): see
    /// [`frame_count`](Self::frame_count). Busy polling and promiscuous mode can only be asked for when the
    /// port is granted.
    pub fn open_granted(mut self, grant: Grant) -> Result<Port, OpenError> {
        self.interface.clone_from(&grant.interface);
        self.queue = grant.queue;
        (self.rings.rx, self.rings.fill) = (grant.rx_entries, grant.rx_entries.saturating_mul(2));
        self.check_settings()?;
        let elsewhere = "it needs privileges; ask for it where the port is granted";
        let refused = [
            ("busy_poll", self.busy_poll.is_some(), elsewhere),
            ("promiscuous", self.promiscuous && grant.rest.promiscuous.is_none(), elsewhere),
            ("multi_buffer", self.multi_buffer && !grant.rest.redirect.recipe.fragments, elsewhere),
            (
                "filter",
                self.filter.is_some(),
                "the program is there already; give it where the port is granted",
            ),
            ("mode", self.mode == Some(Mode::PacketRing), OF_XDP),
        ];
        if let Some((setting, _, advice)) = refused.into_iter().find(|(_, wanted, _)| *wanted) {
            return Err(self.not_granted_error(setting, advice));
        }
        let namespace = namespace_numbers().map_err(|error| self.system_error(FIND_NAMESPACE, error))?;
        if namespace != grant.namespace || self.look_up_interface()?.index != grant.interface_index {
            return Err(InterfaceError::NotFound { interface: self.interface }.into());
        }
        self.promiscuous = false; // or it is on already
        self.purpose = Purpose::default(); // the packet ring is not on this ladder
        open::open_by_ladder(self, Some((grant.socket, grant.rest)))
    }

    fn not_granted_error(&self, setting: &'static str, advice: &'static str) -> OpenError {
        OpenError::NotGranted { interface: self.interface.clone(), queue: self.queue, setting, advice }
    }

    /// Attaches natively or, if that is refused, in generic mode; also returns the errno of the refusal.
    fn attach_native_or_generic(
        &self,
        interface: &Interface,
    ) -> Result<(Arc<RedirectProgram>, Option<i32>), OpenError> {
        let mut native_refused = None;
        let receives = drivers::receives_in_mode(interface.driver.as_deref(), Mode::XdpCopyNative);
        if receives && self.mode != Some(Mode::XdpCopyGeneric) {
            match RedirectProgram::on_interface(interface, Attach::Native, self) {
                Ok(redirect) => return Ok((redirect, None)),
                Err(error) if self.mode.is_some() => return Err(error.into()),
                Err(error) => native_refused = native_refusal_reason(Attach::Native, error)?.raw_os_error(),
            }
        }
        Ok((RedirectProgram::on_interface(interface, Attach::Generic, self)?, native_refused))
    }

    /// Why the map does not accept an unbound socket.
    fn socket_map_error(&self, error: io::Error) -> OpenError {
        match (error.raw_os_error(), KernelVersion::running()) {
            (Some(libc::EEXIST), _) => {
                OpenError::QueueTaken { interface: self.interface.clone(), queue: self.queue }
            }
            (Some(libc::EOPNOTSUPP), Some(running)) if running < features::GRANT.kernel => {
                let operation = "put an unbound socket into the XDP map";
                xdp::Error::Kernel { operation, running, needed: features::GRANT.kernel }.into()
            }
            _ => self.system_error("put the socket into the XDP map", error),
        }
    }
}

/// Device and inode of the calling thread's network namespace.
fn namespace_numbers() -> io::Result<(u64, u64)> {
    NamespaceId::of_thread().map(NamespaceId::numbers)
}
