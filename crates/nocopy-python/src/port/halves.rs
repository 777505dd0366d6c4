//! The port, with both halves.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy::area::Area;
use nocopy::{Mode, Port as OpenPort, Receiver, Sender};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::batch::{Batch, TakenBatch};
use super::opening::{Keywords, from_open, with_sizes};
use super::sending;
use crate::account::{halves_dict, ledger_dict, stats_dict};
use crate::half::{Half, close_both, time_left, timeout, wait};
use crate::number::{Int, int};
use crate::{error, exported};

/// The halves in errors.
const RECEIVING: &str = "Port: receiving";
const SENDING: &str = "Port: sending";

/// One queue of one interface, for receiving and sending whole packets.
///
/// Receiving and sending are independent: one thread may receive while another one sends. `for batch in port`
/// goes on until the port is closed or an error is raised.
#[pyclass(frozen, subclass, module = "nocopy")]
pub(crate) struct Port {
    receiver: Half<Receiver>,
    sender: Half<Sender>,
    area: Area,
    mode: Mode,
    queue: u32,
    /// Bytes that were copied from arrays into frames.
    copied_from_arrays: AtomicU64,
}

#[pymethods]
impl Port {
    /// Opens a queue of an interface of this thread's network namespace. In the AF_XDP modes ('xdp
    /// zero-copy', 'xdp copy native', 'xdp copy generic') the port alone gets the packets of its queue that
    /// match `filter`, as `Capture` has it; in the mode 'packet ring' the host gets them, too. Without
    /// `mode`, the fastest that works is taken, for the `purpose`: 'exchange', 'capture' or 'send'.
    /// `frame_count` and `ring_sizes` are pairs (receive, send); frame_count=(0, n) only sends. `busy_poll`
    /// is (seconds, packets). `batch` is the most packets that one call returns (default 1024).
    ///
    /// Raises Unsupported if a capability is missing or the kernel is too old, OpenError for other refusals,
    /// ValueError for settings that are not known.
    #[new]
    #[pyo3(signature = (
        interface, *, queue = 0, mode = None, filter = None, purpose = None, frame_count = None,
        ring_sizes = None, busy_poll = None, batch = 1024, wait = None, promiscuous = false, receive_metadata = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword, as each is a method of the builder")]
    fn new(
        py: Python<'_>,
        interface: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = int)] queue: u32,
        mode: Option<String>,
        filter: Option<String>,
        purpose: Option<String>,
        frame_count: Option<(Int<u32>, Int<u32>)>,
        ring_sizes: Option<(Int<u32>, Int<u32>)>,
        busy_poll: Option<(f64, Int<u32>)>,
        #[pyo3(from_py_with = int)] batch: u32,
        wait: Option<Bound<'_, PyAny>>,
        promiscuous: bool,
        receive_metadata: bool,
    ) -> PyResult<Self> {
        // A port that was opened, as the half of a subclass: `memory_pair` has them.
        if let Ok(opened) = interface.cast::<Self>() {
            return opened.get().moved(py);
        }
        let keywords = Keywords {
            interface: interface.extract()?,
            queue,
            mode,
            filter,
            purpose,
            frame_count,
            ring_sizes,
            busy_poll,
            batch,
            wait,
            promiscuous,
            receive_metadata,
        };
        let builder = keywords.into_builder(py)?;
        let port = py.detach(|| builder.open()).map_err(|error| from_open(py, &error))?;
        Ok(Self::of(port))
    }

    /// Two linked ports in this process, `(left, right)`: each receives what the other one sends. For tests,
    /// and for learning; needs no privileges.
    #[staticmethod]
    #[pyo3(signature = (*, frame_count = None, ring_sizes = None, batch = 1024, wait = None))]
    fn memory_pair(
        py: Python<'_>,
        frame_count: Option<(Int<u32>, Int<u32>)>,
        ring_sizes: Option<(Int<u32>, Int<u32>)>,
        #[pyo3(from_py_with = int)] batch: u32,
        wait: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Self, Self)> {
        let builder = with_sizes(OpenPort::memory_builder(), frame_count, ring_sizes, batch, wait)?;
        let (left, right) = builder.memory_pair().map_err(|error| from_open(py, &error))?;
        Ok((Self::of(left), Self::of(right)))
    }

    /// How packets move between the port and the kernel: 'xdp zero-copy', 'xdp copy native', 'xdp copy
    /// generic', 'packet ring' or 'memory'.
    #[getter]
    fn mode(&self) -> String {
        self.mode.to_string()
    }

    /// The port's queue.
    #[getter]
    fn queue(&self) -> u32 {
        self.queue
    }

    /// Where all frames are: a dictionary with total, free, in_use (by batches of this program), lent_rx,
    /// lent_tx, retired, and is_balanced: whether each was found once. Exact only while no call is running.
    fn balance<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.receiver.check_process()?;
        let balance = self.area.balance();
        let dict = PyDict::new(py);
        dict.set_item("total", balance.total)?;
        dict.set_item("free", balance.free)?;
        dict.set_item("in_use", balance.in_use)?;
        dict.set_item("lent_rx", balance.lent_rx)?;
        dict.set_item("lent_tx", balance.lent_tx)?;
        dict.set_item("retired", balance.retired)?;
        dict.set_item("is_balanced", balance.is_balanced())?;
        Ok(dict)
    }

    /// Waits for packets and returns those that have arrived as a `Batch`; None if none came within `timeout`
    /// seconds. In the mode 'packet ring' they are copied into frames, which `stats` counts (rx_copied_out);
    /// `Capture` does without.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.receiver.get(py)?;
        let batch = wait(py, timeout, |time| take_batch(receiver, Some(time)))?;
        batch.map(|batch| Batch::new(py, batch)).transpose()
    }

    /// As `receive`, without waiting.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let receiver = &mut *self.receiver.get(py)?;
        let batch = py.detach(|| take_batch(receiver, None)).map_err(error::from_io)?;
        batch.map(|batch| Batch::new(py, batch)).transpose()
    }

    /// Sends packets: a row of an array each, or one buffer as one packet; whole Ethernet frames. Their bytes
    /// are copied into the port's frames, which `ledger` counts. Waits for free frames, for at most `timeout`
    /// seconds, and returns the number of packets that were queued: fewer than given only if the time was
    /// over. With `flush` false they are only queued.
    ///
    /// Raises TooLong if the rows are longer than a packet of this port; then nothing is sent.
    #[pyo3(signature = (data, timeout = None, *, flush = true))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<usize> {
        let timeout = self::timeout(timeout)?;
        let rows = sending::outgoing(data)?;
        let sender = &mut *self.sender.get(py)?;
        if rows.count == 0 {
            return Ok(0);
        }
        sending::check_length(sender, rows.row_bytes).map_err(|reason| error::from_reason(&reason))?;
        let (mut done, start) = (0, Instant::now());
        let queued = wait(py, timeout, |time| sending::queue_rows(sender, &rows, &mut done, time));
        self.copied_from_arrays.fetch_add((done * rows.row_bytes) as u64, Relaxed);
        let flushed = match queued {
            Ok(_) if flush => {
                wait(py, time_left(timeout, start), |time| sending::flush(sender, time)).map(drop)
            }
            queued => queued.map(drop),
        };
        drop(rows);
        exported::release_unused(py);
        flushed.map(|()| done)
    }

    /// Hands everything queued to the kernel. With a timeout, returns False if something is left then.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = self::timeout(timeout)?;
        let sender = &mut *self.sender.get(py)?;
        Ok(wait(py, timeout, |time| sending::flush(sender, time))?.is_some())
    }

    /// Hands everything queued to the kernel, and waits until it has sent it. Returns False if that is not so
    /// after `timeout` seconds.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?;
        let sender = &mut *self.sender.get(py)?;
        Ok(wait(py, timeout, |time| Ok(sender.drain(time)?.then_some(())))?.is_some())
    }

    /// Takes frames back that the kernel has sent. Returns their number.
    fn reap(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.sender.get(py)?.reap())
    }

    /// Frames queued, or not yet sent by the kernel.
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.sender.get(py)?.in_flight())
    }

    /// Waits for packets to be sent for at most `timeout` seconds, and closes the port. Returns False if
    /// something was given up. Batches and arrays that the program has stay as they are.
    #[pyo3(signature = (timeout = 10.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?.unwrap_or(Duration::ZERO);
        let methods: [fn(&mut Sender, _) -> _; 2] =
            [|sender, time| sender.drain(time), |sender, time| sender.close(time)];
        close_both(py, &self.receiver, &self.sender, methods, timeout)
    }

    /// Evidence for every byte, by half: how many were not copied, and how many were, by cause. Beside them,
    /// how many `send` copied from arrays into frames.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let received = self.receiver.get(py)?.ledger();
        let dict = halves_dict(py, Some(received), self.sender.get(py)?.ledger(), ledger_dict)?;
        dict.set_item("copied from arrays", self.copied_from_arrays.load(Relaxed))?;
        Ok(dict)
    }

    /// All counters, by half.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        halves_dict(py, Some(&self.receiver.get(py)?.stats()), &self.sender.get(py)?.stats(), stats_dict)
    }

    /// The port's mode, and why others were refused, in words.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.receiver.get(py)?.explain().to_string())
    }

    /// A descriptor that becomes readable when packets arrive; only to wait on, after `arm`.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.receiver.get(py)?.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `fileno`; True if packets are waiting already, and no wait is needed.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.receiver.get(py)?.arm().map_err(error::from_io)
    }

    /// A descriptor that becomes readable when packets were sent; only to wait on, after `_arm_to_send`.
    #[pyo3(name = "_sender_fileno")]
    fn sender_fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.sender.get(py)?.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `_sender_fileno`; True if there may be room already.
    #[pyo3(name = "_arm_to_send")]
    fn arm_to_send(&self, py: Python<'_>) -> PyResult<bool> {
        self.sender.get(py)?.arm().map_err(error::from_io)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        self.receive(py, None)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, 10.0).map(drop)
    }
}

impl Port {
    /// The same port as another object; this one is closed.
    fn moved(&self, py: Python<'_>) -> PyResult<Self> {
        let (receiver, sender) = (self.receiver.get(py)?, self.sender.get(py)?);
        Ok(Self {
            receiver: Half::new(RECEIVING, receiver.take()),
            sender: Half::new(SENDING, sender.take()),
            area: self.area.clone(),
            mode: self.mode,
            queue: self.queue,
            copied_from_arrays: AtomicU64::new(self.copied_from_arrays.load(Relaxed)),
        })
    }

    fn of(port: OpenPort) -> Self {
        let (area, mode, queue) = (port.area().clone(), port.mode(), port.queue());
        let (receiver, sender) = port.split();
        Self {
            receiver: Half::new(RECEIVING, receiver),
            sender: Half::new(SENDING, sender),
            area,
            mode,
            queue,
            copied_from_arrays: AtomicU64::new(0),
        }
    }
}

/// Takes packets that have arrived; waits if there is a time.
fn take_batch(receiver: &mut Receiver, time: Option<Duration>) -> io::Result<Option<TakenBatch>> {
    let batch = match time {
        Some(time) => receiver.receive_timeout(time)?,
        None => receiver.try_receive()?,
    };
    Ok(TakenBatch::new(batch))
}
