//! Memory that the kernel, and the card, read and write: [`area`]s of frames, [`pool`]s of buffers.

pub mod area;
pub mod pool;
