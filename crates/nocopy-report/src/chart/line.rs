//! Lines of values over lengths in powers of two.

use maud::{Markup, html};

use super::{AxisScale, Chart, SvgDrawing, axis_percent, mark, percent_text, tick_label};

#[derive(Debug, Clone)]
pub struct LineChart {
    /// The quantities of both axes with their units, and which direction is better.
    pub title: String,
    pub lines: Vec<ChartLine>,
}

#[derive(Debug, Clone)]
pub struct ChartLine {
    pub name: String,
    pub values: Vec<ChartPoint>,
}

#[derive(Debug, Clone, Copy)]
pub struct ChartPoint {
    pub length_bytes: u64,
    pub value: f64,
    pub interval: Option<(f64, f64)>,
}

const TOP_PX: f64 = 10.0;
const PLOT_PX: f64 = 240.0;
const AXIS_PX: f64 = 24.0;

/// The left edge of the drawing area, in percent of the width; the names of the vertical axis are left of it.
const LEFT: f64 = 15.0;

/// The dash pattern of a line, in addition to its colour and marks.
const DASHES: [&str; 4] = ["none", "7 4", "2 4", "10 3 2 3"];

impl Chart for LineChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self) -> SvgDrawing {
        let all = || self.lines.iter().flat_map(|line| &line.values);
        let across = AxisScale::powers_of_two(all().map(|value| value.length_bytes as f64));
        let tops = all().map(|value| value.interval.map_or(value.value, |(_, high)| high.max(value.value)));
        let plot = PlotArea { across, upward: AxisScale::linear_from_zero(tops) };
        let body = html! {
            (plot.draw_axes())
            @for (index, line) in self.lines.iter().enumerate() { (plot.draw_line(index, line)) }
        };
        SvgDrawing { height: (TOP_PX + PLOT_PX + AXIS_PX) as u32, body }
    }

    fn legend(&self) -> Option<Markup> {
        Some(html! {
            ul class="legend" {
                @for (index, line) in self.lines.iter().enumerate() {
                    li {
                        svg class={ "sample " (mark::tone_class(index)) } width="42" height="18" viewBox="-21 -9 42 18" aria-hidden="true" {
                            line x1="-21" x2="21" stroke-dasharray=(dash_pattern(index)) {}
                            (mark::mark_of_line(index, "0"))
                        }
                        (line.name)
                    }
                }
            }
        })
    }
}

fn dash_pattern(index: usize) -> &'static str {
    DASHES[index % DASHES.len()]
}

#[derive(Debug)]
struct PlotArea {
    across: AxisScale,
    upward: AxisScale,
}

impl PlotArea {
    fn x_percent(&self, length_bytes: f64) -> f64 {
        axis_percent(LEFT, self.across.position(length_bytes))
    }

    fn y_pixels(&self, value: f64) -> String {
        format!("{:.1}", TOP_PX + PLOT_PX * (1.0 - self.upward.position(value)))
    }

    fn draw_axes(&self) -> Markup {
        html! {
            @for named in self.upward.ticks(6) {
                @let y = self.y_pixels(named.value);
                line class="grid" x1=(percent_text(LEFT - 1.0)) x2="100%" y1=(y) y2=(y) {}
                text class="tick" x=(percent_text(LEFT - 3.5)) y=(y) dy="5" text-anchor="end" { (named.text) }
            }
            @for named in self.across.ticks(5) {
                @let (x, bottom) = (self.x_percent(named.value), TOP_PX + PLOT_PX);
                line class="grid" x1=(percent_text(x)) x2=(percent_text(x)) y1=(TOP_PX) y2=(bottom + 4.0) {}
                (tick_label(x, (bottom + AXIS_PX - 4.0) as u32, &named.text))
            }
        }
    }

    fn draw_line(&self, index: usize, line: &ChartLine) -> Markup {
        let position = |value: &ChartPoint| {
            (percent_text(self.x_percent(value.length_bytes as f64)), self.y_pixels(value.value))
        };
        html! {
            g class=(mark::tone_class(index)) {
                g stroke-dasharray=(dash_pattern(index)) {
                    @for pair in line.values.windows(2) {
                        @let ((x1, y1), (x2, y2)) = (position(&pair[0]), position(&pair[1]));
                        line x1=(x1) y1=(y1) x2=(x2) y2=(y2) {}
                    }
                }
                @for value in &line.values {
                    @let (x, y) = position(value);
                    @if let Some((low, high)) = value.interval {
                        line x1=(x) x2=(x) y1=(self.y_pixels(low)) y2=(self.y_pixels(high)) {}
                    }
                    svg y=(y) { (mark::mark_of_line(index, &x)) }
                }
            }
        }
    }
}
