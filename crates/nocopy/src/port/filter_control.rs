//! Replaces the filter of a port from another process.
//!
//! ```text
//!   capture (opened with privileges)                    helper (keeps its privileges)
//!   FilterControl::send ── map, link, recipe ─────────▶ FilterControl::receive: everything is checked
//!   gives its privileges up; asks for a filter          FilterControl::set_filter: loads a program with that
//!                                                       filter, which takes the place of the link's at once
//! ```
//! Loading a program needs privileges; replacing the program of a link needs only the link
//! (`BPF_LINK_UPDATE`). So a helper that has the link can set a filter on it, by a program that this module
//! makes, and do nothing else.

use nocopy_proto::errno::{ErrorCause, advice};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::grant::message::{XdpProgramHeader, invalid_field, parse_flag, u64_at};
use super::grant::{GrantError, INSPECT_MAP, check_link_program};
use super::{Mode, NonblockingQueues, SharedPort};
use crate::port::xdp::{self, MetadataNoteSettings, PassHeader, RedirectRecipe, SocketMap};
use crate::sys::bpf::{self, MapKind};
use crate::sys::descriptor::{self, FdInfo};
use nocopy_proto::filter::{Program, Untranslatable};

const MAGIC: [u8; 8] = *b"nocopy\0f";

/// The header; in its places for a grant's own, flags: hints (41), pass header (43), times (44); the pass
/// header; the mark.
const MESSAGE_BYTES: usize = MARK_AT + size_of::<u64>();
const PASS_AT: usize = XdpProgramHeader::BYTES;
const MARK_AT: usize = PASS_AT + PassHeader::BYTES as usize + 2;

const DESCRIPTORS: usize = 2;

/// Replaces the filter of a port, or of several ports on queues of one interface, while they are in use. Made
/// by [`Queues::filter_control`](NonblockingQueues::filter_control) and sent to another process, so that this
/// process can give up its privileges.
///
/// Like a port, it keeps the program on the interface as long as it exists: drop it when the port is closed.
///
/// ```no_run
/// use nocopy::{Port, filter, integration::FilterControl};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
/// // In the capture:
/// let queues = Port::builder("eth0").open_queues(..)?;
/// queues.filter_control()?.send(&ours)?;
/// // In the helper:
/// FilterControl::receive(&theirs)?.set_filter(Some(&filter::compile("udp port 9000")?))?;
/// # Ok(()) }
/// ```
pub struct FilterControl {
    /// Device and inode of the network namespace that the interface is in.
    namespace: (u64, u64),
    interface: String,
    interface_index: u32,
    recipe: RedirectRecipe,
    sockets: SocketMap,
    link: OwnedFd,
}

/// Why a filter could not be replaced, or a control could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterControlError {
    /// The port has no XDP program, or it belongs to another process.
    #[error(
        "{interface}: the filter cannot be replaced; a port in mode '{mode}' has no XDP program of this process; open the port in an AF_XDP mode, and not from a grant"
    )]
    NoProgram {
        /// The interface.
        interface: String,
        /// The port's mode.
        mode: Mode,
    },
    /// The control could not be sent or received, or the message is not one.
    #[error("filter control: not transferred between processes; {0}")]
    Passing(#[from] GrantError),
    /// An XDP program cannot run the filter.
    #[error(
        "filter: cannot run as an XDP program; {0}, or run it in user space (Queues::filter_in_user_space)"
    )]
    Filter(#[from] Untranslatable),
    /// The program with the filter could not be loaded; the old one stays.
    #[error(transparent)]
    Program(#[from] xdp::Error),
    /// The program could not replace the old one, which stays.
    #[error("{interface}: the XDP program was not replaced{cause}; check that the interface still exists", cause = ErrorCause(.source))]
    Replace {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused another operation.
    #[error("{interface}: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The interface.
        interface: String,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl NonblockingQueues {
    /// A control of the filter of these ports, and of all others of this process on the interface. Needs the
    /// privileges of opening a port.
    ///
    /// # Errors
    /// Not an AF_XDP mode, a granted port, or a refusal of the kernel.
    #[doc(hidden)]
    pub fn filter_control(&self) -> Result<FilterControl, FilterControlError> {
        FilterControl::of_port(self.first_port().shared_port())
    }
}

impl FilterControl {
    fn of_port(port: &SharedPort) -> Result<Self, FilterControlError> {
        let interface = port.interface.clone();
        let with_map = port
            .backend()
            .to_host_context()
            .and_then(|xdp| Some((xdp.redirect.socket_map_descriptor()?, xdp)));
        let Some((map, xdp)) = with_map else {
            return Err(FilterControlError::NoProgram { interface, mode: port.mode });
        };
        let system = |operation| {
            let interface = interface.clone();
            move |source| FilterControlError::System { interface, operation, source }
        };
        let namespace = xdp.query.namespace().map_err(system("find out the port's network namespace"))?;
        let duplicate = system("duplicate a descriptor");
        let both =
            map.try_clone_to_owned().and_then(|map| Ok((map, xdp.redirect.link().try_clone_to_owned()?)));
        let (map, link) = both.map_err(duplicate)?;
        Ok(Self {
            namespace: namespace.numbers(),
            interface,
            interface_index: port.interface_index,
            recipe: xdp.redirect.recipe.clone(),
            sockets: map.into(),
            link,
        })
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// From now on the ports receive only packets that match, or all packets if `filter` is `None`; the
    /// others go to the host. The change loses and duplicates no packet. Packets already in the rings were
    /// chosen by the old filter.
    ///
    /// A filter in user space does not change. [`Port::explain`](super::Port::explain) does not change
    /// either, and a port that this process opens later on the interface is still compared with the filter
    /// that the first was opened with.
    ///
    /// # Errors
    /// An XDP program cannot run the filter, the kernel refuses to load or attach it, or a privilege is
    /// missing: the old filter stays.
    pub fn set_filter(&self, filter: Option<&Program>) -> Result<(), FilterControlError> {
        let Self { recipe, sockets, link, interface, interface_index, .. } = self;
        let instructions = filter.map(|filter| filter.to_xdp(recipe.fragments)).transpose()?;
        let program = recipe.load_program(sockets, &instructions.unwrap_or_default(), *interface_index)?;
        bpf::update_link(link.as_fd(), program.as_fd())
            .map_err(|source| FilterControlError::Replace { interface: interface.clone(), source })
    }

    /// Sends a duplicate to another process through a Unix socket, in one message.
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn send(&self, socket: &impl AsFd) -> Result<(), FilterControlError> {
        let descriptors = [self.sockets.as_fd(), self.link.as_fd()];
        match descriptor::send_descriptors(socket.as_fd(), &self.emit_message(), &descriptors) {
            Ok(MESSAGE_BYTES) => Ok(()),
            Ok(_) => Err(GrantError::Send(io::ErrorKind::WriteZero.into()).into()),
            Err(error) => Err(GrantError::Send(error).into()),
        }
    }

    /// Receives a waiting control; does not block, since the sender may use this socket for other things.
    /// Everything in the message is checked: each field, and what each descriptor refers to. To be called
    /// from a thread in the network namespace of the interface.
    ///
    /// # Errors
    /// What is wrong with the message. All received descriptors are then closed.
    pub fn receive(socket: &impl AsFd) -> Result<Self, FilterControlError> {
        // One byte more, so that a message that is too long is not mistaken for a whole one.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let received =
            descriptor::try_receive_descriptors(socket.as_fd(), &mut bytes).map_err(GrantError::Receive)?;
        match received.bytes {
            0 => return Err(GrantError::Closed.into()),
            MESSAGE_BYTES => {}
            bytes => return Err(GrantError::Truncated { bytes }.into()),
        }
        let (header, recipe) = parse_message(bytes.first_chunk().expect("a whole message"))?;
        let (count, expected) = (received.descriptors.len(), DESCRIPTORS);
        let Ok([map, link]) = <[OwnedFd; DESCRIPTORS]>::try_from(received.descriptors) else {
            return Err(GrantError::Descriptors { received: count, cut: received.cut, expected }.into());
        };
        check_socket_map(&header, &map)?;
        check_link_program(&header, &link)?;
        let XdpProgramHeader { namespace, interface, interface_index, .. } = header;
        Ok(Self { namespace, interface, interface_index, recipe, sockets: map.into(), link })
    }

    fn emit_message(&self) -> [u8; MESSAGE_BYTES] {
        let Self { namespace, interface_index, interface, recipe, .. } = self;
        let RedirectRecipe { at, fragments, pass, notes } = recipe;
        let (namespace, interface_index, at, fragments) = (*namespace, *interface_index, *at, *fragments);
        let header =
            XdpProgramHeader { namespace, interface_index, interface: interface.clone(), at, fragments };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..XdpProgramHeader::BYTES].copy_from_slice(&header.emit(MAGIC));
        bytes[41] = notes.hints.into();
        bytes[43] = pass.is_some().into();
        bytes[44] = notes.times.into();
        if let Some(pass) = pass {
            bytes[PASS_AT..PASS_AT + PassHeader::BYTES as usize].copy_from_slice(pass.bytes());
        }
        bytes[MARK_AT..].copy_from_slice(&notes.mark.to_ne_bytes());
        bytes
    }
}

fn check_socket_map(header: &XdpProgramHeader, map: &OwnedFd) -> Result<(), GrantError> {
    let (interface, operation) = (header.interface.clone(), INSPECT_MAP);
    let looked_at = FdInfo::read(map).map_err(|source| GrantError::Check { interface, operation, source })?;
    match looked_at.u32_value("map_type") == Some(MapKind::XskMap as u32) {
        true => Ok(()),
        false => Err(GrantError::Kind { descriptor: "map", found: descriptor::target_name(map) }),
    }
}

fn parse_message(bytes: &[u8; MESSAGE_BYTES]) -> Result<(XdpProgramHeader, RedirectRecipe), GrantError> {
    let header = XdpProgramHeader::parse(bytes.first_chunk().expect("longer"), MAGIC)?;
    let (hints, has_pass, times) = (parse_flag(bytes[41])?, parse_flag(bytes[43])?, parse_flag(bytes[44])?);
    let pass = bytes[PASS_AT..].first_chunk().expect("longer");
    let pass = has_pass
        .then(|| PassHeader::from_bytes(*pass))
        .transpose()
        .map_err(|()| invalid_field("pass header"))?;
    let mark = u64_at(bytes, MARK_AT);
    let XdpProgramHeader { at, fragments, .. } = header;
    let recipe = RedirectRecipe { at, fragments, pass, notes: MetadataNoteSettings { hints, times, mark } };
    Ok((header, recipe))
}

impl fmt::Debug for FilterControl {
    /// Omits the secret fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterControl").field("interface", &self.interface).finish_non_exhaustive()
    }
}
