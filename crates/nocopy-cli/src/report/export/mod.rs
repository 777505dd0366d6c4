//! Comparisons for others, an exporter a file.

pub(crate) mod text;
