//! Charts as SVG that fits any width: horizontal positions are percentages, so text keeps its size and no
//! script is needed.
//!
//! Shapes that many charts draw are on a page once ([`symbol_definitions`]), and the style sheet draws the
//! rest, because a page has hundreds of rows.

mod line;
mod mark;
mod scale;
mod stack;

use maud::{Markup, html};

use crate::table::Table;
pub use line::{ChartLine, ChartPoint, LineChart};
pub use scale::AxisScale;
pub use stack::{StackedBar, StackedBarChart};

pub trait Chart {
    fn title(&self) -> &str;

    fn draw(&self) -> SvgDrawing;

    /// The meaning of shapes and colours, unless the page shows it elsewhere.
    fn legend(&self) -> Option<Markup> {
        None
    }
}

/// The inside of an SVG.
#[derive(Debug)]
pub struct SvgDrawing {
    height: u32,
    body: Markup,
}

/// A chart with its table, folded; `id` must be unique on the page.
pub fn chart_with_folded_table(id: &str, chart: &dyn Chart, table: &Table) -> Markup {
    html! {
        div {
            (chart_markup(id, chart))
            details {
                summary { "Table" }
                (table_markup(table, chart.title()))
            }
        }
    }
}

/// A chart whose figures are in a table beside it; `id` must be unique on the page.
pub fn chart_markup(id: &str, chart: &dyn Chart) -> Markup {
    let SvgDrawing { height, body } = chart.draw();
    html! {
        figure {
            figcaption id=(id) { (chart.title()) }
            @if let Some(legend) = chart.legend() { (legend) }
            svg class="chart" role="img" height=(height) aria-labelledby=(id) { (body) }
        }
    }
}

/// The shapes of marks and the textures of parts, once for all charts of a page.
pub fn symbol_definitions() -> Markup {
    html! { svg class="symbols" aria-hidden="true" { defs { (mark::mark_definitions()) (stack::texture_definitions()) } } }
}

/// A table in its own box, so that the page does not scroll sideways.
pub fn table_markup(table: &Table, label: &str) -> Markup {
    table_markup_with_intervals(table, label, |_, _| None)
}

/// As [`table_markup`], with intervals drawn under the figures of some cells, given by row and column.
pub fn table_markup_with_intervals(
    table: &Table,
    label: &str,
    interval: impl Fn(usize, usize) -> Option<CellInterval>,
) -> Markup {
    let class = |column: usize| (column > 0 && !table.figures.contains(&column)).then_some("word");
    let style = |row, column| interval(row, column).map(CellInterval::css_variables);
    html! {
        div class="scroll" role="region" tabindex="0" aria-label=(label) {
            table {
                thead { tr {
                    @for (column, name) in table.header.iter().enumerate() {
                        th scope="col" class=[class(column)] { (name) }
                    }
                } }
                tbody {
                    @for (row, cells) in table.rows.iter().enumerate() {
                        tr {
                            @for (column, cell) in cells.iter().enumerate() {
                                @if column == 0 { th scope="row" { (cell) } }
                                @else { td class=[class(column)] style=[style(row, column)] { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// An interval and its median, as fractions of a cell's width. The style sheet draws them.
#[derive(Debug, Clone, Copy)]
pub struct CellInterval {
    pub low: f64,
    pub median: f64,
    pub high: f64,
    /// The position of a reference line, with which a whole column is compared.
    pub reference: Option<f64>,
}

impl CellInterval {
    pub fn css_variables(self) -> String {
        let [low, median, high] = [self.low, self.median, self.high].map(|position| position * 100.0);
        let reference = self.reference.map(|position| format!(";--r:{:.1}", position * 100.0));
        format!("--l:{low:.1};--m:{median:.1};--h:{high:.1}{}", reference.unwrap_or_default())
    }
}

/// The right end of a chart's values, in percent of its width: the rest is for text.
const RIGHT: f64 = 97.0;

/// The horizontal position of a fraction of the axis, which begins at `left` percent.
fn axis_percent(left: f64, position: f64) -> f64 {
    left + position * (RIGHT - left)
}

fn percent_text(value: f64) -> String {
    format!("{value:.1}%")
}

/// A label on an axis, kept within the edges.
fn tick_label(axis_percent: f64, y: u32, text: &str) -> Markup {
    let anchor = match axis_percent {
        ..1.0 => Some("start"),
        96.0.. => Some("end"),
        _ => None,
    };
    html! { text class="tick" x=(percent_text(axis_percent)) y=(y) text-anchor=[anchor] { (text) } }
}

/// Splits a text into lines that fit on a phone, preferably at blanks.
fn wrap_at_blanks(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + word.trim_end().chars().count() > LINE_CHARACTERS {
            lines.push(String::new());
        }
        for character in word.chars() {
            if lines.last().is_none_or(|line| line.chars().count() >= LINE_CHARACTERS) {
                lines.push(String::new());
            }
            lines.last_mut().expect("there is one").push(character);
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// At 14 px, in 290 px.
const LINE_CHARACTERS: usize = 34;

/// The same width beside figures, whose characters are narrower.
const JOINED_LINE_CHARACTERS: usize = 40;

const LINE_PX: u32 = 19;

/// The text over a bar or an interval: a name at the left, a figure at the right, in one line if they fit.
fn bar_heading(y: u32, name: &str, value_text: &str) -> (Markup, u32) {
    let names = wrap_at_blanks(name);
    let last = names.last().map_or(0, |line| line.chars().count());
    let fits_beside = last + 2 + value_text.chars().count() <= JOINED_LINE_CHARACTERS;
    let value_line = if fits_beside { names.len().saturating_sub(1) } else { names.len() };
    let baseline = |line: usize| y + LINE_PX * line as u32 + 14;
    let height = LINE_PX * (value_line as u32 + 1);
    let markup = html! {
        @for (index, line) in names.iter().enumerate() {
            text y=(baseline(index)) { (line) }
        }
        text class="value" x="100%" y=(baseline(value_line)) { (value_text) }
    };
    (markup, height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_broken_at_blanks() {
        assert_eq!(wrap_at_blanks("short"), ["short"]);
        let long = "a name of several words that is longer than a telephone is wide";
        assert_eq!(
            wrap_at_blanks(long),
            ["a name of several words that is", "longer than a telephone is wide"]
        );
        assert_eq!(wrap_at_blanks(&"x".repeat(90)).iter().map(String::len).collect::<Vec<_>>(), [34, 34, 22]);
        assert_eq!(wrap_at_blanks("").len(), 0);
    }
}
