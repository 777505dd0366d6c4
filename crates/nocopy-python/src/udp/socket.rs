//! The socket, with both halves.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nocopy::Pool;
use nocopy::udp::{
    Builder, Burst as OwnedBurst, Method, PeerError, Receiver, RowFiller, Sender, Socket, UdpChecksum,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::burst::Burst;
use super::from_open;
use super::received_rows::ReceivedRows;
use super::sending;
use crate::account::{halves_dict, ledger_dict, stats_dict};
use crate::exported::{Access, Rows, rows};
use crate::half::{Half, close_both, timeout, wait};
use crate::memory::{Memory, array_of, array_of_rows};
use crate::number::{Int, pair};
use crate::{address, error, port, settings};

const CHECKSUMS: [(&str, UdpChecksum); 3] = [
    ("computed", UdpChecksum::Computed),
    ("omitted", UdpChecksum::Omitted),
    ("offloaded", UdpChecksum::Offloaded),
];

/// A UDP socket whose datagrams are arrays.
///
/// Receiving and sending are independent: one thread may receive while another one sends.
#[pyclass(frozen, subclass, module = "nocopy")]
pub(crate) struct UdpSocket {
    receiver: Half<Receiver>,
    sender: Half<Sender>,
    local: SocketAddr,
    /// Bytes that were copied into arrays because the caller asked for it.
    copied_into_arrays: AtomicU64,
    /// The shorter last datagram of the burst that an iteration returned last.
    rest: Mutex<Option<Burst>>,
    /// How rows of the last array's shape are received.
    filler: Mutex<Option<(RowShape, RowFiller)>>,
}

/// Of the rows of an array: bytes of each, and from one to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RowShape {
    row_bytes: usize,
    stride: usize,
}

impl RowShape {
    fn of(rows: &Rows) -> Self {
        Self { row_bytes: rows.row_bytes, stride: rows.stride }
    }

    /// The one that was used before, if it is for this shape; otherwise another.
    fn filler(self, last: &mut Option<(Self, RowFiller)>) -> &mut RowFiller {
        if last.as_ref().is_none_or(|(shape, _)| *shape != self) {
            *last = Some((self, RowFiller::with_stride(self.row_bytes, self.stride)));
        }
        &mut last.as_mut().expect("made now").1
    }
}

#[pymethods]
impl UdpSocket {
    /// Binds a socket to an address: 'host:port' or (host, port); to any, if none is given.
    ///
    /// `connect`: the peer, for `send`. `method`: sends only by this one, such as 'gso', instead of the one
    /// that measures best. `receive_buffer`, `send_buffer`: bytes of the kernel's buffers. `receive_pool`,
    /// `send_pool`: (buffers, bytes of each) of the socket's own. `group`: multicast groups to join, one or a
    /// list. `multicast`: (interface index, hops) to send to groups. `checksum`: 'computed', 'omitted' or
    /// 'offloaded'. `receive_metadata`, `receive_times`: what bursts report. `wait`: 'interrupt', 'spin',
    /// ('adaptive', seconds) or ('coalesced', packets, seconds). `port`: the name of an interface, or the
    /// keywords of `Port` in a dictionary: sends and receives past the kernel.
    #[new]
    #[pyo3(signature = (
        address = None, *, connect = None, method = None, receive_buffer = None, send_buffer = None,
        receive_pool = None, send_pool = None, group = None, multicast = None, broadcast = false,
        reuse_address = false, hop_limit = None, checksum = None, receive_metadata = false,
        receive_times = false, wait = None, port = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword, as each is a method of the builder")]
    fn new(
        py: Python<'_>,
        address: Option<&Bound<'_, PyAny>>,
        connect: Option<&Bound<'_, PyAny>>,
        method: Option<&str>,
        receive_buffer: Option<Int<usize>>,
        send_buffer: Option<Int<usize>>,
        receive_pool: Option<(Int<u32>, Int<usize>)>,
        send_pool: Option<(Int<u32>, Int<usize>)>,
        group: Option<&Bound<'_, PyAny>>,
        multicast: Option<(Int<u32>, Int<u8>)>,
        broadcast: bool,
        reuse_address: bool,
        hop_limit: Option<Int<u8>>,
        checksum: Option<&str>,
        receive_metadata: bool,
        receive_times: bool,
        wait: Option<&Bound<'_, PyAny>>,
        port: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut builder = Socket::builder()
            .broadcast(broadcast)
            .reuse_address(reuse_address)
            .receive_metadata(receive_metadata)
            .receive_times(receive_times);
        if let Some(name) = method {
            builder = builder.method(settings::by_name("method", name, &Method::ALL)?);
        }
        if let Some(Int(bytes)) = receive_buffer {
            builder = builder.receive_buffer(bytes);
        }
        if let Some(Int(bytes)) = send_buffer {
            builder = builder.send_buffer(bytes);
        }
        if let Some(pool) = receive_pool {
            builder = builder.receive_pool(&new_pool("receive_pool", pair(pool))?);
        }
        if let Some(pool) = send_pool {
            builder = builder.send_pool(&new_pool("send_pool", pair(pool))?);
        }
        if let Some(name) = checksum {
            builder = builder.checksum(settings::one_of("checksum", name, &CHECKSUMS)?);
        }
        if let Some(Int(hops)) = hop_limit {
            builder = builder.hop_limit(hops);
        }
        if let Some((interface, hops)) = multicast.map(pair) {
            builder = builder.multicast(interface, hops);
        }
        if let Some(wait) = wait {
            builder = builder.wait(settings::wait(wait)?);
        }
        if let Some(below) = port {
            builder = builder.port(port::below(below)?);
        }
        let builder = join(builder, group)?;
        let to = connect.map(|to| address::lookup("connect", to)).transpose()?;
        let at = match (address, to.as_deref()) {
            (Some(address), _) => address::lookup("address", address)?,
            (None, Some([to, ..])) if to.is_ipv6() => vec![SocketAddr::from(([0; 16], 0))],
            (None, _) => vec![SocketAddr::from(([0; 4], 0))],
        };
        let mut socket = py.detach(|| builder.bind(&at[..])).map_err(|error| from_open(py, &error))?;
        if let Some(to) = to {
            py.detach(|| socket.connect(&to[..])).map_err(error::from_io)?;
        }
        let local = socket.local_addr().map_err(error::from_io)?;
        let (receiver, sender) = socket.split();
        Ok(Self {
            receiver: Half::new("UdpSocket: receiving", receiver),
            sender: Half::new("UdpSocket: sending", sender),
            local,
            copied_into_arrays: AtomicU64::new(0),
            rest: Mutex::new(None),
            filler: Mutex::new(None),
        })
    }

    /// The address that it is bound to: (host, port).
    fn local_addr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.receiver.check_process()?;
        address::to_python(py, self.local)
    }

    /// Waits for datagrams and returns those that have arrived, as a list of `Burst`s; an empty list if none
    /// came within `timeout` seconds. With `gather`, `(array, lengths)`: all copied into one array, with rows
    /// of the longest one's length.
    #[pyo3(signature = (timeout = None, *, gather = false))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        gather: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.receiver.get(py)?;
        if let Some(rest) = self.take_rest() {
            if !gather {
                return Ok(PyList::new(py, [rest])?.into_any());
            }
            let bytes = rest.to_vec();
            self.count_copied(bytes.len());
            return gathered(py, &[&bytes]);
        }
        let bursts = wait(py, timeout, |time| take_bursts(receiver, Some(time)))?.unwrap_or_default();
        if !gather {
            return list_of(py, bursts);
        }
        self.count_copied(bursts.iter().map(|burst| burst.len()).sum());
        gathered(py, &Vec::from_iter(bursts.iter().flat_map(OwnedBurst::datagrams)))
    }

    /// As `receive`, without waiting.
    fn try_receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let receiver = &mut *self.receiver.get(py)?;
        if let Some(rest) = self.take_rest() {
            return Ok(PyList::new(py, [rest])?.into_any());
        }
        let bursts = py.detach(|| take_bursts(receiver, None)).map_err(error::from_io)?;
        list_of(py, bursts.unwrap_or_default())
    }

    /// Waits for datagrams and receives those that have arrived into rows of an array, from the first row on;
    /// at most as many as it has rows. Returns what is known about each row that was filled. Rows behind
    /// those may have been written, too.
    #[pyo3(signature = (array, timeout = None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<ReceivedRows> {
        let timeout = self::timeout(timeout)?;
        let rows = rows("array", array, Access::Write)?;
        if rows.count == 0 || rows.row_bytes == 0 {
            let what = if rows.count == 0 { "has no rows" } else { "has rows of no bytes" };
            let text = format!("array: {what}; give one with a row for each datagram");
            return Err(PyValueError::new_err(text));
        }
        let receiver = &mut *self.receiver.get(py)?;
        if let Some(rest) = self.take_rest() {
            self.count_copied(rest.copy_into_row(&rows));
            return Ok(ReceivedRows::of_one(rest.as_row()));
        }
        // Locked by the thread that has the half alone.
        let mut filler = self.filler.lock().expect("nothing panics with it");
        let filler = RowShape::of(&rows).filler(&mut filler);
        let mut memory = rows.into_memory();
        let filled = wait(py, timeout, |time| {
            let count = receiver.receive_into(&mut memory, filler, Some(time))?;
            Ok((count > 0).then(|| filler.filled().clone()))
        });
        drop(memory);
        crate::exported::release_unused(py);
        let filled = filled?.unwrap_or_default();
        if !filled.is_empty() {
            self.count_copied(filler.copied_bytes());
        }
        Ok(ReceivedRows::new(filled))
    }

    /// Sends datagrams to an address: a row of an array each; or one buffer as one datagram, or as several of
    /// `segment` bytes. The array belongs to the socket until the kernel is done with it: it cannot be
    /// resized, and must not be changed. With `flush` false it is queued only.
    #[pyo3(signature = (data, to, *, segment = None, flush = true))]
    fn send_to(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
        segment: Option<Int<usize>>,
        flush: bool,
    ) -> PyResult<()> {
        let to = address::first("to", to)?;
        self.queue(py, data, Some(to), segment, flush)
    }

    /// As `send_to`, to the peer to which the socket is connected.
    #[pyo3(signature = (data, *, segment = None, flush = true))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        segment: Option<Int<usize>>,
        flush: bool,
    ) -> PyResult<()> {
        self.queue(py, data, None, segment, flush)
    }

    /// An empty buffer of the socket, to be filled as an array and sent without a copy where the machine can;
    /// None while all are on their way.
    fn buffer(&self, py: Python<'_>) -> PyResult<Option<Memory>> {
        let sender = &mut *self.sender.get(py)?;
        let Some(mut buffer) = sender.buffer() else { return Ok(None) };
        buffer.resize(buffer.capacity());
        let (first, bytes) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer's memory stays where it is when it is moved, and the buffer is not used before
        // it is taken back.
        Ok(Some(unsafe { Memory::writable(first, bytes, buffer) }))
    }

    /// Hands everything queued to the kernel. With a timeout, returns False if something is left then.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = self::timeout(timeout)?;
        let sender = &mut *self.sender.get(py)?;
        let is_all = wait(py, timeout, |time| Ok(sender.flush_timeout(time)?.then_some(())))?;
        Ok(is_all.is_some())
    }

    /// Hands everything queued to the kernel, and waits until it no longer reads any memory. Returns False if
    /// that is not so after `timeout` seconds.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?;
        let sender = &mut *self.sender.get(py)?;
        let is_drained = wait(py, timeout, |time| Ok(sender.drain(time)?.then_some(())))?;
        Ok(is_drained.is_some())
    }

    /// Errors that the network reported for sent datagrams, such as a refusing host: a list of (to, from,
    /// text), with addresses or None. Each is returned once.
    fn errors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let found = self.sender.get(py)?.errors().map(|PeerError { to, from, error, .. }| {
            let to = to.map(|to| address::to_python(py, to)).transpose()?;
            (to, from.map(|from| from.to_string()), error.to_string()).into_pyobject(py)
        });
        PyList::new(py, found.collect::<PyResult<Vec<_>>>()?)
    }

    /// Changes how receiving waits, from the next wait on.
    fn set_wait(&self, py: Python<'_>, wait: &Bound<'_, PyAny>) -> PyResult<()> {
        let wait = settings::wait(wait)?;
        self.receiver.get(py)?.set_wait(wait);
        Ok(())
    }

    /// What the kernel is done with becomes free. Returns the number of sends that completed.
    fn reap(&self, py: Python<'_>) -> PyResult<usize> {
        let reaped = self.sender.get(py)?.reap();
        crate::exported::release_unused(py);
        Ok(reaped)
    }

    /// Sends of which the kernel may still read the memory.
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.sender.get(py)?.in_flight())
    }

    /// Waits for sends for at most `timeout` seconds, and closes the socket. Returns False if something was
    /// given up.
    #[pyo3(signature = (timeout = 10.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?.unwrap_or(Duration::ZERO);
        let methods: [fn(&mut Sender, _) -> _; 2] =
            [|sender, time| sender.drain(time), |sender, time| sender.close(time)];
        close_both(py, &self.receiver, &self.sender, methods, timeout)
    }

    /// Evidence for every byte, by half: how many were not copied, and how many were, by cause. Beside them,
    /// how many were copied once more, into arrays, because `receive_into` or `gather` asked for it.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let received = self.receiver.get_open(py)?.map(|receiver| receiver.ledger());
        let dict = halves_dict(py, received, self.sender.get(py)?.ledger(), ledger_dict)?;
        dict.set_item("copied into arrays", self.copied_into_arrays.load(Relaxed))?;
        Ok(dict)
    }

    /// All counters, by half.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let received = self.receiver.get_open(py)?.map(|receiver| receiver.stats());
        halves_dict(py, received.as_ref(), &self.sender.get(py)?.stats(), stats_dict)
    }

    /// Which methods were chosen, and what they were compared with, in words.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = format!("sent: {}", self.sender.get(py)?.explain());
        // While this thread has the half, no other one waits with the filler.
        if let Some(receiver) = self.receiver.get_open(py)? {
            text = format!("received: {}\n{text}", receiver.explain());
            if let Some((_, filler)) = &*self.filler.lock().expect("nothing panics with it") {
                text = format!("{text}\nreceived into rows: {}", filler.explain());
            }
        }
        Ok(text)
    }

    /// A descriptor that becomes readable when datagrams arrive; only to wait on, after `arm`.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.receiver.get(py)?.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `fileno`; True if datagrams are waiting already, and no wait is needed.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        let receiver = &mut *self.receiver.get(py)?;
        let has_rest = self.rest.lock().expect("nothing panics with it").is_some();
        Ok(has_rest || receiver.arm().map_err(error::from_io)?)
    }

    /// A descriptor that becomes readable when sends complete or there is room; only to wait on, after
    /// `_arm_to_send`.
    #[pyo3(name = "_sender_fileno")]
    fn sender_fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.sender.get(py)?.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `_sender_fileno`; True if there may be room, or memory is free, already.
    #[pyo3(name = "_arm_to_send")]
    fn arm_to_send(&self, py: Python<'_>) -> PyResult<bool> {
        let is_ready = self.sender.get(py)?.arm().map_err(error::from_io)?;
        crate::exported::release_unused(py);
        Ok(is_ready)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bursts {
        Bursts(slf.unbind())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, 10.0).map(drop)
    }
}

impl UdpSocket {
    pub(super) fn receiver(&self) -> &Half<Receiver> {
        &self.receiver
    }

    fn take_rest(&self) -> Option<Burst> {
        self.rest.lock().expect("nothing panics with it").take()
    }

    fn count_copied(&self, bytes: usize) {
        self.copied_into_arrays.fetch_add(bytes as u64, Relaxed);
    }

    fn queue(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: Option<SocketAddr>,
        segment: Option<Int<usize>>,
        flush: bool,
    ) -> PyResult<()> {
        let sender = &mut *self.sender.get(py)?;
        let mut outgoing = sending::outgoing(data, segment.map(|Int(bytes)| bytes))?;
        let queued = wait(py, None, |time| outgoing.queue(sender, to, time));
        // What was queued before an error or a signal is sent, too, as far as that needs no wait.
        let flushed = match queued {
            Ok(_) if flush => wait(py, None, |time| Ok(sender.flush_timeout(time)?.then_some(()))).map(drop),
            Ok(_) => Ok(()),
            Err(error) => {
                outgoing.give_back(data);
                let _ = py.detach(|| sender.flush_timeout(Duration::ZERO));
                Err(error)
            }
        };
        crate::exported::release_unused(py);
        flushed
    }
}

/// What `for burst in socket` goes through.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Bursts(Py<UdpSocket>);

#[pymethods]
impl Bursts {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Burst>> {
        let socket = self.0.get();
        let receiver = &mut *socket.receiver.get(py)?;
        if let Some(rest) = socket.take_rest() {
            return Ok(Some(rest));
        }
        // One at a time: those that follow stay for any other call that receives.
        let burst = wait(py, None, |time| Ok(receiver.receive_timeout(time)?.next_burst()))?;
        let Some(burst) = burst else { return Ok(None) };
        let mut parts = Burst::of_equal_lengths(py, burst)?.into_iter();
        let first = parts.next();
        *socket.rest.lock().expect("nothing panics with it") = parts.next();
        Ok(first)
    }
}

/// A pool of so many buffers of so many bytes.
fn new_pool(argument: &str, (buffers, bytes): (u32, usize)) -> PyResult<Pool> {
    if buffers == 0 || bytes == 0 {
        let text =
            format!("{argument}: ({buffers}, {bytes}) is no memory; give how many buffers, and their bytes");
        return Err(PyValueError::new_err(text));
    }
    Pool::new(buffers, bytes).map_err(|error| {
        PyValueError::new_err(format!(
            "{argument}: {buffers} buffers of {bytes} bytes cannot be made; {error}"
        ))
    })
}

/// One group, or a list of them.
fn join(builder: Builder, group: Option<&Bound<'_, PyAny>>) -> PyResult<Builder> {
    let Some(group) = group else { return Ok(builder) };
    let names = match group.extract::<String>() {
        Ok(name) => vec![name],
        Err(_) => group.extract::<Vec<String>>()?,
    };
    names.iter().try_fold(builder, |builder, name| {
        let group: IpAddr = name.parse().map_err(|_| {
            PyValueError::new_err(format!("group: '{name}' is no address; give one such as '239.1.2.3'"))
        })?;
        Ok(builder.group(group))
    })
}

/// Takes what has arrived; waits if there is a time.
fn take_bursts(receiver: &mut Receiver, time: Option<Duration>) -> io::Result<Option<Vec<OwnedBurst>>> {
    let mut batch = match time {
        Some(time) => receiver.receive_timeout(time)?,
        None => receiver.try_receive()?,
    };
    let bursts = Vec::from_iter(std::iter::from_fn(|| batch.next_burst()));
    Ok((!bursts.is_empty()).then_some(bursts))
}

fn to_bursts(py: Python<'_>, bursts: Vec<OwnedBurst>) -> PyResult<Vec<Burst>> {
    let mut all = Vec::with_capacity(bursts.len());
    for burst in bursts {
        all.extend(Burst::of_equal_lengths(py, burst)?);
    }
    Ok(all)
}

fn list_of(py: Python<'_>, bursts: Vec<OwnedBurst>) -> PyResult<Bound<'_, PyAny>> {
    Ok(PyList::new(py, to_bursts(py, bursts)?)?.into_any())
}

/// All datagrams in one array, with their lengths; rows are as long as the longest datagram.
fn gathered<'py>(py: Python<'py>, datagrams: &[&[u8]]) -> PyResult<Bound<'py, PyAny>> {
    let lengths: Vec<i64> = datagrams.iter().map(|datagram| datagram.len() as i64).collect();
    let row_bytes = datagrams.iter().map(|datagram| datagram.len()).max().unwrap_or(0);
    let mut bytes = vec![0; lengths.len() * row_bytes];
    // No row is of no bytes, unless all are, and then there is nothing to copy.
    for (row, datagram) in bytes.chunks_exact_mut(row_bytes.max(1)).zip(datagrams) {
        row[..datagram.len()].copy_from_slice(datagram);
    }
    let array = array_of_rows(py, bytes, [lengths.len(), row_bytes])?;
    Ok((array, array_of(py, lengths, "i8")?).into_pyobject(py)?.into_any())
}
