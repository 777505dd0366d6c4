//! What stands for a value: told apart by shape, and by colour besides.

use maud::{Markup, html};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub shape: Shape,
    /// Which of the page's colours, `tone-0` and on.
    pub tone: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Disc,
    Square,
    /// Not filled.
    Diamond,
    Triangle,
    /// Not filled.
    Ring,
    Cross,
}

/// Of series in a chart, one after the other.
const SHAPES: [Shape; 6] =
    [Shape::Disc, Shape::Square, Shape::Diamond, Shape::Triangle, Shape::Ring, Shape::Cross];

/// How many colours the page has.
pub(crate) const TONES: usize = 6;

impl Mark {
    /// Of the series at `index`; the first 30 are all different.
    pub fn of_series(index: usize) -> Self {
        Self { shape: SHAPES[index % SHAPES.len()], tone: (index + index / 30) % TONES }
    }

    /// Around the point (0, 0).
    pub fn path(self) -> Markup {
        let outline = match self.shape {
            Shape::Disc | Shape::Ring => "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z",
            Shape::Square => "M-5 -5h10v10h-10z",
            Shape::Diamond => "M0 -7L7 0L0 7L-7 0z",
            Shape::Triangle => "M0 -7L7 5H-7z",
            Shape::Cross => "M-5 -5L5 5M-5 5L5 -5",
        };
        let fill = match self.shape {
            Shape::Diamond | Shape::Ring | Shape::Cross => "hollow",
            _ => "full",
        };
        html! { path class={ "mark " (fill) " tone-" (self.tone) } d=(outline) {} }
    }

    /// For a legend.
    pub fn sample(self) -> Markup {
        html! {
            svg class="sample" width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true" { (self.path()) }
        }
    }
}
