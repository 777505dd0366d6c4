//! XDP programs, assembled here from a few instructions, so that neither clang nor an ELF loader is needed.
//!
//! A program is attached by a *link*: when the [`Attachment`] is dropped, or the process dies for any reason,
//! the kernel detaches the program. A program that is already attached stays.

mod attachment;
mod generator;
mod hints;
mod pass_header;
mod program;
mod recipe;

use nocopy_proto::errno::{ErrorCause, advice};
use std::io;

pub use attachment::{Attach, Attachment};
pub(crate) use attachment::{attached_program, look_up_named_interface};
pub use generator::Generator;
pub(crate) use hints::MetadataNoteSettings;
pub(crate) use pass_header::PassHeader;
pub(crate) use program::SocketMap;
pub use program::{Counter, Program};
pub(crate) use recipe::RedirectRecipe;

use crate::facts::features;
use crate::facts::io_error::convert_to_io_error;
pub(crate) use crate::facts::kernel::KernelVersion;
use crate::facts::metadata::Unsupported;
use crate::sys::capability;
use nocopy_proto::filter::Untranslatable;

/// Why an XDP program could not be loaded, attached or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capability is missing.
    #[error(
        "XDP: cannot {operation}; {capability} is missing; run as root, or grant it with {}",
        capability::GRANT
    )]
    Capability {
        /// The operation.
        operation: &'static str,
        /// The capability, by its name in capabilities(7).
        capability: &'static str,
    },
    /// The kernel is too old.
    #[error("XDP: cannot {operation}; Linux {running} is too old; use Linux {needed} or newer")]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The running kernel.
        running: KernelVersion,
        /// The oldest kernel with the feature.
        needed: KernelVersion,
    },
    /// No such interface in this network namespace.
    #[error(
        "{interface}: no such interface; this network namespace has none of that name; 'ip link' lists them"
    )]
    NoInterface {
        /// Name asked for.
        interface: String,
    },
    /// An XDP program is already attached.
    #[error(
        "{interface}: not attached; XDP program {program_id} is there already; detach it with 'ip link set dev {interface} xdp \
         off', or end the process that attached it ('bpftool link' shows it)"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The attached program's id, as bpftool shows it.
        program_id: u32,
    },
    /// Another port of this process has its program on the interface, which accepts no packets of several
    /// buffers.
    #[error(
        "{interface}: packets of several buffers are not possible; the XDP program that a port of this process has there takes packets of one buffer; open that port with multi_buffer, too"
    )]
    OneBuffer {
        /// The interface.
        interface: String,
    },
    /// Another port of this process has its program on the interface, with another filter or none.
    #[error(
        "{interface}: the filter cannot be used; another port of this process has another filter, or none, on this interface, and both share one XDP program; give them one filter, or close that port"
    )]
    OtherFilter {
        /// The interface.
        interface: String,
    },
    /// A filter needs data that an XDP program does not have.
    #[error("filter: cannot run as an XDP program; {source}, or use the mode 'packet ring'")]
    Filter {
        /// What it needs.
        source: Untranslatable,
    },
    /// The program cannot read metadata from the driver.
    #[error("XDP program: cannot read metadata of packets from the driver; {source}")]
    Hints {
        /// Why not.
        source: Unsupported,
    },
    /// The driver does not support XDP.
    #[error("{interface}: native XDP is not available; its driver lacks it; use generic mode, which copies")]
    NoNative {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The MTU is larger than the driver can pass to XDP in one buffer.
    #[error(
        "{interface}: MTU {mtu_bytes} is too large for XDP without multi-buffer support{cause}; lower it, for example \
         'ip link set dev {interface} mtu 1500'", cause = ErrorCause(.source))]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The verifier refused a program: a bug of this library or a very old kernel.
    #[error("XDP: the kernel's verifier refused the program{cause}; {log}; please report this", cause = ErrorCause(.source))]
    Verifier {
        /// Last line of the verifier's log.
        log: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused another operation.
    #[error("XDP: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

convert_to_io_error!(Error {
    Self::Capability { .. } => io::ErrorKind::PermissionDenied,
    Self::NoInterface { .. } => io::ErrorKind::NotFound,
    Self::Occupied { .. } | Self::OneBuffer { .. } | Self::OtherFilter { .. } => io::ErrorKind::ResourceBusy,
    _ => io::ErrorKind::Unsupported,
});

impl Error {
    /// Finds the cause of a refusal as exactly as this process can.
    fn from_refusal(operation: &'static str, source: io::Error) -> Self {
        Self::from_refusal_since(operation, features::PORT.kernel, source)
    }

    /// As [`from_refusal`](Self::from_refusal), for a feature that exists since the kernel `needed`.
    pub(crate) fn from_refusal_since(
        operation: &'static str,
        needed: KernelVersion,
        source: io::Error,
    ) -> Self {
        let refused = matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        if refused && let Some(capability) = capability::missing_capability(capability::PROGRAM) {
            return Self::Capability { operation, capability };
        }
        if let Some(running) = KernelVersion::running()
            && running < needed
        {
            return Self::Kernel { operation, running, needed };
        }
        Self::System { operation, source }
    }
}
