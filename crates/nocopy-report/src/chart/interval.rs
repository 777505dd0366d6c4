//! Medians with their intervals, a row each.

use maud::{Markup, html};

use super::scale::Tick;
use super::{Chart, Drawing, LEFT, Mark, Scale, along, heading, percent, tick};

#[derive(Debug, Clone)]
pub struct Intervals {
    /// What is shown, in which unit, and which way is better.
    pub title: String,
    pub scale: Scale,
    /// A value that all others are held against.
    pub reference: Option<f64>,
    pub rows: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    /// The same in words.
    pub said: String,
    /// Under each other; none where there is no figure.
    pub points: Vec<Point>,
}

#[derive(Debug, Clone)]
pub struct Point {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub mark: Mark,
}

/// Heights.
const POINT_PX: u32 = 20;
const GAP_PX: u32 = 10;
const AXIS_PX: u32 = 22;

/// From so many rows on the axis is at the top as well.
const MANY_ROWS: usize = 12;

impl Chart for Intervals {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, id: &str) -> Drawing {
        let ticks = self.scale.ticks(5);
        let band = format!("{id}-band");
        let mut y = 0;
        let mut body = vec![self.band(&band, &ticks)];
        if self.rows.len() >= MANY_ROWS {
            body.push(self.names(&ticks, y));
            y += AXIS_PX;
        }
        for row in &self.rows {
            let (heading, height) = heading(y, &row.name, &row.said);
            body.push(heading);
            y += height;
            for place in 0..row.points.len().max(1) {
                body.push(self.point(&band, row.points.get(place), y + POINT_PX / 2));
                y += POINT_PX;
            }
            y += GAP_PX;
        }
        body.push(self.names(&ticks, y - GAP_PX / 2));
        Drawing { height: y + AXIS_PX, body: html! { @for part in &body { (part) } } }
    }
}

impl Intervals {
    fn along(&self, value: f64) -> f64 {
        along(LEFT, self.scale.place(value))
    }

    fn names(&self, ticks: &[Tick], y: u32) -> Markup {
        html! {
            @for named in ticks {
                (tick(self.along(named.value), y + 15, &named.text))
            }
        }
    }

    /// What the values of a row lie on, drawn once for all rows.
    fn band(&self, id: &str, ticks: &[Tick]) -> Markup {
        let half = POINT_PX / 2;
        let upright = |class: &str, value: f64| {
            let x = percent(self.along(value));
            html! { line class=(class) x1=(x) x2=(x) y1={ "-" (half) } y2=(half) {} }
        };
        html! {
            defs {
                g id=(id) {
                    rect class="band" y={ "-" (half) } width="100%" height=(POINT_PX) {}
                    @for tick in ticks { (upright("grid", tick.value)) }
                    @if let Some(value) = self.reference { (upright("reference", value)) }
                }
            }
        }
    }

    /// Around the height `y`; a row without a figure has a band alone.
    fn point(&self, band: &str, point: Option<&Point>, y: u32) -> Markup {
        let place = |value| percent(self.along(value));
        html! {
            svg y=(y) class=[point.map(|point| point.mark.tone_class())] {
                use href={ "#" (band) } {}
                @if let Some(point) = point {
                    line x1=(place(point.low)) x2=(place(point.high)) {}
                    (point.mark.at(&place(point.median)))
                }
            }
        }
    }
}
