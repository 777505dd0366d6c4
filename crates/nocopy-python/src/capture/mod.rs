//! `nocopy.Capture`.

mod block;
mod receiving;

use pyo3::prelude::*;

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<block::Block>()?;
    module.add_class::<receiving::Capture>()
}
