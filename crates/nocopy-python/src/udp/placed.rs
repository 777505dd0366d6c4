//! Datagrams placed by a number: chunks of rows.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use nocopy::udp::{
    Field as NumberField, NotPlaced, PlacedChunk as OwnedChunk, PlacedReceiver, Placing, Receiver,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyString, PyTuple};

use super::from_open;
use super::socket::UdpSocket;
use crate::account::{ledger_dict, stats_dict};
use crate::error;
use crate::half::{Half, timeout, wait};
use crate::memory::{Layout, Memory, array_over, dtype_of};
use crate::number::{Int, int};

/// Where a number is in each datagram: its first byte, and its type, such as '>u8', '<u4', 'u1'. Any number
/// of bytes from 1 to 8 is possible: SPEAD's addresses are '>u6'.
#[pyclass(frozen, from_py_object, module = "nocopy")]
#[derive(Clone, Copy)]
pub(crate) struct Field {
    field: NumberField,
    /// The byte behind it.
    end: usize,
}

#[pymethods]
impl Field {
    #[new]
    fn new(offset: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Self> {
        let offset: usize = offset.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "offset: is {offset}; give the first byte of the number, from 0 on"
            ))
        })?;
        let unknown = || {
            PyValueError::new_err(format!(
                "dtype: '{dtype}' is no unsigned number of 1 to 8 bytes with an order; give '>u8', '<u4', 'u1' or the like"
            ))
        };
        let (is_big_endian, kind) = match dtype.split_at_checked(1) {
            Some((">", kind)) => (true, kind),
            Some(("<", kind)) => (false, kind),
            _ if dtype == "u1" => (true, dtype),
            _ => return Err(unknown()),
        };
        let bytes = kind.strip_prefix('u').and_then(|bytes| bytes.parse().ok());
        let bytes: usize = bytes.filter(|bytes| (1..=8).contains(bytes)).ok_or_else(unknown)?;
        let field = match is_big_endian {
            true => NumberField::big_endian(offset, bytes),
            false => NumberField::little_endian(offset, bytes),
        };
        Ok(Self { field, end: offset.saturating_add(bytes) })
    }
}

/// What was asked for.
struct Request<'a, 'py> {
    number: &'a Bound<'py, PyAny>,
    payload: Option<&'a Bound<'py, PySlice>>,
    shape: Vec<usize>,
    dtype: &'a Bound<'py, PyAny>,
    ring: usize,
    rows_per_heap: Option<u64>,
}

/// The shape of the chunks' arrays.
struct ChunkShape {
    shape: Vec<usize>,
    dtype: Py<PyAny>,
}

impl Request<'_, '_> {
    fn placing(&self) -> PyResult<(Placing, ChunkShape)> {
        let (dtype, item_bytes) = dtype_of(self.dtype)?;
        if !dtype.getattr("subdtype")?.is_none() {
            return Err(PyTypeError::new_err(format!(
                "dtype: {dtype} has a shape; give that of an item, and add its shape to that of a row"
            )));
        }
        let [rows, items @ ..] = &self.shape[..] else {
            return Err(PyValueError::new_err("shape: is empty; give (rows, items of a row)"));
        };
        let row_bytes = items.iter().try_fold(item_bytes, |bytes, length| bytes.checked_mul(*length));
        let row_bytes =
            row_bytes.ok_or_else(|| PyValueError::new_err("shape: is too large; give a smaller one"))?;
        let (placing, end) = self.numbered()?;
        let start = self.payload_start(end, row_bytes)?;
        let placing = placing.payload(start).shape(*rows, row_bytes).ring(self.ring);
        Ok((placing, ChunkShape { shape: self.shape.clone(), dtype: dtype.unbind() }))
    }

    /// And the byte behind the last field.
    fn numbered(&self) -> PyResult<(Placing, usize)> {
        if let Ok(number) = self.number.extract::<Field>() {
            return Ok((Placing::by_number(number.field), number.end));
        }
        let Ok((heap, offset)) = self.number.extract::<(Field, Field)>() else {
            return Err(PyTypeError::new_err(
                "number: is no field; give nocopy.Field(offset, dtype), or two in a tuple: of the heap and of the offset in it",
            ));
        };
        let rows_per_heap = self.rows_per_heap.ok_or_else(|| {
            PyValueError::new_err("rows_per_heap: is missing; with two fields, give how many rows a heap has")
        })?;
        Ok((Placing::by_heap(heap.field, offset.field, rows_per_heap), heap.end.max(offset.end)))
    }

    fn payload_start(&self, fields_end: usize, row_bytes: usize) -> PyResult<usize> {
        let Some(payload) = self.payload else { return Ok(fields_end) };
        let too_large = |_| PyValueError::new_err(format!("payload: {payload} is no part of a datagram"));
        let part = |name| payload.getattr(name)?.extract::<Option<isize>>().map_err(too_large);
        let (start, stop, step) = (part("start")?.unwrap_or(0), part("stop")?, part("step")?.unwrap_or(1));
        let end = start.checked_add_unsigned(row_bytes);
        if start < 0 || step != 1 || stop.is_some_and(|stop| Some(stop) != end) {
            return Err(PyValueError::new_err(format!(
                "payload: slice({start}, {stop:?}, {step}) is not the {row_bytes} bytes of a row; give slice(first byte, None)"
            )));
        }
        Ok(start as usize)
    }
}

/// Receives datagrams into rows of chunks, by a number that each carries. Iterating gives `Chunk`s.
#[pyclass(frozen, subclass, name = "PlacedReceiver", module = "nocopy")]
pub(crate) struct PythonPlacedReceiver {
    half: Half<PlacedReceiver>,
    shape: Arc<ChunkShape>,
}

impl PythonPlacedReceiver {
    fn chunk(&self, py: Python<'_>, chunk: Option<OwnedChunk>) -> PyResult<Option<Chunk>> {
        chunk.map(|chunk| Chunk::new(py, chunk, &self.shape)).transpose()
    }
}

#[pymethods]
impl PythonPlacedReceiver {
    /// Takes over what a socket receives; the socket still sends.
    ///
    /// `number`: `Field(offset, dtype)`; or `(heap, offset)`, two fields, as SPEAD has them: then a row's
    /// number is `heap * rows_per_heap + offset / bytes of a row`. `payload`: where the row's bytes begin, as
    /// a slice; behind the last field if it is not given. `shape`: of each chunk, (rows, items of a row).
    /// `ring`: how many chunks there are; more memory is never taken.
    #[new]
    #[pyo3(signature = (socket, *, number, shape, payload = None, dtype = None, ring = 4, rows_per_heap = None))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword")]
    fn new(
        py: Python<'_>,
        socket: &Bound<'_, UdpSocket>,
        number: &Bound<'_, PyAny>,
        shape: Vec<Int<usize>>,
        payload: Option<&Bound<'_, PySlice>>,
        dtype: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = int)] ring: usize,
        rows_per_heap: Option<Int<u64>>,
    ) -> PyResult<Self> {
        let byte = PyString::new(py, "u1").into_any();
        let dtype = dtype.unwrap_or(&byte);
        let shape = shape.into_iter().map(|Int(length)| length).collect();
        let rows_per_heap = rows_per_heap.map(|Int(rows)| rows);
        let (placing, shape) = Request { number, payload, shape, dtype, ring, rows_per_heap }.placing()?;
        let receiver = socket.get().receiver().get(py)?;
        let place = |receiver: Receiver| {
            py.detach(|| receiver.place(placing)).map_err(|NotPlaced { receiver, reason }| (receiver, reason))
        };
        let placed = receiver.become_other(place).map_err(|reason| from_open(py, &reason))?;
        Ok(Self { half: Half::new("PlacedReceiver", placed), shape: Arc::new(shape) })
    }

    /// Waits for the next chunk; None if none was complete within `timeout` seconds. Chunks come in order,
    /// each once. Raises `NoBuffers` while arrays of all chunks of the ring are kept.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Chunk>> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.half.get(py)?;
        let chunk = wait(py, timeout, |time| receiver.receive_timeout(time))?;
        self.chunk(py, chunk)
    }

    /// As `receive`, without waiting.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        let receiver = &mut *self.half.get(py)?;
        let chunk = py.detach(|| receiver.try_receive()).map_err(error::from_io)?;
        self.chunk(py, chunk)
    }

    /// Ends the chunks that are open, and returns the oldest; the others follow, until it returns None. For
    /// the end of a run, or a pause: a datagram that comes later for one of them begins it anew.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        let chunk = self.half.get(py)?.finish();
        self.chunk(py, chunk)
    }

    /// Evidence for every byte: how many were not copied, and how many were, by cause.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ledger_dict(py, self.half.get(py)?.ledger())
    }

    /// All counters; among them `late`, `double`, `foreign`, `short` and `long` datagrams.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_dict(py, &self.half.get(py)?.stats())
    }

    /// Which way was chosen, and what it was compared with, in words.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.half.get(py)?.explain().to_string())
    }

    /// A descriptor that becomes readable when datagrams arrive; only to wait on, after `arm`.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.half.get(py)?.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `fileno`; True if datagrams are waiting already, and no wait is needed.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.half.get(py)?.arm().map_err(error::from_io)
    }

    /// Closes it. Chunks that are kept stay.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let half = self.half.take()?;
        py.detach(move || drop(half));
        Ok(())
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        self.receive(py, None)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

/// Rows of consecutive numbers. Its memory returns to the ring when it and its arrays are deleted.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Chunk {
    /// The rows, in the shape and type that were asked for; read-only, not copied. Rows whose datagram is
    /// missing are zeros.
    #[pyo3(get)]
    array: Py<PyAny>,
    /// Bool, one a row: whether its datagram came.
    #[pyo3(get)]
    present: Py<PyAny>,
    /// The number of its first row; goes on counting when the field wraps.
    #[pyo3(get)]
    first: u64,
    /// Rows that are present.
    #[pyo3(get)]
    filled: usize,
}

impl Chunk {
    fn new(py: Python<'_>, chunk: OwnedChunk, shape: &ChunkShape) -> PyResult<Self> {
        let (first, filled) = (chunk.first(), chunk.filled());
        let chunk = Arc::new(chunk);
        let flags: *const [bool] = chunk.present();
        // SAFETY: the flags lie in the chunk's memory, which the owner keeps.
        let flags = unsafe { Memory::readable(flags.cast::<u8>(), flags.len(), Arc::clone(&chunk)) };
        let present = array_over(
            py,
            Bound::new(py, flags)?.as_any(),
            &Layout { shape: &shape.shape[..1], dtype: "?", offset: 0, strides: None },
        )?;
        let bytes = chunk.len();
        let memory = Bound::new(py, Memory::of(ChunkBytes(chunk)))?;
        let layout = Layout { shape: &[bytes], dtype: "u1", offset: 0, strides: None };
        let array = array_over(py, memory.as_any(), &layout)?;
        let array = array.call_method1("view", (&shape.dtype,))?;
        let array = array.call_method1("reshape", (&shape.shape,))?;
        Ok(Self { array: array.unbind(), present: present.unbind(), first, filled })
    }
}

#[pymethods]
impl Chunk {
    fn __repr__(&self) -> String {
        format!("<Chunk: rows from {}, {} present>", self.first, self.filled)
    }
}

struct ChunkBytes(Arc<OwnedChunk>);

impl AsRef<[u8]> for ChunkBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
