//! What returning packets to the host needs that takes privileges to make.

use std::sync::Arc;

use super::ToHostError;
use crate::facts::features;
use crate::facts::kernel::KernelVersion;
use crate::port::xdp::{self, Program};
use crate::sys::interface::InterfaceQuery;
use crate::sys::namespace::NamespaceId;

/// The program that lets a packet pass, and where.
#[derive(Debug, Clone)]
pub(super) struct HostPath {
    pub(super) program: Arc<Program>,
    pub(super) namespace: NamespaceId,
}

impl HostPath {
    pub(super) fn prepare(interface: &str, query: &InterfaceQuery) -> Result<Self, ToHostError> {
        if let Some(running) = KernelVersion::running()
            && running < features::LIVE_FRAMES.kernel
        {
            let (operation, needed) = ("hand packets to the host", features::LIVE_FRAMES.kernel);
            return Err(xdp::Error::Kernel { operation, running, needed }.into());
        }
        let namespace = query.namespace().map_err(|source| ToHostError::System {
            interface: interface.to_owned(),
            operation: "find out the port's network namespace",
            source,
        })?;
        Ok(Self { program: Arc::new(Program::pass()?), namespace })
    }
}
