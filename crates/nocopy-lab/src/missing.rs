use rustix::thread::CapabilitySet;

/// Something this machine does not have, named exactly.
///
/// Not a failure of the code: a test that meets one is skipped, visibly (see [`skip`](crate::skip)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A capability of this process, such as `CAP_NET_ADMIN`.
    #[error("needs {0}; this process does not have it; run it as root or grant the capability")]
    Capability(&'static str),
    /// A feature of the kernel, with its build option.
    #[error("needs {0}; this kernel does not have it; use a kernel built with it")]
    Kernel(&'static str),
    /// A device, such as a network card with zero-copy XDP.
    #[error("needs {0}; this machine does not have it; run it where there is one")]
    Device(&'static str),
}

impl Missing {
    /// The name alone, without the sentence.
    pub fn name(&self) -> &'static str {
        match self {
            Missing::Capability(name) | Missing::Kernel(name) | Missing::Device(name) => name,
        }
    }
}

/// Names the first capability a lab needs that this thread does not have.
///
/// Checked first, because the kernel's EPERM does not name the missing capability.
pub(crate) fn require_capabilities() -> Result<(), Missing> {
    // A process that may not read its own capabilities finds out at the first refused call.
    let Ok(sets) = rustix::thread::capabilities(None) else { return Ok(()) };
    let needed = [(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")];
    match needed.iter().find(|(capability, _)| !sets.effective.contains(*capability)) {
        Some((_, name)) => Err(Missing::Capability(name)),
        None => Ok(()),
    }
}
