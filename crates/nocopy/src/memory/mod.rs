//! Memory that the kernel and the card read and write: [`area`]s of frames, [`pool`]s of buffers, and the
//! queue of sends, whose memory the kernel reads.

#[cfg(feature = "port")]
pub mod area;
#[cfg(not(feature = "port"))]
#[path = "area/absent.rs"]
pub(crate) mod area;
pub(crate) mod pieces;
pub mod pool;
pub(crate) mod receive_buffers;
pub(crate) mod rows;
pub(crate) mod send_queue;
