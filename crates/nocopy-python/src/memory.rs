//! Memory of ours that Python sees, without a copy.

use std::any::Any;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nocopy::BufferMut;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::number::Int;

/// Bytes with the buffer protocol: an empty buffer of a socket, to be filled and sent; or what numpy's arrays
/// over received data hold.
#[pyclass(frozen, subclass, name = "Buffer", module = "nocopy")]
pub(crate) struct Memory {
    first: *mut u8,
    capacity: usize,
    /// At most the capacity.
    bytes: AtomicUsize,
    is_writable: bool,
    /// Buffers of it that Python has.
    views: AtomicUsize,
    owner: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the pointer belongs to the owner, which is `Send`; Python's views of it are its own business.
unsafe impl Send for Memory {}
// SAFETY: as above; this type itself does not touch the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// The bytes of something received, which nothing writes while the owner lives.
    pub(crate) fn of<T: AsRef<[u8]> + Send + 'static>(owner: T) -> Self {
        let owner = Box::new(owner);
        let bytes = (*owner).as_ref();
        let (first, bytes) = (bytes.as_ptr().cast_mut(), bytes.len());
        Self::with_owner(first, bytes, false, owner)
    }

    /// Memory that Python may only read.
    ///
    /// # Safety
    /// The bytes can be read while the owner lives, and it can be moved without them. Those that somebody
    /// may write meanwhile are documented for the user.
    pub(crate) unsafe fn readable(first: *const u8, bytes: usize, owner: impl Any + Send) -> Self {
        Self::with_owner(first.cast_mut(), bytes, false, Box::new(owner))
    }

    /// Where its bytes begin. They are to be read through pointers only.
    pub(crate) fn first(&self) -> *const u8 {
        self.first
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Memory that Python may write.
    ///
    /// # Safety
    /// Nothing else uses the bytes while the owner lives, and it can be moved without them.
    pub(crate) unsafe fn writable(first: *mut u8, bytes: usize, owner: impl Any + Send) -> Self {
        Self::with_owner(first, bytes, true, Box::new(owner))
    }

    fn with_owner(first: *mut u8, capacity: usize, is_writable: bool, owner: Box<dyn Any + Send>) -> Self {
        let (views, owner) = (AtomicUsize::new(0), Mutex::new(Some(owner)));
        Self { first, capacity, bytes: AtomicUsize::new(capacity), is_writable, views, owner }
    }

    /// Takes out the buffer of a socket, with its bytes, if Python has no view of them. `None` for other
    /// memory.
    ///
    /// # Errors
    /// `BufferError` with the number of views, or because it was sent.
    pub(crate) fn take_buffer(&self) -> PyResult<Option<BufferMut>> {
        self.check_no_views("sent")?;
        let mut owner = self.owner.lock().expect("nothing panics with it");
        match owner.take().map(|owner| owner.downcast::<BufferMut>()) {
            Some(Ok(mut buffer)) => {
                buffer.resize(self.bytes.load(Relaxed));
                Ok(Some(*buffer))
            }
            Some(Err(other)) => {
                *owner = Some(other);
                Ok(None)
            }
            None => Err(sent()),
        }
    }

    /// Takes a buffer back that was [taken](Self::take_buffer) and not sent.
    pub(crate) fn put_back(&self, buffer: BufferMut) {
        self.owner.lock().expect("nothing panics with it").get_or_insert_with(|| Box::new(buffer));
    }

    fn check_no_views(&self, done: &str) -> PyResult<()> {
        match self.views.load(Relaxed) {
            0 => Ok(()),
            views => Err(PyBufferError::new_err(format!(
                "buffer: not {done}; {views} array(s) or view(s) of it exist; delete them first"
            ))),
        }
    }
}

#[pymethods]
impl Memory {
    /// # Safety
    /// `view` is the interpreter's, to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        match &*this.owner.lock().expect("nothing panics with it") {
            None => return Err(sent()),
            // It would be sent, and its memory used for something else, while the array is there.
            Some(owner) if owner.is::<BufferMut>() && is_for_array_without_view(flags) => {
                return Err(PyBufferError::new_err(
                    "buffer: numpy.ndarray(buffer=...) keeps no view of it; use numpy.frombuffer or memoryview",
                ));
            }
            Some(_) => {}
        }
        let bytes = this.bytes.load(Relaxed);
        let read_only = c_int::from(!this.is_writable);
        // SAFETY: the bytes live as long as this object, to which the view has a reference.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.first.cast(), bytes as isize, read_only, flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        this.views.fetch_add(1, Relaxed);
        Ok(())
    }

    /// # Safety
    /// `_view` was filled by `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Relaxed);
    }

    /// Sets how many bytes it has: those are sent. At most as many as at first.
    fn resize(&self, bytes: Int<usize>) -> PyResult<()> {
        let Int(bytes) = bytes;
        self.check_no_views("resized")?;
        if bytes > self.capacity {
            let capacity = self.capacity;
            return Err(PyValueError::new_err(format!(
                "bytes: {bytes} are more than the {capacity} that it holds"
            )));
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// Whether a request is `numpy.ndarray`'s (`PyArray_BufferConverter`): it gives the view back at once, and
/// goes on using the memory.
fn is_for_array_without_view(flags: c_int) -> bool {
    flags & ffi::PyBUF_ANY_CONTIGUOUS == ffi::PyBUF_ANY_CONTIGUOUS && flags & ffi::PyBUF_FORMAT == 0
}

fn sent() -> PyErr {
    PyBufferError::new_err("buffer: it was sent, and has no bytes any more; take another")
}

/// The dtype that an argument of that name means, and the bytes of an item.
///
/// # Errors
/// `TypeError`: it is none, or of Python objects.
pub(crate) fn dtype_of<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, usize)> {
    static DTYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let dtype = DTYPE.import(dtype.py(), "numpy", "dtype")?.call1((dtype,))?;
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(PyTypeError::new_err(
            "dtype: holds Python objects; give one of numbers or bytes, such as '>u4'",
        ));
    }
    let bytes = dtype.getattr("itemsize")?.extract()?;
    Ok((dtype, bytes))
}

/// Where an array lies in a memory. Strides in bytes; the dtype is its text, or numpy's object.
pub(crate) struct Layout<'a, D = &'a str> {
    pub(crate) shape: &'a [usize],
    pub(crate) dtype: D,
    pub(crate) offset: usize,
    pub(crate) strides: Option<&'a [usize]>,
}

/// An array over that object's memory, which it keeps.
pub(crate) fn array_over<'py, D: IntoPyObject<'py> + Copy>(
    py: Python<'py>,
    memory: &Bound<'py, PyAny>,
    layout: &Layout<'_, D>,
) -> PyResult<Bound<'py, PyAny>> {
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let ndarray = NDARRAY.import(py, "numpy", "ndarray")?;
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", layout.dtype)?;
    keywords.set_item("buffer", memory)?;
    keywords.set_item("offset", layout.offset)?;
    if let Some(strides) = layout.strides {
        keywords.set_item("strides", pyo3::types::PyTuple::new(py, strides)?)?;
    }
    ndarray.call((pyo3::types::PyTuple::new(py, layout.shape)?,), Some(&keywords))
}

/// A new array of the numbers or records in that vector, whose memory it takes over.
pub(crate) fn array_of<'py, T: Copy + Send + 'static, D: IntoPyObject<'py> + Copy>(
    py: Python<'py>,
    records: Vec<T>,
    dtype: D,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = [records.len()];
    array_over_vector(py, records, &Layout { shape: &shape, dtype, offset: 0, strides: None })
}

/// As [`array_of`], of bytes in rows.
pub(crate) fn array_of_rows(py: Python<'_>, bytes: Vec<u8>, shape: [usize; 2]) -> PyResult<Bound<'_, PyAny>> {
    array_over_vector(py, bytes, &Layout { shape: &shape, dtype: "u1", offset: 0, strides: None })
}

/// As [`array_of`], of bytes that are `count` values of a dtype of numpy's.
pub(crate) fn array_of_bytes<'py>(
    py: Python<'py>,
    bytes: Vec<u8>,
    count: usize,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    array_over_vector(py, bytes, &Layout { shape: &[count], dtype, offset: 0, strides: None })
}

fn array_over_vector<'py, T: Copy + Send + 'static, D: IntoPyObject<'py> + Copy>(
    py: Python<'py>,
    mut records: Vec<T>,
    layout: &Layout<'_, D>,
) -> PyResult<Bound<'py, PyAny>> {
    let (first, bytes) = (records.as_mut_ptr(), size_of_val(&records[..]));
    // SAFETY: the vector's memory stays where it is when the vector is moved, and nothing else uses it.
    let memory = unsafe { Memory::writable(first.cast(), bytes, records) };
    array_over(py, Bound::new(py, memory)?.as_any(), layout)
}
