pub(super) mod json;
pub(super) mod openmetrics;
pub(super) mod table;
