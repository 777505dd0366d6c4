//! Types that all other modules use; it uses none of them.

#[cfg(feature = "port")]
pub(crate) mod drivers;
pub(crate) mod evidence;
pub(crate) mod features;
pub(crate) mod io_error;
pub(crate) mod kernel;
pub(crate) mod metadata;
pub(crate) mod method_explanation;
pub(crate) mod mode;
pub(crate) mod rejected;
