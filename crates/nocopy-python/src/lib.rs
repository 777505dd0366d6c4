//! The Python module `nocopy`: packets, datagrams and messages as numpy arrays, over the library. It has no
//! mechanism of its own.
//!
//! ```text
//!   python/nocopy/__init__.py    classes with coroutines; nocopy.scapy
//!              │
//!      capture  port  udp  message        a class for each kind
//!              │
//!   received: what came, as arrays        exported: arrays that are sent, or received into
//!              │                                  │
//!        half: one thread at a time, waits without the interpreter, Ctrl-C, fork
//! ```
//!
//! Who owns what: memory of ours that Python sees is a [`memory::Memory`], which numpy's arrays keep alive.
//! Memory of Python's that we read or write is an [`exported::Exported`] buffer, which Python can neither
//! free nor resize meanwhile. While Python has access to bytes, they are only touched through raw pointers.
//!
//! The modules in their layers: each uses only modules below it (`cargo xtask check` reads this list).
//!
//! ```text
//! capture  udp  message
//! port
//! packets  filter
//! half  account  settings
//! exported  memory  address
//! error  number
//! ```
#![allow(unsafe_code)]

mod account;
mod address;
mod capture;
mod error;
mod exported;
mod filter;
mod half;
mod memory;
mod message;
mod number;
mod packets;
mod port;
mod settings;
mod udp;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_nocopy")]
fn nocopy_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::add_classes(module)?;
    module.add_class::<memory::Memory>()?;
    capture::add_classes(module)?;
    port::add_classes(module)?;
    udp::add_classes(module)?;
    message::add_classes(module)
}
