//! Attaches programs by link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Error, Program};
use crate::sys::bpf;
use crate::sys::interface::Interface;
use crate::sys::route::attached_programs;

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
    const fn attach_flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// A program on an interface; detached on drop, and by the kernel when the process dies.
#[derive(Debug)]
pub struct Attachment(OwnedFd);

impl Attachment {
    /// The attachment of a link made by another process.
    pub(crate) fn from_link(link: OwnedFd) -> Self {
        Self(link)
    }

    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Program {
    /// Attaches the program to `interface`, looked up in the calling thread's network namespace.
    ///
    /// # Errors
    /// No such interface, a program already there, no native XDP in the driver, the kernel's refusal.
    pub fn attach(&self, interface: &str, at: Attach) -> Result<Attachment, Error> {
        let known = look_up_named_interface(interface)?;
        let link = self.attach_link(&known, at)?;
        Ok(Attachment::from_link(link))
    }

    fn attach_link(&self, interface: &Interface, at: Attach) -> Result<OwnedFd, Error> {
        bpf::attach_xdp(self.as_fd(), interface.index, at.attach_flags())
            .map_err(|source| attach_error(interface, at, source))
    }
}

pub(crate) fn look_up_named_interface(interface: &str) -> Result<Interface, Error> {
    Interface::look_up(interface).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => Error::NoInterface { interface: interface.to_owned() },
        _ => Error::System { operation: "look up an interface", source },
    })
}

fn attach_error(interface: &Interface, at: Attach, source: io::Error) -> Error {
    let name = || interface.name.clone();
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => match attached_program(interface.index) {
            Ok(Some((program_id, _))) => Error::Occupied { interface: name(), program_id },
            _ => Error::System { operation: "attach an XDP program", source },
        },
        Some(libc::EOPNOTSUPP) if at == Attach::Native => Error::NoNative { interface: name(), source },
        Some(libc::ERANGE) => Error::Mtu { interface: name(), mtu_bytes: interface.mtu_bytes, source },
        _ => Error::from_refusal("attach an XDP program", source),
    }
}

pub(crate) fn attached_program(interface_index: u32) -> io::Result<Option<(u32, Attach)>> {
    let programs = attached_programs(interface_index)?;
    let in_driver = programs.in_driver.map(|id| (id, Attach::Native));
    Ok(in_driver.or(programs.generic.map(|id| (id, Attach::Generic))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attached_program_is_not_replaced() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let end = lab.left();
        end.namespace().run(|| {
            let (index, name) = (end.index(), end.interface());
            let there = Program::pass().unwrap().attach(name, Attach::Native).unwrap();
            let before = attached_program(index).unwrap().unwrap();
            let refused = Program::pass().unwrap().attach(name, Attach::Native).unwrap_err();
            assert!(
                matches!(refused, Error::Occupied { program_id, .. } if program_id == before.0),
                "{refused}"
            );
            assert_eq!(attached_program(index).unwrap(), Some(before));
            drop(there);
            assert_eq!(attached_program(index).unwrap(), None);
        });
    }

    #[test]
    fn missing_native_xdp_is_a_named_error() {
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
