//! The summary for programs.

use crate::send::summary::Summary;

pub(in crate::send) fn text(summary: &Summary) -> String {
    let mut text = serde_json::to_string_pretty(summary).expect("numbers and strings are JSON");
    text.push('\n');
    text
}
