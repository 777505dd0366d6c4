//! PORTMAP, version 2 (RFC 1833, section 3): how a client finds the port of a program.

use super::xdr::{xdr_enum, xdr_struct};

pub const PROGRAM: u32 = 100_000;
pub const VERSION: u32 = 2;

/// The port mapper's own port.
pub const PORT: u16 = 111;

pub const TCP: u32 = 6;

/// CALLIT, a call of another program by the portmapper, which is not served. Refused by UDP, it is not
/// answered (RFC 1833, section 3.2).
pub const CALL_INDIRECTLY: u32 = 5;

xdr_enum! {
    Procedure, "a procedure of PORTMAP that is served" {
        Null = 0,
        GetPort = 3,
        Dump = 4,
    }
}

xdr_struct! {
    /// A program, and its port; 0 in a request.
    Mapping {
        program: u32,
        version: u32,
        protocol: u32,
        port: u32,
    }
}
