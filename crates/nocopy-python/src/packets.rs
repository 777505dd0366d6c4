//! Packets that came together: their memory as one array, and what is known about each in another one. No
//! object is made for one packet.

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::memory::{Layout, Memory, array_of, array_of_bytes, array_over, dtype_of};

/// What is known about one packet, as numpy sees it ([`record_dtype`]). Offsets and times are signed:
/// numpy turns sums of unsigned and signed integers into floating-point numbers.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct PacketRecord {
    /// Where it begins in the array of all bytes.
    pub(crate) offset: i64,
    pub(crate) time_ns: i64,
    pub(crate) length: u32,
    pub(crate) original_length: u32,
    /// The identifier of the VLAN, or [`NO_VLAN`].
    pub(crate) vlan: i16,
    pub(crate) outgoing: bool,
    pub(crate) padding: [u8; 5],
}

const _: () = assert!(size_of::<PacketRecord>() == 32, "no byte is undefined");

/// The VLAN of packets without a tag.
const NO_VLAN: i16 = -1;

/// The identifier in the control field of a tag, its lower twelve bits.
pub(crate) fn vlan_of(control: Option<u16>) -> i16 {
    control.map_or(NO_VLAN, |control| (control & 0xfff) as i16)
}

/// Nanoseconds as numpy has them: signed, until 2262.
pub(crate) fn signed_ns(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// The dtype of [`PacketRecord`], made once.
fn record_dtype(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let dtype = DTYPE.get_or_try_init(py, || {
        let fields: [(&str, &str, usize); 6] = [
            ("offset", "i8", std::mem::offset_of!(PacketRecord, offset)),
            ("length", "u4", std::mem::offset_of!(PacketRecord, length)),
            ("original_length", "u4", std::mem::offset_of!(PacketRecord, original_length)),
            ("time", "i8", std::mem::offset_of!(PacketRecord, time_ns)),
            ("vlan", "i2", std::mem::offset_of!(PacketRecord, vlan)),
            ("outgoing", "?", std::mem::offset_of!(PacketRecord, outgoing)),
        ];
        let layout = PyDict::new(py);
        layout.set_item("names", fields.map(|(name, ..)| name).to_vec())?;
        layout.set_item("formats", fields.map(|(_, format, _)| format).to_vec())?;
        layout.set_item("offsets", fields.map(|(.., offset)| offset).to_vec())?;
        layout.set_item("itemsize", size_of::<PacketRecord>())?;
        Ok::<_, PyErr>(py.import("numpy")?.call_method1("dtype", (layout,))?.unbind())
    })?;
    Ok(dtype.bind(py))
}

/// Packets in memory that does not change.
pub(crate) struct Packets {
    bytes: Py<Memory>,
    /// The vector of [`PacketRecord`]s.
    records: Py<Memory>,
    count: usize,
}

/// Keeps the records.
struct Records(#[expect(dead_code, reason = "only kept")] Vec<PacketRecord>);

/// Some bytes of each packet.
#[derive(Clone, Copy)]
struct Field {
    offset: usize,
    bytes: usize,
}

/// Memory to read from without the interpreter.
#[derive(Clone, Copy)]
struct Source {
    bytes: *const u8,
    records: *const PacketRecord,
    count: usize,
}

// SAFETY: the memory is only read, and any thread may do that.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

impl Packets {
    /// Packets that lie in those bytes.
    ///
    /// # Safety
    /// Every record's bytes lie in the memory, and nothing writes to them while its owner lives.
    pub(crate) unsafe fn new(py: Python<'_>, bytes: Memory, records: Vec<PacketRecord>) -> PyResult<Self> {
        let count = records.len();
        let (first, records_bytes) = (records.as_ptr(), size_of_val(&records[..]));
        // SAFETY: the vector's memory stays where it is when the vector is moved; it is never written again.
        let records = unsafe { Memory::readable(first.cast(), records_bytes, Records(records)) };
        Ok(Self { bytes: Py::new(py, bytes)?, records: Py::new(py, records)?, count })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// All bytes, read-only.
    pub(crate) fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = [self.bytes.get().len()];
        let layout = Layout { shape: &shape, dtype: "u1", offset: 0, strides: None };
        array_over(py, self.bytes.bind(py).as_any(), &layout)
    }

    /// The records, read-only.
    pub(crate) fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = [self.count];
        let layout = Layout { shape: &shape, dtype: record_dtype(py)?, offset: 0, strides: None };
        array_over(py, self.records.bind(py).as_any(), &layout)
    }

    /// One field of each packet, and whether the packet is too short for it.
    ///
    /// # Errors
    /// `ValueError`, `TypeError`: the arguments name no field of a packet. `MemoryError`.
    pub(crate) fn column<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (dtype, bytes) = field_dtype(dtype)?;
        let source = Source {
            bytes: self.bytes.get().first(),
            records: self.records.get().first().cast(),
            count: self.count,
        };
        let field = Field { offset, bytes };
        // The memory stays: `self` is borrowed, and nothing takes it out.
        let gathered = py.detach(|| gather(source, field));
        let (values, mask) = gathered.ok_or_else(|| {
            PyMemoryError::new_err(format!(
                "column: no memory for {bytes} byte(s) of {} packets",
                source.count
            ))
        })?;
        Ok((array_of_bytes(py, values, self.count, &dtype)?, array_of(py, mask, "?")?))
    }
}

/// The dtype of a field, and its bytes.
fn field_dtype<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let (dtype, bytes) = dtype_of(dtype)?;
    if bytes == 0 {
        return Err(PyValueError::new_err(
            "dtype: has no bytes; give one with a size, such as '>u4' or 'S6'",
        ));
    }
    Ok((dtype, bytes))
}

/// Copies a field of each packet; `None` without memory for them.
fn gather(source: Source, field: Field) -> Option<(Vec<u8>, Vec<bool>)> {
    let mut values = Vec::new();
    let bytes = source.count.checked_mul(field.bytes)?;
    values.try_reserve_exact(bytes).ok()?;
    values.resize(bytes, 0);
    // Copies of a known length are a load and a store instead of a call.
    let mask = match field.bytes {
        1 => gather_fields(source, field, &mut values, copy::<1>),
        2 => gather_fields(source, field, &mut values, copy::<2>),
        4 => gather_fields(source, field, &mut values, copy::<4>),
        6 => gather_fields(source, field, &mut values, copy::<6>),
        8 => gather_fields(source, field, &mut values, copy::<8>),
        // SAFETY: as `gather_fields` calls it, with as many bytes to be read as the slice has.
        _ => gather_fields(source, field, &mut values, |from, to| unsafe {
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }),
    };
    Some((values, mask))
}

fn copy<const BYTES: usize>(from: *const u8, to: &mut [u8]) {
    let to: &mut [u8; BYTES] = to.try_into().expect("a field's bytes");
    // SAFETY: as `gather_fields` calls it; an array of bytes has no alignment.
    *to = unsafe { from.cast::<[u8; BYTES]>().read() };
}

/// Calls `copy` with the field of each packet that is long enough, and the bytes for it.
fn gather_fields(
    source: Source,
    field: Field,
    values: &mut [u8],
    copy: impl Fn(*const u8, &mut [u8]),
) -> Vec<bool> {
    let end = field.offset.saturating_add(field.bytes);
    let gather = |(index, to): (usize, &mut [u8])| {
        // SAFETY: there are as many records as pieces of `values`.
        let record = unsafe { source.records.add(index).read() };
        let is_too_short = (record.length as usize) < end;
        if !is_too_short {
            // SAFETY: the field lies in the packet, and that in the memory (`Packets::new`).
            copy(unsafe { source.bytes.add(record.offset as usize + field.offset) }, to);
        }
        is_too_short
    };
    values.chunks_exact_mut(field.bytes).enumerate().map(gather).collect()
}
