//! Tables of words and figures, for terminals and for pages.

use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, presets};

#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The note; empty if there is none.
    pub header: Vec<String>,
    /// The columns of figures, which are aligned at the right.
    pub figures: Range<usize>,
    pub rows: Vec<Vec<String>>,
}

/// Lines of a name and its text.
impl From<Vec<(String, String)>> for Table {
    fn from(rows: Vec<(String, String)>) -> Self {
        Self::new(&[], 0..0, rows.into_iter().map(|(name, said)| vec![name, said]).collect())
    }
}

impl Table {
    pub fn new(header: &[&str], figures: Range<usize>, rows: Vec<Vec<String>>) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), figures, rows }
    }

    /// For a terminal: aligned, without lines.
    pub fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if !self.header.is_empty() {
            table.set_header(&self.header);
        }
        table.add_rows(&self.rows);
        for index in self.figures.clone() {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}
