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

    /// In a row of a chart, at a place along its width. The row has the colour.
    pub fn at(self, x: &str) -> Markup {
        html! { use href={ "#" (self.shape.id()) } x=(x) {} }
    }

    /// The class of what has its colour.
    pub fn tone_class(self) -> String {
        format!("tone-{}", self.tone)
    }

    /// For a legend.
    pub fn sample(self) -> Markup {
        html! {
            svg class={ "sample " (self.tone_class()) } width="18" height="18" viewBox="-9 -9 18 18" aria-hidden="true" {
                (self.at("0"))
            }
        }
    }
}

impl Shape {
    /// Where [`shapes`] has it.
    fn id(self) -> &'static str {
        match self {
            Self::Disc => "disc",
            Self::Square => "square",
            Self::Diamond => "diamond",
            Self::Triangle => "triangle",
            Self::Ring => "ring",
            Self::Cross => "cross",
        }
    }

    /// Around the point (0, 0).
    fn outline(self) -> &'static str {
        match self {
            Self::Disc | Self::Ring => "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z",
            Self::Square => "M-5 -5h10v10h-10z",
            Self::Diamond => "M0 -7L7 0L0 7L-7 0z",
            Self::Triangle => "M0 -7L7 5H-7z",
            Self::Cross => "M-5 -5L5 5M-5 5L5 -5",
        }
    }

    fn is_filled(self) -> bool {
        matches!(self, Self::Disc | Self::Square | Self::Triangle)
    }
}

/// All shapes, each of them once.
pub(super) fn shapes() -> Markup {
    html! {
        @for shape in SHAPES {
            path id=(shape.id()) class={ "mark " @if shape.is_filled() { "full" } @else { "hollow" } } d=(shape.outline()) {}
        }
    }
}
