//! Paths of this host in arguments and in output.
//!
//! A path that is one line of text stands for itself. Any other is printed as a URL, `file:///` and `%XX` for
//! its other bytes, which commands take like the path itself.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf, absolute};

use crate::client::{escape_path, is_printable, unescape_path};

const SCHEME: &[u8] = b"file:///";

/// A path on one line, so that it can be given to a command again.
pub(super) fn to_text(path: &Path) -> String {
    match path.to_str() {
        Some(text) if text.chars().all(is_printable) => text.to_owned(),
        _ => {
            let whole = absolute(path).unwrap_or_else(|_| path.to_owned());
            format!("file://{}", escape_path(whole.as_os_str().as_bytes()))
        }
    }
}

/// The path that a word means; `None`: a `%` in such a URL without two hexadecimal digits.
pub(super) fn parse(word: &OsStr) -> Option<PathBuf> {
    match word.as_bytes().starts_with(SCHEME) {
        true => {
            let bytes = unescape_path(&word.as_bytes()[SCHEME.len() - 1..])?;
            Some(std::ffi::OsString::from_vec(bytes).into())
        }
        false => Some(word.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_paths_are_one_line_and_parse_back() {
        for path in [&b"/srv/100% caf\xc3\xa9"[..], b"relative/name?", b"/two\nlines/\xe9%20", b"/a\tb"] {
            let path = Path::new(OsStr::from_bytes(path));
            let text = to_text(path);
            assert_eq!(text.lines().count(), 1);
            assert_eq!(parse(OsStr::new(&text)).as_deref(), Some(path), "{text}");
        }
        assert_eq!(to_text(Path::new(OsStr::from_bytes(b"/caf\xe9"))), "file:///caf%E9");
        assert!(to_text(Path::new("two\nlines")).starts_with("file:///"));
        assert_eq!(parse(OsStr::new("file:///100%")), None);
    }
}
