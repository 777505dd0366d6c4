//! URLs of libnfs: `nfs://HOST[:PORT]/PATH[?nfsport=PORT&mountport=PORT]`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use nocopy_report::address::{self, Host};

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
}

/// Whether a word begins like such a URL, valid or not.
pub fn is_url(word: &str) -> bool {
    word.starts_with("nfs://")
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url = || text.to_owned();
        let rest = text.strip_prefix("nfs://").ok_or_else(|| UrlError::Scheme { url: url() })?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let slash = rest.find('/').ok_or_else(|| UrlError::Path { url: url() })?;
        let (authority, path) = rest.split_at(slash);
        let port = |word: &str| match word.parse() {
            Ok(port @ 1..) => Ok(port),
            _ => Err(UrlError::Port { url: url(), word: word.to_owned() }),
        };
        let authority = address::of_url(authority);
        let wrong = |why| UrlError::Address { url: url(), why };
        let (host, word) = address::split_port(&authority).map_err(wrong)?;
        if host.is_empty() {
            return Err(UrlError::Host { url: url() });
        }
        let (host, nfs_port) = (host.parse().map_err(wrong)?, word.map(port).transpose()?);
        let bytes = unescaped(path).ok_or_else(|| UrlError::Escape { url: url() })?;
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
    #[must_use]
    pub fn join(&self, below: &Path) -> Self {
        Self { path: self.path.join(below), ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, nfs_port, path, .. } = self;
        write!(f, "nfs://{host}")?;
        nfs_port.iter().try_for_each(|port| write!(f, ":{port}"))?;
        write!(f, "{}", path.display())
    }
}

/// Decodes `%` and two hexadecimal digits to a byte.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('%');
    let mut out = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        out.extend_from_slice(&piece.as_bytes()[2..]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, ports: [Option<u16>; 2], path: &str) -> Url {
        Url { host: host.parse().unwrap(), nfs_port: ports[0], mount_port: ports[1], path: path.into() }
    }

    #[test]
    fn urls_are_read_as_libnfs_reads_them() {
        for (text, expected) in [
            ("nfs://server/srv/file", url("server", [None, None], "/srv/file")),
            ("nfs://10.0.0.1:2050/", url("10.0.0.1", [Some(2050), None], "/")),
            ("nfs://[fd00::1]/srv", url("fd00::1", [None, None], "/srv")),
            ("nfs://[fd00::1]:7/srv", url("fd00::1", [Some(7), None], "/srv")),
            ("nfs://[fe80::1%25eth0]:7/srv", url("fe80::1%eth0", [Some(7), None], "/srv")),
            ("nfs://[fe80::1%2]/srv", url("fe80::1%2", [None, None], "/srv")),
            ("nfs://h/a%20b%2fc?nfsport=1&mountport=2", url("h", [Some(1), Some(2)], "/a b/c")),
            ("nfs://h:9/x?version=3&nfsport=10", url("h", [Some(10), None], "/x")),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!("nfs://[fd00::1]:7/srv".parse::<Url>().unwrap().to_string(), "nfs://[fd00::1]:7/srv");
    }

    #[test]
    fn wrong_urls_have_cause_and_remedy() {
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
