//! The settings of a port.

use nocopy::integration::PortTuning;
use nocopy::port::{OpenError, PortBuilder, Purpose};
use nocopy::{Mode, Port};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::number::{self, Int, pair};
use crate::{error, filter, settings};

const PURPOSES: [(&str, Purpose); 3] =
    [("exchange", Purpose::Exchange), ("capture", Purpose::Capture), ("send", Purpose::Send)];

const MODES: [Mode; 4] = [Mode::XdpZeroCopy, Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

/// The most packets that one call returns, unless the caller says otherwise.
const BATCH: u32 = 1024;

/// The keywords of `Port`, of which `None` leaves the default.
pub(super) struct Keywords<'py> {
    pub(super) interface: String,
    pub(super) queue: u32,
    pub(super) mode: Option<String>,
    pub(super) filter: Option<String>,
    pub(super) purpose: Option<String>,
    pub(super) frame_count: Option<(Int<u32>, Int<u32>)>,
    pub(super) ring_sizes: Option<(Int<u32>, Int<u32>)>,
    pub(super) busy_poll: Option<(f64, Int<u32>)>,
    pub(super) batch: u32,
    pub(super) wait: Option<Bound<'py, PyAny>>,
    pub(super) promiscuous: bool,
    pub(super) receive_metadata: bool,
}

/// Settings of ports of all kinds.
pub(super) fn with_sizes(
    mut builder: PortBuilder,
    frame_count: Option<(Int<u32>, Int<u32>)>,
    ring_sizes: Option<(Int<u32>, Int<u32>)>,
    batch: u32,
    wait: Option<&Bound<'_, PyAny>>,
) -> PyResult<PortBuilder> {
    if let Some((receive, send)) = frame_count.map(pair) {
        builder = builder.frame_count(receive, send);
    }
    if let Some((receive, send)) = ring_sizes.map(pair) {
        builder = builder.ring_sizes(receive, send);
    }
    if let Some(wait) = wait {
        builder = builder.wait(settings::wait(wait)?);
    }
    // A forked child may read arrays that it has from its parent.
    Ok(builder.batch(batch).tuning(PortTuning { inherited: true, ..PortTuning::default() }))
}

impl<'py> Keywords<'py> {
    /// From a dictionary, which is emptied.
    fn take_from(all: &Bound<'py, PyDict>) -> PyResult<Self> {
        let interface = take(all, "interface")?;
        let keywords = Self {
            interface: interface
                .ok_or_else(|| PyValueError::new_err("port: 'interface' is missing; give the name of one"))?,
            queue: take(all, "queue")?.unwrap_or(0),
            mode: take(all, "mode")?,
            filter: take(all, "filter")?,
            purpose: take(all, "purpose")?,
            frame_count: take(all, "frame_count")?,
            ring_sizes: take(all, "ring_sizes")?,
            busy_poll: take(all, "busy_poll")?,
            batch: take(all, "batch")?.unwrap_or(BATCH),
            wait: take(all, "wait")?,
            promiscuous: take(all, "promiscuous")?.unwrap_or(false),
            receive_metadata: take(all, "receive_metadata")?.unwrap_or(false),
        };
        match all.keys().iter().next() {
            None => Ok(keywords),
            Some(name) => Err(PyValueError::new_err(format!(
                "port: '{name}' is not known; give only what nocopy.Port has as keywords"
            ))),
        }
    }

    pub(super) fn into_builder(self, py: Python<'_>) -> PyResult<PortBuilder> {
        let mut builder = Port::builder(&self.interface)
            .queue(self.queue)
            .promiscuous(self.promiscuous)
            .receive_metadata(self.receive_metadata);
        if let Some(name) = self.mode {
            builder = builder.mode(settings::by_name("mode", &name, &MODES)?);
        }
        if let Some(program) = filter::program(py, self.filter.as_deref())? {
            builder = builder.filter(&program);
        }
        if let Some(name) = self.purpose {
            builder = builder.purpose(settings::one_of("purpose", &name, &PURPOSES)?);
        }
        if let Some((seconds, Int(packets))) = self.busy_poll {
            builder = builder.busy_poll(number::duration("busy_poll", seconds)?, packets);
        }
        with_sizes(builder, self.frame_count, self.ring_sizes, self.batch, self.wait.as_ref())
    }
}

/// The keyword `port` of sockets and endpoints: the name of an interface, or the keywords of `Port` in a
/// dictionary.
///
/// # Errors
/// `TypeError`: it is neither. `ValueError`: a name in it is not known, or a value is not possible.
pub(crate) fn below(object: &Bound<'_, PyAny>) -> PyResult<PortBuilder> {
    if let Ok(interface) = object.extract::<&str>() {
        let keywords = PyDict::new(object.py());
        keywords.set_item("interface", interface)?;
        return below(&keywords);
    }
    let Ok(keywords) = object.cast::<PyDict>() else {
        return Err(PyTypeError::new_err(format!(
            "port: is a {}; give the name of an interface, or a dictionary of nocopy.Port's keywords",
            object.get_type().name()?
        )));
    };
    Keywords::take_from(&keywords.copy()?)?.into_builder(object.py())
}

/// Removes a keyword; `None` if it is not there, or is Python's.
fn take<'py, T: FromPyObjectOwned<'py>>(all: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    let Some(value) = all.get_item(name)? else { return Ok(None) };
    all.del_item(name)?;
    value.extract::<Option<T>>().map_err(|_| {
        PyTypeError::new_err(format!(
            "port: '{name}' is {value}; give what nocopy.Port takes as that keyword"
        ))
    })
}

pub(super) fn from_open(py: Python<'_>, refused: &OpenError) -> PyErr {
    let capability = match refused {
        OpenError::Capability { capability, .. } => Some(*capability),
        OpenError::Kernel { .. } => Some("AF_XDP"),
        _ => None,
    };
    error::from_open(py, refused, capability)
}
