//! `nocopy.Endpoint`: reliable messages between processes.

mod endpoint;
mod many;
mod opening;
mod peer;
mod received;
mod receiving;
mod sending;

use pyo3::prelude::*;

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<peer::Peer>()?;
    module.add_class::<peer::Event>()?;
    module.add_class::<received::Message>()?;
    module.add_class::<many::MessageRows>()?;
    module.add_class::<many::Messages>()?;
    module.add_class::<endpoint::Endpoint>()
}
