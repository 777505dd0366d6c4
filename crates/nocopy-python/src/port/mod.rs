//! `nocopy.Port`.

mod batch;
mod halves;
mod opening;
mod sending;

pub(crate) use opening::below;
use pyo3::prelude::*;

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<batch::Batch>()?;
    module.add_class::<halves::Port>()
}
