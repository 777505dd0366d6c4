//! Texts of kernel errors: the name of the error, then its meaning.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// The middle of a message, between what failed and what to do: ` (ENOENT); no such file or directory`.
///
/// An error without a number has no name: `; the peer closed the connection`.
#[derive(Clone, Copy, Debug)]
pub struct Why<'a>(pub &'a io::Error);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_and_words(self.0) {
            (Some(name), words) => write!(f, " ({name}); {words}"),
            (None, words) => write!(f, "; {words}"),
        }
    }
}

/// An error within a table or a list: `connection refused (ECONNREFUSED)`.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a>(pub &'a io::Error);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_and_words(self.0) {
            (Some(name), words) => write!(f, "{words} ({name})"),
            (None, words) => f.write_str(&words),
        }
    }
}

fn name_and_words(error: &io::Error) -> (Option<String>, String) {
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return name_and_words(inner);
    }
    let text = error.to_string();
    let Some(number) = error.raw_os_error() else { return (None, text) };
    let words = uncapitalized(text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text));
    match Errno::from_raw(number) {
        Errno::UnknownErrno => (Some(format!("errno {number}")), words),
        errno => (Some(format!("{errno:?}")), words),
    }
}

/// Advice for a kernel error where nothing better is known.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run it as root, or where no sandbox forbids the call",
        io::ErrorKind::OutOfMemory => "free memory, or ask for less",
        io::ErrorKind::ResourceBusy => "end the program that uses it, or try again",
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => "try again",
        io::ErrorKind::Unsupported => "use a newer kernel, or one built with this feature",
        io::ErrorKind::NotFound => "check that the interface still exists: 'ip link' lists them",
        _ => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE) => "raise 'ulimit -n'",
            Some(Errno::ENFILE) => "raise the sysctl fs.file-max",
            Some(Errno::ENOBUFS) => "free memory, or ask for less",
            Some(Errno::ENODEV | Errno::ENXIO) => {
                "check that the interface still exists: 'ip link' lists them"
            }
            Some(Errno::ENETDOWN) => "bring the interface up: 'ip link set dev INTERFACE up'",
            Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH) => {
                "'ip route get ADDRESS' shows whether there is a route"
            }
            _ => "'nocopy doctor' shows what this kernel and its interfaces support",
        },
    }
}

/// The text for the middle of a sentence: its first letter lower-case, unless it begins with an abbreviation.
fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(number: i32) -> String {
        Why(&io::Error::from_raw_os_error(number)).to_string()
    }

    #[test]
    fn an_error_has_its_name_and_its_words() {
        assert_eq!(cause(2), " (ENOENT); no such file or directory");
        assert_eq!(cause(1), " (EPERM); operation not permitted");
        assert_eq!(cause(72), " (EMULTIHOP); multihop attempted");
        assert_eq!(cause(73), " (EDOTDOT); RFS specific error");
    }

    #[test]
    fn an_error_in_a_table_has_its_words_first() {
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(Named(&refused).to_string(), "connection refused (ECONNREFUSED)");
        assert_eq!(Named(&io::Error::other("closed")).to_string(), "closed");
    }

    #[test]
    fn an_error_without_a_name_keeps_its_number() {
        assert_eq!(cause(9999), " (errno 9999); unknown error 9999");
    }

    #[test]
    fn an_error_without_a_number_has_only_words() {
        let closed = io::Error::other("the peer closed the connection");
        assert_eq!(Why(&closed).to_string(), "; the peer closed the connection");
        let inner = io::Error::new(io::ErrorKind::NotConnected, io::Error::from_raw_os_error(6));
        assert_eq!(Why(&inner).to_string(), " (ENXIO); no such device or address");
        let kind = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(Why(&kind).to_string(), "; timed out");
    }

    #[test]
    fn every_error_has_a_remedy_of_its_own() {
        let of = |errno: Errno| remedy(&io::Error::from_raw_os_error(errno as i32));
        assert!(of(Errno::EPERM).contains("root"));
        assert!(of(Errno::ENOMEM).contains("memory"));
        assert!(of(Errno::ENOBUFS).contains("memory"));
        assert!(of(Errno::EMFILE).contains("ulimit -n"));
        assert!(of(Errno::ENODEV).contains("ip link"));
        assert!(of(Errno::EBUSY).contains("end the program"));
        assert!(of(Errno::EOPNOTSUPP).contains("kernel"));
        assert!(of(Errno::ENETUNREACH).contains("ip route get"));
        assert!(of(Errno::EINVAL).contains("nocopy doctor"));
    }
}
