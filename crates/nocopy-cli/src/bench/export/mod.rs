//! Results for readers on a terminal. Others are made by `report`, from the same values.

pub(crate) mod table;
