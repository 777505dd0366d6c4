//! Interfaces by their names.

use nix::net::if_::if_nameindex;

use crate::Failure;

/// All of the calling thread's network namespace, in the order of their indices.
pub(crate) fn interface_names() -> Result<Vec<String>, Failure> {
    let found = if_nameindex().map_err(|errno| Failure::Interfaces(errno.into()))?;
    let mut found: Vec<_> = found.iter().map(|interface| (interface.index(), interface.name())).collect();
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, name)| name.to_string_lossy().into_owned()).collect())
}
