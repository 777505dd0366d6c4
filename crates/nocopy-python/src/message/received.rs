//! One received message.

use nocopy::message as library;
use nocopy::message::Kind;
use pyo3::prelude::*;

use super::peer::Peer;
use crate::memory::{Layout, Memory, array_over};

/// A received message. It is kept in the memory where it was received while this object, or an array or
/// view of it, lives; as long the endpoint has less memory to receive into. `memoryview(message)` and
/// `bytes(message)` give its bytes, too.
#[pyclass(frozen, extends = Memory, module = "nocopy")]
pub(crate) struct Message {
    /// The peer that sent it.
    #[pyo3(get)]
    peer: Peer,
    kind: Kind,
}

/// A message of one piece at most.
struct InOnePiece(library::Message<'static>);

impl AsRef<[u8]> for InOnePiece {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice().expect("checked when it was made")
    }
}

/// A message that was taken from the endpoint, before Python sees it.
pub(super) struct Taken {
    peer: library::Peer,
    kind: Kind,
    bytes: TakenBytes,
}

enum TakenBytes {
    /// Where they were received.
    InPlace(InOnePiece),
    /// Of several pieces.
    Joined(Vec<u8>),
}

impl Taken {
    /// Takes it; copies it if it came in several pieces, since an array has one.
    pub(super) fn new(message: library::Message<'_>) -> Self {
        let (peer, kind) = (message.peer(), message.kind());
        // Otherwise not taken first, since some pieces would be copied by that, and once more here.
        let bytes = match message.as_slice() {
            Some(_) => TakenBytes::InPlace(InOnePiece(message.take())),
            None => TakenBytes::Joined(message.to_vec()),
        };
        Self { peer, kind, bytes }
    }

    /// Bytes that were copied because they came in several pieces.
    pub(super) fn copied_bytes(&self) -> usize {
        match &self.bytes {
            TakenBytes::InPlace(_) => 0,
            TakenBytes::Joined(bytes) => bytes.len(),
        }
    }

    pub(super) fn into_python(self, py: Python<'_>, endpoint: u64) -> PyResult<Py<Message>> {
        let memory = match self.bytes {
            TakenBytes::InPlace(message) => Memory::of(message),
            TakenBytes::Joined(bytes) => Memory::of(bytes),
        };
        let message = Message { peer: Peer::new(self.peer, endpoint), kind: self.kind };
        Py::new(py, PyClassInitializer::from(memory).add_subclass(message))
    }
}

/// `'plain'`, `'request'` or `'response'`, and the number of the request.
fn kind_and_call(kind: Kind) -> (&'static str, Option<u32>) {
    match kind {
        Kind::Plain => ("plain", None),
        Kind::Request(call) => ("request", Some(call)),
        Kind::Response(call) => ("response", Some(call)),
    }
}

#[pymethods]
impl Message {
    /// The bytes: uint8, one dimension, read-only; where they were received, or copied once if they came in
    /// several packets.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let shape = [slf.as_any().len()?];
        array_over(slf.py(), slf.as_any(), &Layout { shape: &shape, dtype: "u1", offset: 0, strides: None })
    }

    /// 'plain', 'request' (which wants a response with the same `call`), or 'response'.
    #[getter]
    fn kind(&self) -> &'static str {
        kind_and_call(self.kind).0
    }

    /// The number of the request, for a request or a response; otherwise None.
    #[getter]
    fn call(&self) -> Option<u32> {
        kind_and_call(self.kind).1
    }

    /// True, for one without bytes, too: only None is no message.
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let bytes = slf.as_any().len()?;
        let this = slf.get();
        Ok(format!("<Message: {}, {bytes} B from {}>", this.kind(), this.peer))
    }
}
