//! The XDP program of an interface, shared by the ports of this process on its queues.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io};

use nocopy_proto::ebpf::Instruction;

use super::{FilterPlace, PortBuilder};
use crate::area::Arrivals;
use crate::filter::{Program, Untranslatable};
use crate::metadata::Unsupported;
use crate::sys::interface::Interface;
use crate::sys::kernel;
use crate::sys::namespace::NamespaceId;
use crate::sys::netdev::XdpFeatures;
use crate::xdp::{
    Attach, Attachment, Error, KernelVersion, LIVE_FRAMES_KERNEL_MIN, PassHeader, Program as XdpProgram,
    SocketMap,
};

/// How long to wait for a program that is on its way out: the kernel removes that of a killed process a moment after
/// its death (0.3 s measured).
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A redirecting program on an interface, detached when its last port goes.
#[derive(Debug)]
pub(super) struct Redirect {
    pub(super) at: Attach,
    /// Whether it takes packets of several buffers.
    pub(super) fragments: bool,
    sockets: SocketMap,
    /// In front of what is handed to the host, where the program sees that too; not known of a program that was granted.
    pub(super) pass: Option<PassHeader>,
    /// Where it notes what the driver tells of packets.
    pub(super) arrivals: Arrivals,
    /// What it lets through to the sockets, and where that is decided.
    pub(super) filter: Option<(Program, FilterPlace)>,
    /// Taken away before the map: no packet may look up a socket that is going.
    attachment: Attachment,
}

/// An interface, told apart from those of other network namespaces.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    namespace: NamespaceId,
    interface_index: u32,
}

/// Programs this process has attached. One interface takes one program, whatever the number of ports.
static ATTACHED: Mutex<Option<HashMap<Key, Weak<Redirect>>>> = Mutex::new(None);

impl Redirect {
    /// The program of this interface: the one this process has there already, or a new one.
    pub(super) fn on(interface: &Interface, at: Attach, settings: &PortBuilder) -> Result<Arc<Self>, Error> {
        let namespace = NamespaceId::of_thread()
            .map_err(|source| Error::System { operation: "find out the network namespace", source })?;
        let key = Key { namespace, interface_index: interface.index };
        let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = attached.get_or_insert_default();
        if let Some(redirect) = attached.get(&key).and_then(Weak::upgrade)
            && redirect.at == at
        {
            let interface = interface.name.clone();
            return match (redirect.fragments, redirect.filter.as_ref().map(|(program, _)| program)) {
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
        let PortBuilder { multi_buffer: fragments, displace, .. } = *settings;
        // Not of those there are now: the program stays when queues are added, and ports are opened on them.
        let sockets = SocketMap::new(interface.rx_queues_max)?;
        let pass = (at == Attach::Generic).then(PassHeader::new).transpose();
        let pass = pass.map_err(|source| Error::System { operation: "draw a random number", source })?;
        let (filter, place) = in_front(settings.filter.as_ref(), &sockets, fragments)?;
        let plain = || XdpProgram::redirect_to(&sockets, fragments, &filter, pass.as_ref());
        let hinting = match settings.receive_metadata && at == Attach::Native {
            true => with_hints(&sockets, fragments, &filter, interface),
            false => Err(Unsupported::OtherProgram), // said to ports that ask later
        };
        let (mut program, mut arrivals) = match hinting {
            Ok((program, mark)) => (program, Arrivals::Marked(mark)),
            Err(reason) => (plain()?, Arrivals::Unknown(reason)),
        };
        let give_up = Instant::now() + RELEASE_TIMEOUT;
        loop {
            let attached = if displace {
                program.displace(&interface.name, at)
            } else {
                program.attach(&interface.name, at)
            };
            match attached {
                Ok(attachment) => {
                    let filter = settings.filter.clone().zip(place);
                    return Ok(Self { at, fragments, sockets, pass, arrivals, filter, attachment });
                }
                Err(Error::Occupied { .. }) if Instant::now() < give_up => std::thread::sleep(RETRY_INTERVAL),
                Err(_) if matches!(arrivals, Arrivals::Marked(_)) => {
                    // A program that is bound to the device may be refused where another is not.
                    (program, arrivals) = (plain()?, Arrivals::Unknown(Unsupported::Refused));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The program that another process attached, by the descriptors of its map and its link.
    pub(super) fn adopt(at: Attach, fragments: bool, map: OwnedFd, link: OwnedFd) -> Arc<Self> {
        let arrivals = Arrivals::Unknown(Unsupported::OtherProgram);
        Arc::new(Self {
            at,
            fragments,
            sockets: map.into(),
            pass: None,
            arrivals,
            filter: None,
            attachment: Attachment::by(link),
        })
    }

    /// Map and link.
    pub(super) fn descriptors(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.sockets.as_fd(), self.attachment.link())
    }

    /// As [`Redirect::set`], unless the queue is another socket's: `EEXIST`.
    pub(super) fn reserve(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.reserve(queue, socket)
    }

    /// Sends the packets of `queue` to `socket` from now on.
    pub(super) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.set(queue, socket)
    }

    /// Sends the packets of `queue` to the host from now on, and waits until no XDP program still running can have
    /// seen the socket. Closing the socket would do both, unless the user has a duplicate of its descriptor.
    ///
    /// Returns whether both were done: a process without privileges may be refused bpf(2), and some kernels have no such
    /// barrier (`nohz_full`).
    pub(super) fn clear(&self, queue: u32) -> bool {
        self.sockets.clear(queue).is_ok()
            && rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global).is_ok() // an RCU grace period
    }
}

/// The instructions of a filter in front of a redirect, none if it is to run in user space, and where it runs.
fn in_front(
    filter: Option<&Program>,
    sockets: &SocketMap,
    fragments: bool,
) -> Result<(Vec<Instruction>, Option<FilterPlace>), Error> {
    let Some(filter) = filter else { return Ok((Vec::new(), None)) };
    let in_user_space =
        |why: &dyn fmt::Display| Ok((Vec::new(), Some(in_user_space(why, kernel::running())?)));
    let instructions = match filter.to_xdp(fragments) {
        Ok(instructions) => instructions,
        Err(error @ (Untranslatable::TooFar { .. } | Untranslatable::TooLong { .. })) => {
            return in_user_space(&error);
        }
        Err(source) => return Err(Error::Filter { source }),
    };
    // The filter is to blame for a refusal only if a program without it would do.
    match XdpProgram::redirect_to(sockets, fragments, &instructions, None) {
        Ok(_) => Ok((instructions, Some(FilterPlace::Xdp))),
        Err(error) => match XdpProgram::redirect_to(sockets, fragments, &[], None) {
            Ok(_) => in_user_space(&error),
            Err(_) => Err(error),
        },
    }
}

/// Where a filter runs that the kernel does not take. What it turns away must get to the host: a kernel that cannot take it back
/// is refused here, before a packet is taken, so that a packet ring may be opened instead.
fn in_user_space(why: &dyn fmt::Display, running: Option<KernelVersion>) -> Result<FilterPlace, Error> {
    match running {
        Some(running) if running < LIVE_FRAMES_KERNEL_MIN => Err(Error::Kernel {
            operation: "run the filter in user space, and hand the host the rest",
            running,
            needed: LIVE_FRAMES_KERNEL_MIN,
        }),
        _ => Ok(FilterPlace::UserSpace(why.to_string())),
    }
}

/// A program that also asks the driver about packets, and the mark of its notes.
fn with_hints(
    sockets: &SocketMap,
    fragments: bool,
    filter: &[Instruction],
    interface: &Interface,
) -> Result<(XdpProgram, u64), Unsupported> {
    // Asked first: a program that asks in vain would cost every packet, and refusals by the verifier tell nothing.
    if XdpFeatures::of(interface.index).is_ok_and(|features| features.receive_metadata == Some(0)) {
        return Err(Unsupported::Driver);
    }
    let mut mark = [0; size_of::<u64>()];
    // Never short: so few bytes come at once (getrandom(2)).
    rustix::rand::getrandom(&mut mark, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| Unsupported::Refused)?;
    let mark = u64::from_ne_bytes(mark) | 1; // not what frames are erased with
    Ok((XdpProgram::redirect_with_hints(sockets, fragments, filter, interface.index, mark)?, mark))
}

#[cfg(all(test, not(nocopy_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_takes_nothing_back_runs_no_filter_in_user_space() {
        let place = |minor| in_user_space(&"why", Some(KernelVersion(5, minor)));
        assert_eq!(place(18).unwrap(), FilterPlace::UserSpace("why".into()));
        let error = place(17).unwrap_err();
        assert!(matches!(error, Error::Kernel { .. }), "a packet ring is tried after this: {error}");
    }
}
