//! The marks of the values of a line, which differ in shape and colour.

use maud::{Markup, html};

/// A shape around the point (0, 0).
struct MarkShape {
    id: &'static str,
    outline: &'static str,
    /// `full` or `hollow`.
    class: &'static str,
}

const SHAPES: [MarkShape; 6] = [
    MarkShape { id: "disc", outline: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", class: "full" },
    MarkShape { id: "square", outline: "M-5 -5h10v10h-10z", class: "full" },
    MarkShape { id: "diamond", outline: "M0 -7L7 0L0 7L-7 0z", class: "hollow" },
    MarkShape { id: "triangle", outline: "M0 -7L7 5H-7z", class: "full" },
    MarkShape { id: "ring", outline: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", class: "hollow" },
    MarkShape { id: "cross", outline: "M-5 -5L5 5M-5 5L5 -5", class: "hollow" },
];

pub(super) const TONES: usize = 6;

/// The mark of the line at `index`, of lines in a chart; the first 30 are all different.
pub(super) fn mark_of_line(index: usize, x: &str) -> Markup {
    html! { use href={ "#" (SHAPES[index % SHAPES.len()].id) } x=(x) {} }
}

/// The CSS class of the line at `index`, which sets its colour: `tone-0` and on.
pub(super) fn tone_class(index: usize) -> String {
    format!("tone-{}", (index + index / 30) % TONES)
}

pub(super) fn mark_definitions() -> Markup {
    html! {
        @for MarkShape { id, outline, class } in SHAPES { path id=(id) class={ "mark " (class) } d=(outline) {} }
    }
}
