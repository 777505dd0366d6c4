//! The XDP program of an interface, shared by the ports of this process on its queues.
//!
//! Closing a port empties its slot in the XDP map and waits for a grace period, so no running program can
//! still receive into its frames. Closing the socket would not be enough: a mapping of a ring, or a duplicate
//! of the descriptor, keeps it open. After the wait, frames lent for receiving are free in the copy modes.
//! Frames that a device may still write to are *retired*: counted, and not used again while the area exists.
//! Frames are also retired if the slot cannot be emptied: bpf(2) is refused, or another process granted the
//! port and has not passed the map.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use std::{fmt, io};

use nocopy_proto::ebpf::Instruction;

use nocopy_proto::filter::{Program, Untranslatable};

use super::{FilterPlace, Mode, PortBuilder};
use crate::facts::features;
use crate::facts::kernel::KernelVersion;
use crate::facts::metadata::Unsupported;
use crate::memory::area::ArrivalMetadataSource;
use crate::port::xdp::{
    Attach, Attachment, Error, MetadataNoteSettings, PassHeader, Program as XdpProgram, RedirectRecipe,
    SocketMap,
};
use crate::sys::interface::Interface;
use crate::sys::namespace::NamespaceId;
use crate::sys::netdev::XdpFeatures;

/// How often to check whether a program is still attached: the kernel detaches the program of a killed
/// process some time after its death (0.3 s measured). Checks are counted, not time, because kernel workers
/// stall with the machine.
const RELEASE_ATTEMPTS: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A redirecting program on an interface, detached when its last port is closed.
#[derive(Debug)]
pub(super) struct RedirectProgram {
    pub(super) recipe: RedirectRecipe,
    /// `None`: another process attached the program, and has not passed its map.
    sockets: Option<SocketMap>,
    /// Why the program does not note the driver's metadata, or arrival times.
    refused: MetadataNoteRefusals,
    pub(super) filter: Option<(Program, FilterPlace)>,
    /// Dropped before the map, because no packet may look up a socket that is being closed.
    attachment: Attachment,
}

/// Why a program does not write certain notes.
#[derive(Debug, Clone, Copy)]
struct MetadataNoteRefusals {
    hints: Option<Unsupported>,
    times: Option<Unsupported>,
}

/// Distinguishes interfaces of all network namespaces.
#[derive(Debug, PartialEq, Eq, Hash)]
struct InterfaceKey {
    namespace: NamespaceId,
    interface_index: u32,
}

/// Programs that this process has attached: one per interface, whatever the number of ports.
static ATTACHED: Mutex<Option<HashMap<InterfaceKey, Weak<RedirectProgram>>>> = Mutex::new(None);

impl RedirectProgram {
    /// The program of this interface: the one that this process has attached already, or a new one.
    pub(super) fn on_interface(
        interface: &Interface,
        at: Attach,
        settings: &PortBuilder,
    ) -> Result<Arc<Self>, Error> {
        let namespace = NamespaceId::of_thread()
            .map_err(|source| Error::System { operation: "find out the network namespace", source })?;
        let key = InterfaceKey { namespace, interface_index: interface.index };
        // Locked while attaching, so that two threads do not attach a program each.
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = attached.get_or_insert_default();
        if let Some(redirect) = attached.get(&key).and_then(Weak::upgrade)
            && redirect.recipe.at == at
        {
            let interface = interface.name.clone();
            return match (redirect.recipe.fragments, redirect.filter.as_ref().map(|(program, _)| program)) {
                (false, _) if settings.multi_buffer => Err(Error::OneBuffer { interface }),
                (_, filter) if filter != settings.filter.as_ref() => Err(Error::OtherFilter { interface }),
                _ => Ok(redirect),
            };
        }
        let redirect = Arc::new(Self::attach(interface, at, settings)?);
        attached.retain(|_, redirect| redirect.strong_count() > 0);
        attached.insert(key, Arc::downgrade(&redirect));
        Ok(redirect)
    }

    fn attach(interface: &Interface, at: Attach, settings: &PortBuilder) -> Result<Self, Error> {
        let fragments = settings.multi_buffer;
        // Not the current number of queues: the program stays when queues are added, and ports are opened on
        // them.
        let sockets = SocketMap::new(interface.rx_queues_max)?;
        let random = |source| Error::System { operation: "draw a random number", source };
        let pass = (at == Attach::Generic).then(PassHeader::new).transpose().map_err(random)?;
        let (filter, place) = filter_prologue(settings.filter.as_ref(), &sockets, fragments)?;
        let mut refused = MetadataNoteRefusals::known_refusals(interface, at, settings);
        let notes = MetadataNoteSettings { hints: false, times: false, mark: random_mark().map_err(random)? };
        let mut recipe = RedirectRecipe { at, fragments, pass, notes };
        let mut program = refused.load_with_notes(&mut recipe, &sockets, &filter, interface.index)?;
        let mut attempts = 1..RELEASE_ATTEMPTS;
        loop {
            match program.attach(&interface.name, at) {
                Ok(attachment) => {
                    let filter = settings.filter.clone().zip(place);
                    return Ok(Self { recipe, sockets: Some(sockets), refused, filter, attachment });
                }
                Err(Error::Occupied { .. }) if attempts.next().is_some() => {
                    std::thread::sleep(RETRY_INTERVAL)
                }
                Err(_) if recipe.notes.hints => {
                    // The kernel may refuse a device-bound program and accept another.
                    refused.hints = Some(Unsupported::Refused);
                    program = refused.load_with_notes(&mut recipe, &sockets, &filter, interface.index)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The program that another process attached, by its link.
    pub(super) fn adopt(at: Attach, fragments: bool, link: OwnedFd) -> Arc<Self> {
        let other = Some(Unsupported::OtherProgram);
        let notes = MetadataNoteSettings { hints: false, times: false, mark: 0 };
        Arc::new(Self {
            recipe: RedirectRecipe { at, fragments, pass: None, notes },
            sockets: None,
            refused: MetadataNoteRefusals { hints: other, times: other },
            filter: None,
            attachment: Attachment::from_link(link),
        })
    }

    /// The metadata in front of the packets of a port in this mode.
    pub(super) fn arrival_metadata(&self, settings: &PortBuilder, mode: Mode) -> ArrivalMetadataSource {
        let (MetadataNoteSettings { hints, times, mark }, refused) = (self.recipe.notes, self.refused);
        let wanted = (settings.receive_metadata, settings.tuning.arrival_times);
        let no_hints = match (wanted.0, mode) {
            (false, _) => Unsupported::NotRequested,
            (true, Mode::XdpCopyGeneric) => Unsupported::Mode(mode),
            (true, _) => refused.hints.unwrap_or(Unsupported::Absent),
        };
        match wanted {
            (true, _) if hints => ArrivalMetadataSource::Marked(mark),
            (_, true) if times && hints => ArrivalMetadataSource::Marked(mark),
            (_, true) if times => ArrivalMetadataSource::Timed(mark, no_hints),
            (false, true) => ArrivalMetadataSource::Unknown(refused.times.unwrap_or(Unsupported::Absent)),
            _ => ArrivalMetadataSource::Unknown(no_hints),
        }
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.attachment.link()
    }

    /// The map of the sockets; `None` if another process has it.
    pub(super) fn socket_map_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.as_ref().map(AsFd::as_fd)
    }

    /// As [`RedirectProgram::set_queue_socket`], but fails with `EEXIST` if the queue is another socket's.
    pub(super) fn reserve_queue(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.socket_map()?.reserve_slot(queue, socket)
    }

    /// Sends the packets of `queue` to `socket` from now on.
    pub(super) fn set_queue_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.socket_map()?.set_socket(queue, socket)
    }

    /// Sends the packets of `queue` to the host, except those of XDP programs that run already
    /// ([`wait_for_running_programs`]). Closing the socket would do so, unless the user has a duplicate of
    /// its descriptor.
    ///
    /// Returns whether it succeeded: without privileges, bpf(2) may be refused, and the map of a granted port
    /// is not there.
    pub(super) fn clear_queue(&self, queue: u32) -> bool {
        self.socket_map().and_then(|sockets| sockets.clear_slot(queue)).is_ok()
    }

    fn socket_map(&self) -> io::Result<&SocketMap> {
        self.sockets.as_ref().ok_or(io::ErrorKind::PermissionDenied.into())
    }
}

/// Waits until no running XDP program can still see a socket that was removed from its map. Returns whether
/// that is certain: some kernels have no such barrier (`nohz_full`).
pub(super) fn wait_for_running_programs() -> bool {
    rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global).is_ok() // an RCU grace period
}

/// The instructions of a filter before the redirect (none if it is to run in user space), and where the
/// filter runs.
fn filter_prologue(
    filter: Option<&Program>,
    sockets: &SocketMap,
    fragments: bool,
) -> Result<(Vec<Instruction>, Option<FilterPlace>), Error> {
    let Some(filter) = filter else { return Ok((Vec::new(), None)) };
    let in_user_space = |why: &dyn fmt::Display| {
        Ok((Vec::new(), Some(user_space_filter_place(why, KernelVersion::running())?)))
    };
    let instructions = match filter.to_xdp(fragments) {
        Ok(instructions) => instructions,
        Err(error @ (Untranslatable::TooFar { .. } | Untranslatable::TooLong { .. })) => {
            return in_user_space(&error);
        }
        Err(source) => return Err(Error::Filter { source }),
    };
    // The filter is the cause of a refusal only if a program without it is accepted.
    match XdpProgram::redirect_to(sockets, fragments, &instructions, None) {
        Ok(_) => Ok((instructions, Some(FilterPlace::Xdp))),
        Err(error) => match XdpProgram::redirect_to(sockets, fragments, &[], None) {
            Ok(_) => in_user_space(&error),
            Err(_) => Err(error),
        },
    }
}

/// Places a filter in user space, because the kernel refused it. Packets that do not match must be returned
/// to the host. If the kernel cannot return packets, this fails before a packet is taken, so that a packet
/// ring may be opened instead.
fn user_space_filter_place(
    why: &dyn fmt::Display,
    running: Option<KernelVersion>,
) -> Result<FilterPlace, Error> {
    match running {
        Some(running) if running < features::LIVE_FRAMES.kernel => Err(Error::Kernel {
            operation: "run the filter in user space, and hand the host the rest",
            running,
            needed: features::LIVE_FRAMES.kernel,
        }),
        _ => Ok(FilterPlace::UserSpace(why.to_string())),
    }
}

impl MetadataNoteRefusals {
    /// Notes that are known not to work, and why.
    fn known_refusals(interface: &Interface, at: Attach, settings: &PortBuilder) -> Self {
        let unwanted = Some(Unsupported::OtherProgram); // said to ports that ask later
        // A program that asks in vain would cost every packet, and the verifier's refusals do not show which
        // function is missing.
        let is_silent =
            || XdpFeatures::of(interface.index).is_ok_and(|features| features.receive_metadata == Some(0));
        let hints = match settings.receive_metadata && at == Attach::Native {
            false => unwanted,
            true => is_silent().then_some(Unsupported::Driver),
        };
        Self { hints, times: if settings.tuning.arrival_times { None } else { unwanted } }
    }

    /// Loads a program that writes all notes not refused yet; new refusals are recorded.
    fn load_with_notes(
        &mut self,
        recipe: &mut RedirectRecipe,
        sockets: &SocketMap,
        filter: &[Instruction],
        interface_index: u32,
    ) -> Result<XdpProgram, Error> {
        loop {
            let notes = &mut recipe.notes;
            (notes.hints, notes.times) = (self.hints.is_none(), self.times.is_none());
            match recipe.load_program(sockets, filter, interface_index) {
                Err(Error::Hints { source }) => self.hints = Some(source),
                Err(_) if recipe.notes.times => self.times = Some(Unsupported::Refused),
                done => return done,
            }
        }
    }
}

/// A random number that identifies a program's notes; never the value that frames are erased with.
fn random_mark() -> io::Result<u64> {
    let mut mark = [0; size_of::<u64>()];
    // Never short: getrandom(2) returns so few bytes at once.
    rustix::rand::getrandom(&mut mark, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(mark) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_live_frames_run_no_filter_in_user_space() {
        let place = |minor| user_space_filter_place(&"why", Some(KernelVersion(5, minor)));
        assert_eq!(place(18).unwrap(), FilterPlace::UserSpace("why".into()));
        let error = place(17).unwrap_err();
        assert!(matches!(error, Error::Kernel { .. }), "a packet ring is tried after this: {error}");
    }
}
