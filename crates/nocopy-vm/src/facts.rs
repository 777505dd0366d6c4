//! The library's own list of what each feature needs.

#[path = "../../nocopy/src/facts/features.rs"]
pub(crate) mod features;
#[allow(unreachable_pub, reason = "the library's own file")]
#[path = "../../nocopy/src/facts/kernel.rs"]
pub(crate) mod kernel;
