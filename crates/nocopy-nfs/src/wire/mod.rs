//! What goes over the wire, for servers and clients alike: bytes in, values out, and back. No sockets and no clock.
//!
//! Nothing here takes memory by a length that a peer claims: lengths are checked against what has arrived, opaque data is borrowed
//! from the record it came in, and lists grow by what was read. (The types of the crate `nfs3_types` were tried: they allocate an
//! opaque field by its claimed length, 4 GiB for eight bytes received, before they find out that the data is missing.)

pub mod mount;
pub mod nfs3;
pub mod oracle;
pub mod portmap;
pub mod record;
pub mod rpc;
#[cfg(test)]
mod tests;
pub mod xdr;
