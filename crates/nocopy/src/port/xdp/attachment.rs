//! Attaches programs by link, and restores displaced ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use netlink_sys::Socket;

use super::{Error, Program};
use crate::sys::bpf;
use crate::sys::interface::Interface;
use crate::sys::route::{self, exchange};

// linux/if_link.h
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// In the driver, before a socket buffer is made.
    Native,
    /// In the network core, on socket buffers: works everywhere, and is slower.
    Generic,
}

impl Attach {
    const fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// A program on an interface; detached on drop, and by the kernel when the process dies. A displaced program is restored only by
/// [`close`](Self::close) and on drop; see [`Program::displace`].
#[derive(Debug)]
pub struct Attachment {
    link: Option<OwnedFd>,
    displaced: Option<Displaced>,
    /// True: the displaced program is not restored.
    left: AtomicBool,
}

impl Attachment {
    /// The attachment of a link made by another process.
    pub(crate) fn by(link: OwnedFd) -> Self {
        Self { link: Some(link), displaced: None, left: AtomicBool::new(false) }
    }

    /// Leaves interface and link to another process that owns the link.
    pub(crate) fn leave(&self) {
        self.left.store(true, Relaxed);
    }

    /// Detaches the program, and restores the displaced one: as on drop, but reports errors.
    ///
    /// # Errors
    /// The displaced program could not be restored, because the process has no `CAP_NET_ADMIN` any more, or because another program was
    /// attached in the meantime, which then stays. The displaced program stays detached. (A removed interface is no error.)
    pub fn close(mut self) -> Result<(), Error> {
        self.detach()
    }

    fn detach(&mut self) -> Result<(), Error> {
        // The link is restored first: the kernel allows no plain attachment beside it.
        self.link.take();
        let displaced = self.displaced.take().filter(|_| !*self.left.get_mut());
        match displaced.map_or(Ok(()), |displaced| displaced.put_back()) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                Err(Error::from_refusal("put the displaced XDP program back", error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_ref().expect("taken only by detach").as_fd()
    }
}

/// The program that this one displaced, which had no link, and is attached again when this one is detached.
#[derive(Debug)]
struct Displaced {
    program: OwnedFd,
    interface_index: u32,
    at: Attach,
    /// Opened in the interface's network namespace, which the dropping thread need not be in.
    route: Socket,
}

impl Program {
    /// Attaches the program to `interface`, looked up in the calling thread's network namespace.
    ///
    /// # Errors
    /// No such interface, a program already there, no native XDP in the driver, the kernel's refusal.
    pub fn attach(&self, interface: &str, at: Attach) -> Result<Attachment, Error> {
        let known = lookup(interface)?;
        let link = self.link(&known, at)?;
        Ok(Attachment::by(link))
    }

    /// Attaches the program even if another is attached, which is restored when the attachment is closed or dropped. The displaced program
    /// stays detached if the process is killed, or has given up `CAP_NET_ADMIN` by then, which only [`Attachment::close`] reports. For a
    /// moment between the two programs the interface has none.
    ///
    /// # Errors
    /// As [`Program::attach`]. A program held by a bpf link cannot be displaced. If others attach or detach programs at the same time, the
    /// attached one stays ([`Error::Occupied`]).
    pub fn displace(&self, interface: &str, at: Attach) -> Result<Attachment, Error> {
        let known = lookup(interface)?;
        match self.link(&known, at) {
            Ok(link) => Ok(Attachment::by(link)),
            Err(Error::Occupied { program_id, .. }) => {
                let displaced = Displaced::take_away(&known, program_id)?;
                // From here on the other program is restored, also if this one cannot be attached.
                let mut attachment =
                    Attachment { link: None, displaced: Some(displaced), left: AtomicBool::new(false) };
                attachment.link = Some(self.link(&known, at)?);
                Ok(attachment)
            }
            Err(error) => Err(error),
        }
    }

    fn link(&self, interface: &Interface, at: Attach) -> Result<OwnedFd, Error> {
        bpf::attach_xdp(self.as_fd(), interface.index, at.flags())
            .map_err(|source| refusal(interface, at, source))
    }
}

pub(crate) fn lookup(interface: &str) -> Result<Interface, Error> {
    Interface::named(interface).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => Error::NoInterface { interface: interface.to_owned() },
        _ => Error::System { operation: "look up an interface", source },
    })
}

fn refusal(interface: &Interface, at: Attach, source: io::Error) -> Error {
    let name = || interface.name.clone();
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => match attached(interface.index) {
            Ok(Some((program_id, _))) => Error::Occupied { interface: name(), program_id },
            _ => Error::System { operation: "attach an XDP program", source },
        },
        Some(libc::EOPNOTSUPP) if at == Attach::Native => Error::NoNative { interface: name(), source },
        Some(libc::ERANGE) => Error::Mtu { interface: name(), mtu_bytes: interface.mtu_bytes, source },
        _ => Error::from_refusal("attach an XDP program", source),
    }
}

pub(crate) fn attached(interface_index: u32) -> io::Result<Option<(u32, Attach)>> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    let reply = exchange(&route::socket()?, RouteNetlinkMessage::GetLink(message), NLM_F_REQUEST)?;
    let Some(RouteNetlinkMessage::NewLink(link)) = reply else { return Ok(None) };
    let xdp = link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => Some(xdp),
        _ => None,
    });
    Ok(xdp.into_iter().flatten().find_map(|entry| match entry {
        LinkXdp::DrvProgId(id) => Some((id, Attach::Native)),
        LinkXdp::SkbProgId(id) => Some((id, Attach::Generic)),
        _ => None,
    }))
}

impl Displaced {
    fn take_away(interface: &Interface, program_id: u32) -> Result<Self, Error> {
        let system = |operation| move |source| Error::System { operation, source };
        let occupied = || Error::Occupied { interface: interface.name.clone(), program_id };
        let (_, at) =
            attached(interface.index).map_err(system("find the XDP program there"))?.ok_or_else(occupied)?;
        let program = bpf::program_by_id(program_id).map_err(system("open the XDP program there"))?;
        let route = route::socket().map_err(system("open a netlink socket"))?;
        let displaced = Self { program, interface_index: interface.index, at, route };
        displaced.detach().map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => Error::Held { interface: interface.name.clone(), program_id },
            // Another program replaced it.
            Some(libc::EEXIST) => occupied(),
            _ => Error::System { operation: "detach the XDP program there", source },
        })?;
        Ok(displaced)
    }

    /// Detaches this program; `EEXIST` if another has replaced it since it was looked up.
    fn detach(&self) -> io::Result<()> {
        let flags = LinkXdp::Flags(self.at.flags() | XDP_FLAGS_REPLACE);
        self.change(vec![LinkXdp::Fd(-1), LinkXdp::ExpectedFd(bpf::number(&self.program)), flags])
    }

    /// Attaches the program if there is no other.
    fn put_back(&self) -> io::Result<()> {
        let flags = LinkXdp::Flags(self.at.flags() | XDP_FLAGS_UPDATE_IF_NOEXIST);
        self.change(vec![LinkXdp::Fd(bpf::number(&self.program).cast_signed()), flags])
    }

    /// Attaches or detaches as `ip link set … xdp` does.
    fn change(&self, how: Vec<LinkXdp>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.interface_index;
        message.attributes = vec![LinkAttribute::Xdp(how)];
        exchange(&self.route, RouteNetlinkMessage::SetLink(message), NLM_F_REQUEST | NLM_F_ACK).map(drop)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let _ = self.detach(); // whoever wants to know calls close
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program attached without a link, as by `ip link`.
    fn plain(interface_index: u32) -> Displaced {
        let program = Program::pass().unwrap().as_fd().try_clone_to_owned().unwrap();
        Displaced { program, interface_index, at: Attach::Native, route: route::socket().unwrap() }
    }

    #[test]
    fn only_the_program_that_was_looked_up_is_detached() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let index = lab.left().index();
        lab.left().namespace().run(|| {
            let (expected, came) = (plain(index), plain(index));
            came.put_back().unwrap();
            let before = attached(index).unwrap().unwrap();
            assert_eq!(expected.detach().unwrap_err().raw_os_error(), Some(libc::EEXIST));
            assert_eq!(expected.put_back().unwrap_err().raw_os_error(), Some(libc::EBUSY));
            assert_eq!(attached(index).unwrap(), Some(before), "it is left alone");
            came.detach().unwrap();
            assert_eq!(attached(index).unwrap(), None);
        });
    }

    #[test]
    fn close_fails_if_the_displaced_program_cannot_return() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (index, name) = (lab.left().index(), lab.left().interface());
        lab.left().namespace().run(|| {
            plain(index).put_back().unwrap();
            let displace = || Program::pass().unwrap().displace(name, Attach::Native).unwrap();
            displace().close().unwrap();
            assert!(attached(index).unwrap().is_some(), "it is back");
            let attachment = displace();
            without_net_admin(|| {
                let error = attachment.close().unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "XDP: cannot put the displaced XDP program back; CAP_NET_ADMIN is missing; run as root, or grant it with 'setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM'"
                );
            });
            assert_eq!(attached(index).unwrap(), None);
        });
    }

    /// Runs a closure on this thread as in a program that has given up the capability.
    fn without_net_admin(act: impl FnOnce()) {
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
        let held = capabilities(None).unwrap();
        let effective = held.effective.difference(CapabilitySet::NET_ADMIN);
        set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
        act();
        set_capabilities(None, held).unwrap();
    }

    #[test]
    fn a_program_displaced_on_request_is_put_back() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let end = lab.left();
        end.namespace().run(|| {
            let (index, name) = (end.index(), end.interface());
            plain(index).put_back().unwrap();
            let before = attached(index).unwrap().unwrap();
            let ours = Program::pass().unwrap();
            let refused = ours.attach(name, Attach::Native).unwrap_err();
            assert!(
                matches!(refused, Error::Occupied { program_id, .. } if program_id == before.0),
                "{refused}"
            );
            let attachment = ours.displace(name, Attach::Native).unwrap();
            assert_ne!(attached(index).unwrap().unwrap().0, before.0);
            drop(attachment);
            assert_eq!(attached(index).unwrap(), Some(before));
        });
    }

    #[test]
    fn native_xdp_is_refused_by_name_where_there_is_none() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let error = Program::pass().unwrap().attach("lo", Attach::Native).unwrap_err();
            assert!(matches!(error, Error::NoNative { .. }), "{error}");
            assert!(Program::pass().unwrap().attach("lo", Attach::Generic).is_ok());
            let error = Program::pass().unwrap().attach("nope0", Attach::Generic).unwrap_err();
            assert!(matches!(error, Error::NoInterface { .. }), "{error}");
        });
    }
}
