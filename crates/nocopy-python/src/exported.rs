//! Memory of Python's that we read or write: buffers that it exports, and cannot free or resize meanwhile.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Mutex;

use nocopy::{Buffer, BufferMut};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Buffers that are no longer used, and wait for the interpreter. A thread of the library that is done with
/// one must not wait for it: at exit that wait would not end.
static UNUSED: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());

/// Gives buffers back that are no longer used. Each call that may have made some unused begins with this.
pub(crate) fn release_unused(py: Python<'_>) {
    let unused = std::mem::take(&mut *UNUSED.lock().expect("nothing panics with it"));
    unused.into_iter().for_each(|buffer| buffer.release(py));
}

/// A buffer that an object of Python exports to us. Its memory may be used by any thread until this is
/// dropped, only through pointers.
pub(crate) struct Exported(ManuallyDrop<PyUntypedBuffer>);

impl Drop for Exported {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.0) };
        UNUSED.lock().expect("nothing panics with it").push(buffer);
    }
}

/// Rows of bytes in memory of Python's.
pub(crate) struct Rows {
    pub(crate) memory: Exported,
    pub(crate) first: NonNull<u8>,
    pub(crate) count: usize,
    pub(crate) row_bytes: usize,
    /// From the start of a row to the start of the next one.
    pub(crate) stride: usize,
}

// SAFETY: the pointer is of exported memory, which any thread may use.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    pub(crate) fn row(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count);
        // SAFETY: in range by the assertion, and the exporter's promise.
        unsafe { self.first.add(index * self.stride) }
    }

    fn is_contiguous(&self) -> bool {
        self.stride == self.row_bytes || self.count <= 1
    }

    /// All rows as memory to receive into, with what lies between them.
    pub(crate) fn into_memory(self) -> BufferMut {
        let bytes = self.count.saturating_sub(1) * self.stride + self.row_bytes;
        // SAFETY: the owner keeps the exported memory of so many bytes, which may be written; the library
        // refers to it for a call or a copy only.
        unsafe { BufferMut::from_raw(self.first, bytes, self.memory) }
    }

    /// The rows as buffers to be sent: one of all if they are contiguous, otherwise one for each.
    pub(crate) fn into_buffers(self) -> RowBuffers {
        if self.is_contiguous() {
            let bytes = self.count * self.row_bytes;
            return RowBuffers::Contiguous(buffer_of(self.first, bytes, self.memory));
        }
        RowBuffers::Apart(self.into_each().collect())
    }

    /// Each row as a buffer to be sent.
    pub(crate) fn into_each(self) -> impl ExactSizeIterator<Item = Buffer> + Send {
        let this = std::sync::Arc::new(self);
        (0..this.count)
            .map(move |index| buffer_of(this.row(index), this.row_bytes, std::sync::Arc::clone(&this)))
    }
}

pub(crate) enum RowBuffers {
    Contiguous(Buffer),
    Apart(Vec<Buffer>),
}

/// What keeps exported memory. Not `Exported` itself: that is released by another thread, too.
fn buffer_of(first: NonNull<u8>, bytes: usize, owner: impl Send + 'static) -> Buffer {
    // SAFETY: the owner keeps the exported memory of so many bytes. Frozen at once, it is never written here;
    // the library reads it for a call or a copy only.
    unsafe { BufferMut::from_raw(first, bytes, owner) }.freeze()
}

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

fn export(argument: &str, object: &Bound<'_, PyAny>, access: Access) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object).map_err(|_| {
        if dimensions(object) == 0 {
            return PyValueError::new_err(format!(
                "{argument}: has no dimension; give numpy.atleast_1d of it, or its bytes"
            ));
        }
        let kind = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "{argument}: has no buffer; it is of type {kind}; give a numpy array, bytes, or another object with the buffer protocol"
        ))
    })?;
    if holds_objects(&buffer.format().to_string_lossy()) {
        return Err(PyTypeError::new_err(format!(
            "{argument}: holds Python objects (dtype object); give an array of numbers"
        )));
    }
    if buffer.suboffsets().is_some() {
        return Err(PyValueError::new_err(format!(
            "{argument}: consists of pointers to its rows; give numpy.ascontiguousarray of it"
        )));
    }
    if access == Access::Write && buffer.readonly() {
        return Err(PyValueError::new_err(format!(
            "{argument}: is read-only; give an array that can be written"
        )));
    }
    Ok(buffer)
}

/// Whether a format (PEP 3118) has Python objects: an `O` that is not part of a field's name, which stands
/// between colons.
fn holds_objects(format: &str) -> bool {
    format.split(':').step_by(2).any(|types| types.contains('O'))
}

/// The memory of an argument in one piece.
///
/// # Errors
/// `TypeError`: it has none, or holds objects. `ValueError`: read-only, or not contiguous.
pub(crate) fn contiguous(argument: &str, object: &Bound<'_, PyAny>, access: Access) -> PyResult<Rows> {
    let buffer = export(argument, object, access)?;
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err(format!(
            "{argument}: is not contiguous; its strides are {:?} for the shape {:?}; give numpy.ascontiguousarray of it",
            buffer.strides(),
            buffer.shape()
        )));
    }
    let bytes = buffer.len_bytes();
    Ok(Rows { first: first_of(&buffer), count: 1, row_bytes: bytes, stride: bytes, memory: wrap(buffer) })
}

/// The rows of an argument of two dimensions or more, each of which must be contiguous.
///
/// # Errors
/// As [`contiguous`]; or the number of dimensions.
pub(crate) fn rows(argument: &str, object: &Bound<'_, PyAny>, access: Access) -> PyResult<Rows> {
    let buffer = export(argument, object, access)?;
    let (shape, strides) = (buffer.shape(), buffer.strides());
    if shape.len() < 2 {
        return Err(PyValueError::new_err(format!(
            "{argument}: has {} dimension(s), of shape {shape:?}; give an array with a row for each datagram or message",
            shape.len()
        )));
    }
    let mut row_bytes = buffer.item_size();
    let mut is_contiguous = true;
    for (length, stride) in shape.iter().zip(strides).skip(1).rev() {
        is_contiguous &= *length <= 1 || *stride == row_bytes as isize;
        row_bytes *= length;
    }
    // Rows that overlap, or that go backwards, would be written twice, or lie in front of the first.
    let is_forward = shape[0] <= 1 || strides[0] >= row_bytes as isize;
    if !is_contiguous || !is_forward {
        return Err(PyValueError::new_err(format!(
            "{argument}: its rows are not contiguous; its strides are {strides:?} for the shape {shape:?}; give numpy.ascontiguousarray of it"
        )));
    }
    let (count, stride) = (shape[0], if shape[0] <= 1 { row_bytes } else { strides[0] as usize });
    Ok(Rows { first: first_of(&buffer), count, row_bytes, stride, memory: wrap(buffer) })
}

/// The rows of an argument of two dimensions or more; another one is one row.
///
/// # Errors
/// As [`contiguous`].
pub(crate) fn rows_or_one(argument: &str, object: &Bound<'_, PyAny>, access: Access) -> PyResult<Rows> {
    match dimensions(object) {
        0 | 1 => contiguous(argument, object, access),
        _ => rows(argument, object, access),
    }
}

fn first_of(buffer: &PyUntypedBuffer) -> NonNull<u8> {
    // An empty one may have no address.
    NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling())
}

fn wrap(buffer: PyUntypedBuffer) -> Exported {
    Exported(ManuallyDrop::new(buffer))
}

/// The number of dimensions of an object's buffer; 1 if it has none.
pub(crate) fn dimensions(object: &Bound<'_, PyAny>) -> usize {
    object.getattr("ndim").and_then(|count| count.extract()).unwrap_or(1)
}
