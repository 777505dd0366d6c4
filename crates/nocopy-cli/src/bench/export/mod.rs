//! Results for others, an exporter a file.

pub(crate) mod json;
pub(crate) mod table;
