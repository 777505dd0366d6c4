//! Attaching a program, by link, and putting back what was displaced.

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
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

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

/// A program on an interface; detached on drop, and by the kernel when the process dies.
#[derive(Debug)]
pub struct Attachment {
    link: Option<OwnedFd>,
    displaced: Option<Displaced>,
    /// Nothing is put back.
    left: AtomicBool,
}

impl Attachment {
    /// That of a link made elsewhere.
    pub(crate) fn by(link: OwnedFd) -> Self {
        Self { link: Some(link), displaced: None, left: AtomicBool::new(false) }
    }

    /// Leaves interface and link to another process that has the link.
    pub(crate) fn leave(&self) {
        self.left.store(true, Relaxed);
    }

    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_ref().expect("taken only by drop").as_fd()
    }
}

/// A program that was there before, attached without a link.
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

    /// Attaches the program even if another is there; that one is put back when the attachment is dropped. (If the
    /// process is killed instead, the other program stays detached: nobody is left to put it back.)
    ///
    /// # Errors
    /// As [`Program::attach`]; and a program that is held by a bpf link cannot be displaced.
    pub fn displace(&self, interface: &str, at: Attach) -> Result<Attachment, Error> {
        let known = lookup(interface)?;
        match self.link(&known, at) {
            Ok(link) => Ok(Attachment::by(link)),
            Err(Error::Occupied { program_id, .. }) => {
                let displaced = Displaced::take_away(&known, program_id)?;
                // From here on the other program is put back, also if this one cannot be attached.
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

/// The program on an interface and where it runs.
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
        let (_, at) = attached(interface.index)
            .map_err(system("find the XDP program there"))?
            .ok_or(Error::Occupied { interface: interface.name.clone(), program_id })?;
        let program = bpf::program_by_id(program_id).map_err(system("open the XDP program there"))?;
        let route = route::socket().map_err(system("open a netlink socket"))?;
        set_program(&route, interface.index, -1, at).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => Error::Held { interface: interface.name.clone(), program_id },
            _ => Error::System { operation: "detach the XDP program there", source },
        })?;
        Ok(Self { program, interface_index: interface.index, at, route })
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Our link first: the kernel keeps links and plain attachments apart.
        self.link.take();
        let displaced = self.displaced.take().filter(|_| !*self.left.get_mut());
        if let Some(Displaced { program, interface_index, at, route }) = displaced {
            let descriptor = bpf::number(&program).cast_signed();
            // The interface may be gone by now; then there is nothing to put back.
            let _ = set_program(&route, interface_index, descriptor, at);
        }
    }
}

/// Attaches or, with -1, detaches a program the way `ip link set … xdp` does.
fn set_program(route: &Socket, interface_index: u32, descriptor: i32, at: Attach) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = interface_index;
    message.attributes = vec![LinkAttribute::Xdp(vec![LinkXdp::Fd(descriptor), LinkXdp::Flags(at.flags())])];
    exchange(route, RouteNetlinkMessage::SetLink(message), NLM_F_REQUEST | NLM_F_ACK).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_displaced_on_request_is_put_back() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let end = lab.left();
        end.namespace().run(|| {
            let (index, name) = (end.index(), end.interface());
            let there = Program::pass().unwrap();
            let number = bpf::number(&there).cast_signed();
            set_program(&route::socket().unwrap(), index, number, Attach::Native).unwrap();
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
