//! The results of a sweep: an amount received by TCP into buffers of every length, with and without being
//! profiled.
//!
//! ```text
//!   trials of a cell: buffer × receive buffer × GRO ─▶ medians, overhead, sums of figures ─▶ text, page, JSON, rows of the study of 2011
//! ```

mod analysis;
mod cell;
mod page;
mod result;
mod table;
mod throughput;

pub use analysis::receive_analysis_of;
pub use cell::{CellSamples, CellSettings, SweepTrial};
pub use page::html_page_of;
pub use result::{CellFigures, MedianRange, SCHEMA, SweepResult};
pub use table::{settings_title, sweep_text};
pub use throughput::throughput_report_of;
