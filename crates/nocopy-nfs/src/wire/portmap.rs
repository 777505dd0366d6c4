//! How a client finds the port of a program: PORTMAP, version 2 (RFC 1833, section 3).

use super::xdr::{xdr_enum, xdr_struct};

pub const PROGRAM: u32 = 100_000;
pub const VERSION: u32 = 2;

/// Where it is asked for.
pub const PORT: u16 = 111;

pub const TCP: u32 = 6;

xdr_enum! {
    Procedure, "a procedure of PORTMAP that is served" {
        Null = 0,
        GetPort = 3,
        Dump = 4,
    }
}

xdr_struct! {
    /// A program, and where it is served; what is asked for has port 0.
    Mapping {
        program: u32,
        version: u32,
        protocol: u32,
        port: u32,
    }
}
