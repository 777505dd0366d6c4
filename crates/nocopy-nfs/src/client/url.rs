//! URLs of libnfs: `nfs://HOST[:PORT]/PATH[?nfsport=PORT&mountport=PORT]`.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use nocopy_report::address::{self, Host};
use nocopy_report::quantity::parse_digits;

/// A server and a path on it. The path begins with the exported directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    pub host: Host,
    pub nfs_port: Option<u16>,
    pub mount_port: Option<u16>,
    /// From the server's root.
    pub path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("{url}: not a URL of NFS; it does not begin with 'nfs://'; write it as nfs://HOST/PATH")]
    Scheme { url: String },
    #[error("{url}: not a URL of NFS; it has no host; write it as nfs://HOST/PATH")]
    Host { url: String },
    #[error("{url}: not a URL of NFS; {why}; write it as nfs://HOST/PATH")]
    Address { url: String, why: String },
    #[error("{url}: not a URL of NFS; it has no path; write it as nfs://HOST/PATH")]
    Path { url: String },
    #[error("{url}: not a usable path; it contains '..'; write it without")]
    Upward { url: String },
    #[error("{url}: not a URL of NFS; '{word}' is not a port; give a number from 1 to 65535")]
    Port { url: String, word: String },
    #[error(
        "{url}: not a URL of NFS; '{word}' is not a known option; use 'nfsport=PORT', 'mountport=PORT' or 'version=3'"
    )]
    Option { url: String, word: String },
    #[error(
        "{url}: not a URL of NFS; two hexadecimal digits must follow '%'; write '%25' for the character '%'"
    )]
    Escape { url: String },
    #[error(
        "{url}: not a usable path; two hexadecimal digits must follow '%'; write '%25' for the character '%'"
    )]
    File { url: String },
}

/// Whether a word begins like such a URL, valid or not.
pub fn is_nfs_url(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"nfs://")
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url = || text.to_owned();
        let rest = text.strip_prefix("nfs://").ok_or_else(|| UrlError::Scheme { url: url() })?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let slash = rest.find('/').ok_or_else(|| UrlError::Path { url: url() })?;
        let (authority, path) = rest.split_at(slash);
        let port = |word: &str| match parse_digits(word) {
            Some(port @ 1..) => Ok(port),
            _ => Err(UrlError::Port { url: url(), word: word.to_owned() }),
        };
        let authority = address::host_port_of_url(authority);
        let wrong = |why| UrlError::Address { url: url(), why };
        let (host, word) = address::split_port(&authority).map_err(wrong)?;
        if host.is_empty() {
            return Err(UrlError::Host { url: url() });
        }
        let (host, nfs_port) = (host.parse().map_err(wrong)?, word.map(port).transpose()?);
        let bytes = unescape_path(path.as_bytes()).ok_or_else(|| UrlError::Escape { url: url() })?;
        let path = PathBuf::from(OsString::from_vec(bytes));
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(UrlError::Upward { url: url() });
        }
        let mut parsed = Self { host, nfs_port, mount_port: None, path };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("nfsport", word)) => parsed.nfs_port = Some(port(word)?),
                Some(("mountport", word)) => parsed.mount_port = Some(port(word)?),
                Some(("version", "3")) => {}
                _ => return Err(UrlError::Option { url: url(), word: option.to_owned() }),
            }
        }
        Ok(parsed)
    }
}

impl Url {
    /// As [`from_str`](Self::from_str), of a word that need not be UTF-8: its other bytes stand for
    /// themselves.
    ///
    /// # Errors
    /// It is not such a URL.
    pub fn from_os_str(word: &OsStr) -> Result<Self, UrlError> {
        let mut text = String::new();
        for chunk in word.as_bytes().utf8_chunks() {
            text += chunk.valid();
            escape_bytes(chunk.invalid(), &mut text);
        }
        text.parse()
    }

    #[must_use]
    pub fn join(&self, below: &Path) -> Self {
        Self { path: self.path.join(below), ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, nfs_port, mount_port, path } = self;
        write!(f, "nfs://{host}")?;
        nfs_port.iter().try_for_each(|port| write!(f, ":{port}"))?;
        f.write_str(&escape_path(path.as_os_str().as_bytes()))?;
        // MOUNT is looked for at the same port first.
        let other = mount_port.filter(|_| mount_port != nfs_port);
        other.iter().try_for_each(|port| write!(f, "?mountport={port}"))
    }
}

/// A name or a path as part of a URL, on one line: with `%` and two hexadecimal digits for each byte that is
/// not of a character in UTF-8, that a terminal would not print as a character, or that means something else
/// in a URL, and for spaces at either end of a name. [`unescape_path`] returns the same bytes.
pub fn escape_path(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for (number, name) in path.split(|byte| *byte == b'/').enumerate() {
        out.extend((number > 0).then_some('/'));
        let inner = name.trim_ascii();
        let begin = inner.as_ptr().addr() - name.as_ptr().addr();
        escape_bytes(&name[..begin], &mut out);
        escape_name(inner, &mut out);
        escape_bytes(&name[begin + inner.len()..], &mut out);
    }
    out
}

fn escape_name(name: &[u8], out: &mut String) {
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match matches!(character, '%' | '?') || !is_printable(character) {
                true => escape_bytes(character.encode_utf8(&mut [0; 4]).as_bytes(), out),
                false => out.push(character),
            }
        }
        escape_bytes(chunk.invalid(), out);
    }
}

fn escape_bytes(bytes: &[u8], out: &mut String) {
    bytes.iter().for_each(|byte| write!(out, "%{byte:02X}").expect("memory"));
}

/// Whether a character is printed where it stands, on the same line: no control character, no other end of a
/// line, no change of direction.
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Decodes `%` and two hexadecimal digits to a byte; `None`: a `%` without them.
pub fn unescape_path(text: &[u8]) -> Option<Vec<u8>> {
    let mut pieces = text.split(|byte| *byte == b'%');
    let mut out = pieces.next().unwrap_or_default().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        let digits =
            str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|it| it.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        out.extend_from_slice(rest);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected_url(host: &str, ports: [Option<u16>; 2], path: &str) -> Url {
        Url { host: host.parse().unwrap(), nfs_port: ports[0], mount_port: ports[1], path: path.into() }
    }

    #[test]
    fn urls_are_parsed_as_by_libnfs() {
        for (text, expected) in [
            ("nfs://server/srv/file", expected_url("server", [None, None], "/srv/file")),
            ("nfs://10.0.0.1:2050/", expected_url("10.0.0.1", [Some(2050), None], "/")),
            ("nfs://[fd00::1]/srv", expected_url("fd00::1", [None, None], "/srv")),
            ("nfs://[fd00::1]:7/srv", expected_url("fd00::1", [Some(7), None], "/srv")),
            ("nfs://[fe80::1%25eth0]:7/srv", expected_url("fe80::1%eth0", [Some(7), None], "/srv")),
            ("nfs://[fe80::1%2]/srv", expected_url("fe80::1%2", [None, None], "/srv")),
            ("nfs://h/a%20b%2fc?nfsport=1&mountport=2", expected_url("h", [Some(1), Some(2)], "/a b/c")),
            ("nfs://h:9/x?version=3&nfsport=10", expected_url("h", [Some(10), None], "/x")),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!("nfs://[fd00::1]:7/srv".parse::<Url>().unwrap().to_string(), "nfs://[fd00::1]:7/srv");
    }

    #[test]
    fn escaped_names_are_one_line_and_parse_back() {
        for (name, expected) in [
            (&b"plain name-1.txt"[..], "plain name-1.txt"),
            ("caf\u{e9} \u{4f60}".as_bytes(), "caf\u{e9} \u{4f60}"),
            (b"caf\xe9", "caf%E9"),
            (b"two\nlines\r\t\x1b\x7f", "two%0Alines%0D%09%1B%7F"),
            (b"100% sure?#", "100%25 sure%3F#"),
            ("\u{9b}\u{2028}\u{202e}".as_bytes(), "%C2%9B%E2%80%A8%E2%80%AE"),
            (b"\xe2\x80", "%E2%80"),
            (b"%E9", "%25E9"),
            (b"/ a b /  /c", "/%20a b%20/%20%20/c"),
        ] {
            assert_eq!(escape_path(name), expected);
        }
        let all: Vec<u8> =
            (1..=255).chain("\u{85}\u{2029}\u{1f600}".bytes()).filter(|byte| *byte != b'/').collect();
        let text = escape_path(&all);
        assert_eq!(unescape_path(text.as_bytes()), Some(all.clone()));
        assert_eq!(text.lines().count(), 1);
        let path = PathBuf::from(OsString::from_vec([b"/", &*all].concat()));
        let whole = Url { mount_port: Some(7), path, ..expected_url("h", [Some(9), None], "/") };
        assert_eq!(whole.to_string().parse(), Ok(whole));
    }

    #[test]
    fn non_utf8_bytes_of_urls_are_kept() {
        let path = PathBuf::from(OsString::from_vec(b"/caf\xe9/\xc3\xa9".to_vec()));
        let expected = Url { path, ..expected_url("h", [None, None], "/") };
        assert_eq!(
            Url::from_os_str(OsStr::from_bytes(b"nfs://h/caf\xe9/%C3\xc3\xa9"))
                .unwrap()
                .path
                .as_os_str()
                .as_bytes(),
            b"/caf\xe9/\xc3\xc3\xa9"
        );
        assert_eq!(Url::from_os_str(OsStr::from_bytes(b"nfs://h/caf\xe9/\xc3\xa9")), Ok(expected));
        assert!(is_nfs_url(OsStr::from_bytes(b"nfs://h/\xff")) && !is_nfs_url(OsStr::new("/nfs://h/")));
    }

    #[test]
    fn errors_of_wrong_urls_have_cause_and_remedy() {
        const URL: &str = "not a URL of NFS";
        for (text, expected) in [
            ("http://h/x", format!("{URL}; it does not begin with 'nfs://'; write it as nfs://HOST/PATH")),
            ("nfs:///x", format!("{URL}; it has no host; write it as nfs://HOST/PATH")),
            ("nfs://h", format!("{URL}; it has no path; write it as nfs://HOST/PATH")),
            (
                "nfs://::1/x",
                format!("{URL}; an IPv6 address needs brackets: [::1]; write it as nfs://HOST/PATH"),
            ),
            ("nfs://h:0/x", format!("{URL}; '0' is not a port; give a number from 1 to 65535")),
            ("nfs://h:+7/x", format!("{URL}; '+7' is not a port; give a number from 1 to 65535")),
            (
                "nfs://h/x?mountport=99999",
                format!("{URL}; '99999' is not a port; give a number from 1 to 65535"),
            ),
            (
                "nfs://h/x?vers=4",
                format!(
                    "{URL}; 'vers=4' is not a known option; use 'nfsport=PORT', 'mountport=PORT' or 'version=3'"
                ),
            ),
            ("nfs://h/a/../b", "not a usable path; it contains '..'; write it without".into()),
            (
                "nfs://h/100%",
                format!("{URL}; two hexadecimal digits must follow '%'; write '%25' for the character '%'"),
            ),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert_eq!(error, format!("{text}: {expected}"));
        }
    }
}
