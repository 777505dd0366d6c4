//! Texts of kernel errors: the name of the error, then its meaning.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;

use nix::errno::Errno;

/// The middle of a message, between what failed and what to do: ` (ENOENT); no such file or directory`.
///
/// An error without a number has no name: `; the peer closed the connection`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCause<'a>(pub &'a io::Error);

impl fmt::Display for ErrorCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_and_description(self.0) {
            (Some(name), words) => write!(f, " ({name}); {words}"),
            (None, words) => write!(f, "; {words}"),
        }
    }
}

/// An error within a table or a list: `connection refused (ECONNREFUSED)`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorName<'a>(pub &'a io::Error);

impl fmt::Display for ErrorName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name_and_description(self.0) {
            (Some(name), words) => write!(f, "{words} ({name})"),
            (None, words) => f.write_str(&words),
        }
    }
}

fn name_and_description(error: &io::Error) -> (Option<String>, String) {
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return name_and_description(inner);
    }
    let text = error.to_string();
    let Some(number) = error.raw_os_error() else { return (None, text) };
    let words = uncapitalized(text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text));
    (Some(errno_name(number)), words)
}

/// The kernel's number of an error, also of one inside another error.
pub fn errno_number(error: &io::Error) -> Option<i32> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let Some(io_error) = error.downcast_ref::<io::Error>() else {
            next = error.source();
            continue;
        };
        if let Some(number) = io_error.raw_os_error() {
            return Some(number);
        }
        // The source of an `io::Error` is that of the error in it.
        next = io_error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    }
    None
}

/// Whether the interface is down: a port and a capture go on when it is up again, and a wait for packets is
/// no error until then.
pub fn is_interface_down(error: &io::Error) -> bool {
    match errno_number(error) {
        Some(number) => Errno::from_raw(number) == Errno::ENETDOWN,
        None => error.kind() == io::ErrorKind::NetworkDown,
    }
}

/// Whether a datagram that the kernel refused for this reason is lost as others are on their way, and a later
/// one may pass: links, routes, addresses, neighbours, packet filters, tunnels and queues change while a
/// program runs. Any other error is a fault that waiting does not mend, and ends a run; so does a stream's
/// error.
pub fn is_transient(error: &io::Error) -> bool {
    let Some(number) = errno_number(error) else { return is_interface_down(error) };
    matches!(
        Errno::from_raw(number),
        // No route, or one of the kinds `unreachable`, `prohibit` and `blackhole`; also an address of this
        // host that is gone (`EINVAL` in older kernels), and the results of ICMP (`icmp_err_convert` of
        // net/ipv4/icmp.c).
        Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENONET
            | Errno::EACCES
            | Errno::EINVAL
            | Errno::ECONNREFUSED
            | Errno::EPROTO
            | Errno::ENOPROTOOPT
            | Errno::EOPNOTSUPP
            // The interface is down, or its MTU became smaller.
            | Errno::ENETDOWN
            | Errno::EMSGSIZE
            // The address is not there yet, or no more.
            | Errno::EADDRNOTAVAIL
            // A packet filter.
            | Errno::EPERM
            // A tunnel without a key, or without the address of its other end.
            | Errno::ENOKEY
            | Errno::EDESTADDRREQ
            // A full queue, or no memory now.
            | Errno::ENOBUFS
            | Errno::ENOMEM
    )
}

/// How often each error of the kernel was met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts(BTreeMap<i32, u64>);

impl ErrorCounts {
    /// Counts an error; one without a number means that there was no room.
    pub fn add(&mut self, error: &io::Error, count: u64) {
        *self.0.entry(errno_number(error).unwrap_or(0)).or_default() += count;
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The counts by the errors' names.
    pub fn counts_by_name(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(number, count)| (errno_name(*number), *count)).collect()
    }

    /// The counts by the errors' names and meanings, as [`ErrorName`] prints them.
    pub fn counts_by_description(&self) -> BTreeMap<String, u64> {
        let meaning = |number| ErrorName(&io::Error::from_raw_os_error(number)).to_string();
        self.0.iter().map(|(number, count)| (meaning(*number), *count)).collect()
    }
}

/// `ENETUNREACH 1234, EPERM 2`.
impl fmt::Display for ErrorCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            self.0.iter().map(|(number, count)| format!("{} {count}", errno_name(*number))).collect();
        f.write_str(&words.join(", "))
    }
}

fn errno_name(number: i32) -> String {
    match Errno::from_raw(number) {
        Errno::UnknownErrno if number == 0 => "no-room".into(),
        Errno::UnknownErrno => format!("errno {number}"),
        errno => format!("{errno:?}"),
    }
}

/// Advice for a kernel error where nothing better is known.
pub fn advice(error: &io::Error) -> &'static str {
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

    fn cause_text(number: i32) -> String {
        ErrorCause(&io::Error::from_raw_os_error(number)).to_string()
    }

    #[test]
    fn an_error_has_its_name_and_description() {
        assert_eq!(cause_text(2), " (ENOENT); no such file or directory");
        assert_eq!(cause_text(1), " (EPERM); operation not permitted");
        assert_eq!(cause_text(72), " (EMULTIHOP); multihop attempted");
        assert_eq!(cause_text(73), " (EDOTDOT); RFS specific error");
    }

    #[test]
    fn an_error_in_a_table_has_its_description_first() {
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(ErrorName(&refused).to_string(), "connection refused (ECONNREFUSED)");
        assert_eq!(ErrorName(&io::Error::other("closed")).to_string(), "closed");
    }

    #[test]
    fn an_error_without_a_name_keeps_its_number() {
        assert_eq!(cause_text(9999), " (errno 9999); unknown error 9999");
    }

    #[test]
    fn an_error_without_a_number_has_only_a_description() {
        let closed = io::Error::other("the peer closed the connection");
        assert_eq!(ErrorCause(&closed).to_string(), "; the peer closed the connection");
        let inner = io::Error::new(io::ErrorKind::NotConnected, io::Error::from_raw_os_error(6));
        assert_eq!(ErrorCause(&inner).to_string(), " (ENXIO); no such device or address");
        let kind = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(ErrorCause(&kind).to_string(), "; timed out");
    }

    #[test]
    fn a_number_is_found_in_wrapped_errors() {
        #[derive(Debug)]
        struct WrappedError(io::Error);
        impl fmt::Display for WrappedError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "wrapped")
            }
        }
        impl Error for WrappedError {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let down = || io::Error::from_raw_os_error(100);
        let once = io::Error::new(io::ErrorKind::NetworkDown, down());
        let twice = io::Error::other(WrappedError(io::Error::other(WrappedError(down()))));
        for error in [down(), once, twice] {
            assert_eq!(
                (errno_number(&error), is_interface_down(&error), is_transient(&error)),
                (Some(100), true, true)
            );
        }
        assert_eq!(errno_number(&io::Error::other("words")), None);
        assert!(
            is_interface_down(&io::ErrorKind::NetworkDown.into())
                && is_transient(&io::ErrorKind::NetworkDown.into())
        );
    }

    #[test]
    fn permanent_errors_are_not_transient() {
        for errno in [Errno::EBADF, Errno::ENODEV, Errno::ENXIO, Errno::EAFNOSUPPORT, Errno::ENOTCONN] {
            assert!(!is_transient(&io::Error::from_raw_os_error(errno as i32)), "{errno}");
        }
        assert!(
            !is_transient(&io::Error::other("words")) && !is_transient(&io::ErrorKind::WouldBlock.into())
        );
    }

    #[test]
    fn counted_errors_have_their_names() {
        let mut counts = ErrorCounts::default();
        for (number, count) in [(101, 3), (1, 2), (101, 4)] {
            counts.add(&io::Error::from_raw_os_error(number), count);
        }
        assert_eq!((counts.total(), &*counts.to_string()), (9, "EPERM 2, ENETUNREACH 7"));
        assert_eq!(counts.counts_by_name(), BTreeMap::from([("ENETUNREACH".into(), 7), ("EPERM".into(), 2)]));
        assert_eq!(counts.counts_by_description().get("network is unreachable (ENETUNREACH)"), Some(&7));
    }

    #[test]
    fn every_error_has_its_own_remedy() {
        let of = |errno: Errno| advice(&io::Error::from_raw_os_error(errno as i32));
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
