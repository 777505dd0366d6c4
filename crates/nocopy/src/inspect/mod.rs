//! Looking at machine, interfaces and ports without changing anything: what `nocopy doctor` and `nocopy stats` read.

pub mod probe;
pub(crate) mod statistics;
