//! Errors of this library as `io::Error`, for functions that return one.

use std::error::Error;
use std::io;

/// The kind of the `io::Error` that caused an error; `None` if none did, or one without a telling kind.
pub(crate) fn source_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    let mut kinds = sources.filter_map(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.find(|kind| *kind != io::ErrorKind::Other)
}

/// Converts an error type into `io::Error`: of the kind of the `io::Error` that caused it, and without one,
/// of the kind that the arms give. `io::Error::get_ref` returns the error itself.
macro_rules! convert_to_io_error {
    ($error:ty { $($case:pat => $kind:expr),+ $(,)? }) => {
        impl $error {
            /// The kind of the `io::Error` that this converts into.
            pub(crate) fn io_kind(&self) -> std::io::ErrorKind {
                $crate::facts::io_error::source_kind(self).unwrap_or_else(|| match self {
                    $($case => $kind,)+
                })
            }
        }

        impl From<$error> for std::io::Error {
            /// An error of a matching kind, from which `get_ref` returns this one.
            fn from(error: $error) -> Self {
                Self::new(error.io_kind(), error)
            }
        }
    };
}
pub(crate) use convert_to_io_error;
