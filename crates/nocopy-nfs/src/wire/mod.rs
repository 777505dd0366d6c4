//! Wire formats, for servers and clients: bytes in, values out, and back. No sockets and no clock.
//!
//! Claimed lengths never decide how much memory is allocated: they are checked against what has arrived,
//! opaque data is borrowed from its record, and lists grow while they are read. (The crate `nfs3_types` was
//! tried: it allocates an opaque field by its claimed length, 4 GiB for eight bytes received, before it finds
//! that the data is missing.)

pub mod mount;
pub mod nfs3;
pub mod oracle;
pub mod portmap;
pub mod record;
pub mod rpc;
#[cfg(test)]
mod tests;
pub mod xdr;
