//! Part of the `nocopy` command, without a promised API: NFS version 3 over TCP (RFC 1813, 5531, 4506): wire
//! formats, a server, and a client.
//!
//! ```text
//!   a client's bytes ─▶ wire::record ─▶ wire::rpc, nfs3, mount: a call
//!                                                  │ server::core
//!                       export: handle ─▶ file ◀───┘
//!                                           │ server: splice(2)
//!                                           ▼
//!                                        a pipe ─▶ the socket
//! ```
//!
//! The modules in their layers: each uses only those below it (`cargo xtask check` reads this list).
//!
//! ```text
//! command
//! client  server
//! export
//! wire
//! ```
// Used only by the crates of this workspace: comments are needed only where a name does not suffice.
#![allow(missing_docs)]

pub mod client;
pub mod command;
pub mod export;
pub mod server;
pub mod wire;
