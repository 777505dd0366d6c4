//! The addresses that were tried without success, and why each failed.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use nocopy_proto::errno::ErrorName;

#[derive(Debug, Default)]
pub struct FailedAttempts(Vec<(SocketAddr, io::Error)>);

impl FailedAttempts {
    /// Notes an error; a later one of the same address replaces it, except that silence tells less than a
    /// refusal.
    pub fn record(&mut self, address: SocketAddr, error: io::Error) {
        let (refused, silent) = (io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut);
        match self.0.iter_mut().find(|(tried, _)| *tried == address) {
            Some((_, before)) if before.kind() == refused && error.kind() == silent => {}
            Some((_, before)) => *before = error,
            None => self.0.push((address, error)),
        }
    }

    /// The error of the only address as it is; otherwise one that lists all. Its kind is the most telling
    /// one: a refusal comes from a host that was reached.
    pub fn into_error(mut self) -> io::Error {
        if self.0.len() == 1 {
            return self.0.remove(0).1;
        }
        let kinds = || self.0.iter().map(|(_, error)| error.kind());
        let refused = kinds().find(|kind| *kind == io::ErrorKind::ConnectionRefused);
        let kind = refused.or_else(|| kinds().next_back()).unwrap_or(io::ErrorKind::NotFound);
        io::Error::new(kind, self)
    }
}

impl fmt::Display for FailedAttempts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (number, (address, error)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(f, "{separator}{address} {}", ErrorName(error))?;
        }
        Ok(())
    }
}

impl std::error::Error for FailedAttempts {}

#[cfg(test)]
mod tests {
    use nocopy_proto::errno::ErrorCause;

    use super::*;

    fn failed_attempts(errors: &[(&str, i32)]) -> FailedAttempts {
        let mut attempts = FailedAttempts::default();
        for (address, number) in errors {
            attempts.record(address.parse().unwrap(), io::Error::from_raw_os_error(*number));
        }
        attempts
    }

    #[test]
    fn each_address_is_named_with_its_last_error() {
        let (one, other) = ("[::1]:9", "127.0.0.1:9");
        let error = failed_attempts(&[(one, 110), (other, 111), (one, 101), (other, 110)]).into_error();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            ErrorCause(&error).to_string(),
            "; [::1]:9 network is unreachable (ENETUNREACH), 127.0.0.1:9 connection refused (ECONNREFUSED)"
        );
    }

    #[test]
    fn the_error_of_the_only_address_is_unchanged() {
        let error = failed_attempts(&[("10.0.0.1:9", 111)]).into_error();
        assert_eq!(ErrorCause(&error).to_string(), " (ECONNREFUSED); connection refused");
    }
}
