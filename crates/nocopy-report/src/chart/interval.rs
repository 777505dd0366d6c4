//! Medians with their intervals, a row each.

use maud::{Markup, html};

use super::scale::Tick;
use super::{Chart, Drawing, LEFT, Mark, Scale, along, anchor, heading, percent};

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
    pub said: String,
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

    fn description(&self) -> String {
        let rows = self.rows.iter().map(|row| format!("{}: {}", row.name, row.said));
        format!("{}.", rows.collect::<Vec<_>>().join("; "))
    }

    fn draw(&self, _id: &str) -> Drawing {
        let ticks = self.scale.ticks(5);
        let mut y = 0;
        let mut body = Vec::new();
        if self.rows.len() >= MANY_ROWS {
            body.push(self.names(&ticks, y));
            y += AXIS_PX;
        }
        for row in &self.rows {
            let (heading, height) = heading(y, &row.name, &row.said);
            body.push(heading);
            y += height;
            let height = POINT_PX * row.points.len().max(1) as u32;
            body.push(self.band(&ticks, y, height));
            body.extend(
                (0_u32..).zip(&row.points).map(|(place, point)| self.point(point, y + place * POINT_PX)),
            );
            y += height + GAP_PX;
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
            @for tick in ticks {
                @let x = self.along(tick.value);
                text class="tick" x=(percent(x)) y=(y + 15) text-anchor=(anchor(x)) { (tick.text) }
            }
        }
    }

    /// What the values of a row lie on.
    fn band(&self, ticks: &[Tick], y: u32, height: u32) -> Markup {
        let upright = |class: &str, value: f64| {
            let x = percent(self.along(value));
            html! { line class=(class) x1=(x) x2=(x) y1=(y) y2=(y + height) {} }
        };
        html! {
            rect class="band" x="0" y=(y) width="100%" height=(height) rx="3" {}
            @for tick in ticks { (upright("grid", tick.value)) }
            @if let Some(value) = self.reference { (upright("reference", value)) }
        }
    }

    fn point(&self, point: &Point, y: u32) -> Markup {
        let [low, median, high] =
            [point.low, point.median, point.high].map(|value| percent(self.along(value)));
        let middle = y + POINT_PX / 2;
        let tone = point.mark.tone;
        html! {
            g class={ "interval tone-" (tone) } {
                title { (point.said) }
                line x1=(low) x2=(high) y1=(middle) y2=(middle) {}
                @for end in [low, high] { line x1=(end) x2=(end) y1=(middle - 5) y2=(middle + 5) {} }
                svg x=(median) y=(middle) width="1" height="1" overflow="visible" { (point.mark.path()) }
            }
        }
    }
}
