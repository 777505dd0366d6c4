//! The results of a sweep: an amount received by TCP into buffers of every length, with and without being
//! profiled.
//!
//! ```text
//!   trials of a cell: buffer × receive buffer × GRO ─▶ medians, overhead, sums of figures ─▶ text, page, JSON, rows of the study of 2011
//! ```

mod analysis;
mod cell;
mod page;
#[cfg(test)]
#[path = "../../../nocopy-report/src/page/reading.rs"]
mod reading;
mod result;
mod table;
mod throughput;

pub use analysis::of as analysis_of;
pub use cell::{Cell, Samples, Trial};
pub use page::of as page_of;
pub use result::{CellFigures, Range, SCHEMA, Sweep};
pub use table::{text, title};
pub use throughput::of as throughput_of;
