//! Amounts that are made of parts, a bar each.

use maud::{Markup, html};

use super::mark::TONES;
use super::scale::Tick;
use super::{Chart, Drawing, Scale, along, anchor, heading, percent};
use crate::quantity;

#[derive(Debug, Clone)]
pub struct Stacks {
    /// What is shown, and in which unit.
    pub title: String,
    /// The names of the parts.
    pub parts: Vec<String>,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone)]
pub struct Bar {
    pub name: String,
    /// In the order of the parts.
    pub amounts: Vec<f64>,
}

impl Bar {
    fn total(&self) -> f64 {
        self.amounts.iter().copied().map(drawable).sum()
    }
}

/// An amount that has a length.
fn drawable(amount: f64) -> f64 {
    if amount.is_finite() { amount.max(0.0) } else { 0.0 }
}

/// Heights.
const BAR_PX: u32 = 24;
const GAP_PX: u32 = 8;
const AXIS_PX: u32 = 22;

/// Narrower parts, in percent of the width, have no room for their letter.
const LETTER_PERCENT: f64 = 6.5;

/// What is drawn over the colour of a part, in a square of 8 px: neighbours differ.
const TEXTURES: [&str; 7] = [
    "",
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M0 2h8M0 6h8",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M2 0v8M6 0v8",
    "M2 2h2v2h-2zM6 6h2v2h-2z",
    "M0 0L8 8M8 0L0 8",
];

impl Chart for Stacks {
    fn title(&self) -> &str {
        &self.title
    }

    fn description(&self) -> String {
        let bars = self.bars.iter().map(|bar| format!("{}: {}", bar.name, quantity::short(bar.total())));
        format!("Made of {}. {}.", self.parts.join(", "), bars.collect::<Vec<_>>().join("; "))
    }

    fn draw(&self, id: &str) -> Drawing {
        let scale = Scale::even(self.bars.iter().map(Bar::total));
        let ticks = scale.ticks(5);
        let mut y = 0;
        let mut body = vec![html! { defs { @for index in 0..self.parts.len() { (texture(id, index)) } } }];
        for bar in &self.bars {
            let (heading, height) = heading(y, &bar.name, &quantity::short(bar.total()));
            body.push(heading);
            y += height;
            body.push(html! { rect class="band" x="0" y=(y) width="100%" height=(BAR_PX) rx="3" {} });
            body.push(self.bar(id, bar, &scale, y));
            y += BAR_PX + GAP_PX;
        }
        body.push(axis(&scale, &ticks, y));
        Drawing { height: y + AXIS_PX, body: html! { @for part in &body { (part) } } }
    }

    fn legend(&self, id: &str) -> Option<Markup> {
        Some(html! {
            ul class="legend" {
                @for (index, part) in self.parts.iter().enumerate() {
                    li {
                        svg class="sample" width="24" height="18" aria-hidden="true" {
                            rect class="part" width="24" height="18" fill={ "url(#" (id) "-part-" (index) ")" } {}
                        }
                        b { (letter(index)) } " " (part)
                    }
                }
            }
        })
    }
}

impl Stacks {
    fn bar(&self, id: &str, bar: &Bar, scale: &Scale, y: u32) -> Markup {
        let mut end = 0.0;
        let parts = bar.amounts.iter().zip(&self.parts).enumerate().map(|(index, (&amount, name))| {
            let from = along(0.0, scale.place(end));
            end += drawable(amount);
            let width = along(0.0, scale.place(end)) - from;
            (index, name, amount, from, width)
        });
        html! {
            @for (index, name, amount, from, width) in parts {
                @if width > 0.0 {
                    rect class="part" x=(percent(from)) width=(percent(width)) y=(y) height=(BAR_PX) fill={ "url(#" (id) "-part-" (index) ")" } {
                        title { (name) ": " (quantity::short(amount)) }
                    }
                }
                @if width >= LETTER_PERCENT {
                    svg x=(percent(from + width / 2.0)) y=(y + BAR_PX / 2) width="1" height="1" overflow="visible" {
                        rect class="plate" x="-8" y="-9" width="16" height="18" rx="3" {}
                        text class="letter" y="5" text-anchor="middle" { (letter(index)) }
                    }
                }
            }
        }
    }
}

fn axis(scale: &Scale, ticks: &[Tick], y: u32) -> Markup {
    html! {
        @for tick in ticks {
            @let x = along(0.0, scale.place(tick.value));
            text class="tick" x=(percent(x)) y=(y + 11) text-anchor=(anchor(x)) { (tick.text) }
        }
    }
}

/// What a part is called where there is no room for its name.
fn letter(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}

fn texture(id: &str, index: usize) -> Markup {
    html! {
        pattern id={ (id) "-part-" (index) } width="8" height="8" patternUnits="userSpaceOnUse" {
            rect class={ "ground tone-" (index % TONES) } width="8" height="8" {}
            path class="texture" d=(TEXTURES[index % TEXTURES.len()]) {}
        }
    }
}
