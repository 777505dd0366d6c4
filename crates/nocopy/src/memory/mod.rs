//! Memory that the kernel and the card read and write: [`area`]s of frames, [`pool`]s of buffers, and records of the memory that the kernel
//! holds.

pub mod area;
pub(crate) mod in_flight;
pub(crate) mod pieces;
pub mod pool;
pub(crate) mod receive_buffers;
