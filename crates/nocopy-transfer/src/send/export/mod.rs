//! The summary in its forms.

pub(super) mod json;
pub(super) mod table;
