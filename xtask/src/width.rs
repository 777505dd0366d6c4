//! The width of comments: that of code, which rustfmt keeps within `max_width`. It leaves comments as they
//! are.

use crate::gate::Outcome;
use crate::imports::{read_source, rust_files_below};
use crate::step::{Failed, repository_root};

/// Directories of Rust sources.
pub(crate) const DIRECTORIES: [&str; 3] = ["crates", "fuzz/fuzz_targets", "xtask"];

pub(crate) fn check_comment_widths() -> Outcome {
    let check_all = || {
        let width = max_width(&read_source(&repository_root().join("rustfmt.toml"))?)?;
        let mut wide = Vec::new();
        for directory in DIRECTORIES {
            for path in rust_files_below(&repository_root().join(directory))? {
                let name = path.strip_prefix(repository_root()).unwrap_or(&path).display().to_string();
                wide.extend(
                    lines_with_wide_comments(&read_source(&path)?, width)
                        .map(|line| format!("{name}:{line}")),
                );
            }
        }
        let words = || format!("comments wider than {width} columns; break the lines\n{}", wide.join("\n"));
        if wide.is_empty() { Ok(()) } else { Err(Failed(words())) }
    };
    check_all().into()
}

fn max_width(settings: &str) -> Result<usize, Failed> {
    let found = settings.lines().find_map(|line| line.strip_prefix("max_width = ")?.parse().ok());
    found.ok_or_else(|| Failed("rustfmt.toml: no 'max_width = NUMBER'".into()))
}

/// The numbers of lines with wide comments; blocks of code, tables and drawings may be wider.
fn lines_with_wide_comments(text: &str, width: usize) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let Some(comment) = comment_text(line) else {
            is_code = false;
            return None;
        };
        is_code ^= comment.starts_with("```");
        let is_drawn = comment.contains("  ") || comment.contains('─') || comment.starts_with('|');
        (!is_code && !is_drawn && line.chars().count() > width).then_some(number)
    })
}

/// The text of a line that is a comment.
fn comment_text(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.strip_prefix(['/', '!']).unwrap_or(comment).trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_are_found_and_drawings_allowed() {
        let text = "//! 34567890\n//! 345678901\n  // 3456789 1\nlet code = 1;\n/// ```\n/// assert!(true);\n/// ```\n\
                    /// 3456789 1\n/// | a table |\n//  drawn ─ here\n/// two  spaces\nlet wide_code = 1; // 1234\n";
        assert_eq!(lines_with_wide_comments(text, 12).collect::<Vec<_>>(), [2, 3, 8]);
    }

    #[test]
    fn the_width_is_read_from_rustfmt_settings() {
        assert_eq!(max_width("edition = 1\nmax_width = 80\n").ok(), Some(80));
        assert!(max_width("").is_err());
    }
}
