//! Bars of amounts that consist of parts.

use maud::{Markup, html};

use super::mark::TONES;
use super::scale::AxisTick;
use super::{AxisScale, Chart, SvgDrawing, axis_percent, bar_heading, percent_text, tick_label};
use crate::quantity;

#[derive(Debug, Clone)]
pub struct StackedBarChart {
    /// Quantity and unit.
    pub title: String,
    pub parts: Vec<String>,
    pub bars: Vec<StackedBar>,
}

#[derive(Debug, Clone)]
pub struct StackedBar {
    pub name: String,
    /// One for each part, in the same order.
    pub amounts: Vec<f64>,
}

impl StackedBar {
    fn total(&self) -> f64 {
        self.amounts.iter().copied().map(drawable_amount).sum()
    }
}

/// The amount as a length: 0 if it is negative or not finite.
fn drawable_amount(amount: f64) -> f64 {
    if amount.is_finite() { amount.max(0.0) } else { 0.0 }
}

const BAR_PX: u32 = 24;
const GAP_PX: u32 = 8;
const AXIS_PX: u32 = 22;

/// Narrower parts, in percent of the width, have no room for their letter.
const LETTER_PERCENT: f64 = 6.5;

/// The number of different fills; later parts repeat them.
const FILLS: usize = 16;

/// A pattern drawn over the colour of a part, in a square of 8 px: neighbouring parts differ.
const TEXTURES: [&str; 7] = [
    "",
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M0 2h8M0 6h8",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M2 0v8M6 0v8",
    "M2 2h2v2h-2zM6 6h2v2h-2z",
    "M0 0L8 8M8 0L0 8",
];

impl Chart for StackedBarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self) -> SvgDrawing {
        let scale = AxisScale::linear_from_zero(self.bars.iter().map(StackedBar::total));
        let ticks = scale.ticks(5);
        let mut y = 0;
        let mut body = Vec::new();
        for bar in &self.bars {
            let (heading, height) = bar_heading(y, &bar.name, &quantity::short_number(bar.total()));
            body.push(heading);
            y += height;
            body.push(draw_stacked_bar(bar, &scale, y));
            y += BAR_PX + GAP_PX;
        }
        body.push(draw_axis(&scale, &ticks, y));
        SvgDrawing { height: y + AXIS_PX, body: html! { @for part in &body { (part) } } }
    }

    fn legend(&self) -> Option<Markup> {
        Some(html! {
            ul class="legend" {
                @for (index, part) in self.parts.iter().enumerate() {
                    li {
                        svg class="sample" width="24" height="18" aria-hidden="true" {
                            rect width="24" height="18" fill=(texture_url(index)) {}
                        }
                        b { (part_letter(index)) } " " (part)
                    }
                }
            }
        })
    }
}

fn draw_stacked_bar(bar: &StackedBar, scale: &AxisScale, y: u32) -> Markup {
    let mut end = 0.0;
    let parts = bar.amounts.iter().enumerate().map(|(index, &amount)| {
        let from = axis_percent(0.0, scale.position(end));
        end += drawable_amount(amount);
        (index, from, axis_percent(0.0, scale.position(end)) - from)
    });
    let parts: Vec<_> = parts.filter(|(_, _, width)| *width > 0.0).collect();
    html! {
        svg class="stack" y=(y) {
            rect class="band" width="100%" {}
            @for &(index, from, width) in &parts {
                rect x=(percent_text(from)) width=(percent_text(width)) fill=(texture_url(index)) {}
            }
            @for &(index, from, width) in parts.iter().filter(|(_, _, width)| *width >= LETTER_PERCENT) {
                text x=(percent_text(from + width / 2.0)) y="17" { (part_letter(index)) }
            }
        }
    }
}

fn draw_axis(scale: &AxisScale, ticks: &[AxisTick], y: u32) -> Markup {
    html! { @for named in ticks { (tick_label(axis_percent(0.0, scale.position(named.value)), y + 11, &named.text)) } }
}

/// The letter for a part that is too small for its name.
fn part_letter(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}

fn texture_url(index: usize) -> String {
    format!("url(#part-{})", index % FILLS)
}

pub(super) fn texture_definitions() -> Markup {
    html! {
        @for index in 0..FILLS {
            pattern id={ "part-" (index) } width="8" height="8" patternUnits="userSpaceOnUse" {
                rect class={ "ground tone-" (index % TONES) } width="8" height="8" {}
                path class="texture" d=(TEXTURES[index % TEXTURES.len()]) {}
            }
        }
    }
}
