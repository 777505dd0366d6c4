//! Inspects machine, interfaces and ports without changing anything, for `nocopy doctor` and `nocopy stats`.

pub mod probe;
pub(crate) mod statistics;
