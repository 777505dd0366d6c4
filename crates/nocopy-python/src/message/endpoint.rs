//! The endpoint.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy::SenderHalf;
use nocopy::message as library;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::many::{MessageRows, Messages};
use super::opening::{self, Keywords};
use super::peer::{self, Event, Peer};
use super::received::{Message, Taken};
use super::receiving::{Ended, Receiver, rows_of, too_long};
use super::sending::{self, Outgoing, poll_until, with_room};
use crate::account::{ledger_dict, stats_dict};
use crate::half::{Half, Used, time_left, timeout, wait};
use crate::number::Int;
use crate::{address, error};

/// Number of the next endpoint of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// One end of any number of connections, which sends messages and receives them: each once, and those of one
/// peer in order, whatever the network loses.
///
/// It has no thread, and works only within calls: one that is not called acknowledges nothing, and its peers
/// take it for dead after their `dead_after`. One thread at a time can use it.
#[pyclass(frozen, subclass, module = "nocopy")]
pub(crate) struct Endpoint {
    half: Half<Receiver>,
    local: SocketAddr,
    /// Which of this process.
    number: u64,
    /// Bytes that were copied into arrays.
    copied_into_arrays: AtomicU64,
}

#[pymethods]
impl Endpoint {
    /// Binds an endpoint to an address: 'host:port' or (host, port); with port 0 the kernel chooses one.
    ///
    /// `max_message_bytes`: the longest message to receive (1 MiB). `datagram_bytes`: the longest datagram
    /// (what fits into 1500 bytes of IP). `crc`: protects each datagram by a CRC32C. `accept`: whether peers
    /// may connect. `peers_max`: how many there may be (65,536). `keep_alive`: seconds of silence after which
    /// a peer is asked whether it is there (10). `dead_after`: seconds of silence after which a connection is
    /// lost (30). `wait`: 'interrupt', 'spin', or ('adaptive', seconds). `memory`: bytes that packets may
    /// take. `port`: name of an interface, or the keywords of `Port` in a dictionary, to send and receive
    /// over a port on each of its queues, past the kernel. `streams`: whether long messages may go by TCP
    /// beside the datagrams.
    ///
    /// Raises OpenError.
    #[new]
    #[pyo3(signature = (
        address, *, max_message_bytes = None, datagram_bytes = None, crc = false, accept = true, peers_max = None,
        keep_alive = None, dead_after = None, wait = None, memory = None, port = None,
        streams = true
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword, as each is a method of the builder")]
    fn new(
        py: Python<'_>,
        address: &Bound<'_, PyAny>,
        max_message_bytes: Option<Int<usize>>,
        datagram_bytes: Option<Int<u16>>,
        crc: bool,
        accept: bool,
        peers_max: Option<Int<usize>>,
        keep_alive: Option<f64>,
        dead_after: Option<f64>,
        wait: Option<&Bound<'_, PyAny>>,
        memory: Option<Int<usize>>,
        port: Option<&Bound<'_, PyAny>>,
        streams: bool,
    ) -> PyResult<Self> {
        let keywords = Keywords {
            max_message_bytes,
            datagram_bytes,
            crc,
            accept,
            peers_max,
            keep_alive,
            dead_after,
            wait,
            memory,
            port,
            streams,
        };
        let builder = keywords.into_builder()?;
        let at = address::lookup("address", address)?;
        let opened = py.detach(|| builder.bind(&at[..]));
        let endpoint = opened.map_err(|error| opening::from_open(py, &error))?;
        Ok(Self {
            local: endpoint.local_addr(),
            half: Half::new("Endpoint", Receiver::new(endpoint)),
            number: NEXT.fetch_add(1, Relaxed), // a number alone
            copied_into_arrays: AtomicU64::new(0),
        })
    }

    /// The address that it is bound to: (host, port).
    fn local_addr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.half.check_process()?;
        address::to_python(py, self.local)
    }

    /// Connects to an address and returns the `Peer`; tries all addresses of a name. Gives up after `timeout`
    /// seconds for each, and in any case after `dead_after`. Messages and events of other peers that come
    /// meanwhile are kept.
    ///
    /// Raises NotConnected, TimedOut, TooManyPeers.
    #[pyo3(signature = (to, timeout = None))]
    fn connect(&self, py: Python<'_>, to: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Peer> {
        let timeout = self::timeout(timeout)?;
        let addresses = address::lookup("to", to)?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        let mut failed = None;
        for to in addresses {
            match connect_to(py, endpoint, to, timeout) {
                Ok(peer) => return Ok(Peer::new(peer, self.number)),
                Err(error) if error.is_instance_of::<error::Error>(py) => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or_else(|| address::has_none("to")))
    }

    /// Begins to connect to an address, to the first one of a name, and returns the `Peer`; an event
    /// 'connected' or 'lost' follows.
    ///
    /// Raises TooManyPeers.
    fn start_connect(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<Peer> {
        let to = address::first("to", to)?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        let peer =
            py.detach(|| endpoint.start_connect(to)).map_err(|error| error::from_message(py, error))?;
        Ok(Peer::new(peer, self.number))
    }

    /// Sends one message: the bytes of a buffer or of an array in one piece. While the peer has no room for
    /// it, this waits, for `timeout` seconds at most. With `flush` false it is queued only, and shares a
    /// packet with what follows.
    ///
    /// A message of 256 B and more is sent from where it lies: the array belongs to the endpoint until the
    /// peer has acknowledged it; it cannot be resized, and must not be changed.
    ///
    /// Raises Full when the time is over, TooLong, Finished, Gone.
    #[pyo3(signature = (data, to, timeout = None, *, flush = true))]
    fn send_to(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: &Bound<'_, Peer>,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<()> {
        let (to, timeout) = (to.get().of(self.number)?, self::timeout(timeout)?);
        let payload = sending::payload("data", data)?;
        let attempt = sending::retried(payload, move |endpoint, payload| endpoint.send_to(payload, to));
        self.send(py, timeout, flush, attempt)
    }

    /// Sends each row of an array as a message, and returns how many rows were queued: all of them, unless
    /// `timeout` seconds are over before the peer has room for the rest. Rows shorter than 256 B are copied
    /// into shared packets; longer ones are sent as by `send_to`.
    ///
    /// Raises TooLong, Finished, Gone.
    #[pyo3(signature = (data, to, timeout = None, *, flush = true))]
    fn send_many(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: &Bound<'_, Peer>,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<usize> {
        let (to, timeout) = (to.get().of(self.number)?, self::timeout(timeout)?);
        let mut outgoing = Outgoing::of_rows("data", data)?;
        match self.send(py, timeout, flush, |endpoint| outgoing.queue(endpoint, to)) {
            Err(error) if !error.is_instance_of::<error::Full>(py) => Err(error),
            _ => Ok(outgoing.sent()),
        }
    }

    /// Sends a request, as `send_to` sends a message, and returns its number: the response, which is received
    /// as any other message, has the same as `call`.
    ///
    /// Raises as `send_to`.
    #[pyo3(signature = (data, to, timeout = None, *, flush = true))]
    fn request(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: &Bound<'_, Peer>,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<u32> {
        let (to, timeout) = (to.get().of(self.number)?, self::timeout(timeout)?);
        let payload = sending::payload("data", data)?;
        let attempt = sending::retried(payload, move |endpoint, payload| endpoint.request(payload, to));
        self.send(py, timeout, flush, attempt)
    }

    /// Sends the response to the request with that `call`, as `send_to` sends a message.
    ///
    /// Raises as `send_to`.
    #[pyo3(signature = (data, to, call, timeout = None, *, flush = true))]
    fn respond(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        to: &Bound<'_, Peer>,
        call: Int<u32>,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<()> {
        let (to, timeout) = (to.get().of(self.number)?, self::timeout(timeout)?);
        let payload = sending::payload("data", data)?;
        let respond = move |endpoint: &mut library::Endpoint, payload| endpoint.respond(payload, to, call.0);
        self.send(py, timeout, flush, sending::retried(payload, respond))
    }

    /// Sends a request and waits for its response, for `timeout` seconds at most. Other messages that come
    /// meanwhile are received afterwards.
    ///
    /// Raises TimedOut, Lost (the connection ended before the response came), TooManyOthers, and as
    /// `send_to`.
    #[pyo3(signature = (request, to, timeout = None))]
    fn call(
        &self,
        py: Python<'_>,
        request: &Bound<'_, PyAny>,
        to: &Bound<'_, Peer>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Message>> {
        let (to, timeout) = (to.get().of(self.number)?, self::timeout(timeout)?);
        let payload = sending::payload("request", request)?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        let attempt = sending::retried(payload, move |endpoint, payload| endpoint.request(payload, to));
        let start = Instant::now();
        let call = with_room(py, endpoint, timeout, attempt)?;
        let response =
            wait(py, time_left(timeout, start), |time| match endpoint.response_timeout(call, to, time) {
                Ok(None) => Ok(None),
                Ok(Some(response)) => Ok(Some(Ok(Taken::new(response)))),
                Err(error) => Ok(Some(Err(error))),
            })?;
        crate::exported::release_unused(py);
        let timed_out = library::Error::TimedOut { timeout: timeout.unwrap_or(Duration::MAX) };
        let response = response.unwrap_or(Err(timed_out)).map_err(|error| error::from_message(py, error))?;
        self.to_python(py, response)
    }

    /// Waits for the next message, for `timeout` seconds at most. None if none came, or if an event ended the
    /// wait: see `poll_event`.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<Message>>> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.half.get(py)?;
        let ended = wait(py, timeout, |time| receiver.receive_within(time, Receiver::try_receive))?;
        match ended {
            Some(Ended::ByMessage(message)) => self.to_python(py, message).map(Some),
            Some(Ended::ByEvent) | None => Ok(None),
        }
    }

    /// The next message if there is one, without waiting.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Py<Message>>> {
        let receiver = &mut *self.half.get(py)?;
        let message = py.detach(|| receiver.try_receive()).map_err(error::from_io)?;
        message.map(|message| self.to_python(py, message)).transpose()
    }

    /// Waits for messages and returns those that have come, copied once, out of the packets that brought
    /// them; 65,536 or some 8 MiB at most. Without a message if none came within `timeout` seconds, or if an
    /// event ended the wait.
    #[pyo3(signature = (timeout = None))]
    fn receive_many(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<Messages>> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.half.get(py)?;
        let ended = wait(py, timeout, |time| receiver.receive_within(time, Receiver::gather))?;
        let (bytes, records) = match ended {
            Some(Ended::ByMessage(gathered)) => gathered,
            Some(Ended::ByEvent) | None => Default::default(),
        };
        self.count_copied(bytes.len());
        Messages::new(py, bytes, records, self.number)
    }

    /// Waits for messages and copies those that have come into rows of an array, from the first row on; an
    /// array of one dimension is one row. Returns what is known about each row that was filled.
    ///
    /// Raises ValueError if the next message is longer than a row; it is kept.
    #[pyo3(signature = (array, timeout = None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<MessageRows> {
        let timeout = self::timeout(timeout)?;
        let rows = rows_of("array", array)?;
        let receiver = &mut *self.half.get(py)?;
        let ended = wait(py, timeout, |time| receiver.receive_within(time, |receiver| receiver.fill(&rows)))?;
        let records = match ended {
            Some(Ended::ByMessage(filled)) => filled.map_err(|bytes| too_long("array", &rows, bytes))?,
            Some(Ended::ByEvent) | None => Default::default(),
        };
        self.count_copied(records.bytes());
        MessageRows::new(py, records, self.number)
    }

    /// Waits until there is a message or an event, for `timeout` seconds at most; returns whether there is
    /// one.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = self::timeout(timeout)?;
        let receiver = &mut *self.half.get(py)?;
        let found = wait(py, timeout, |time| Ok(receiver.wait(time)?.then_some(())))?;
        Ok(found.is_some())
    }

    /// The oldest `Event` that was not returned yet, or None.
    fn poll_event(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        let endpoint = &mut self.half.get(py)?.endpoint;
        let events = std::iter::from_fn(|| endpoint.poll_event());
        Ok(events.filter_map(|event| Event::new(event, self.number)).next())
    }

    /// Ends the direction to a peer, after everything that was sent; the peer gets the event 'finished'.
    ///
    /// Raises Full, Finished, Gone.
    fn finish(&self, py: Python<'_>, peer: &Bound<'_, Peer>) -> PyResult<()> {
        let peer = peer.get().of(self.number)?;
        self.half.get(py)?.endpoint.finish(peer).map_err(|reason| error::from_reason(&reason))
    }

    /// Ends a connection at once: what is in flight or was not received is lost.
    fn abort(&self, py: Python<'_>, peer: &Bound<'_, Peer>) -> PyResult<()> {
        let peer = peer.get().of(self.number)?;
        self.half.get(py)?.endpoint.abort(peer);
        Ok(())
    }

    /// Hands everything queued to the kernel; what the peer has no room for follows later. With a timeout,
    /// returns False if the kernel did not take everything within as many seconds.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = self::timeout(timeout)?;
        flush(py, &mut self.half.get(py)?, timeout)
    }

    /// Sends everything, and waits until the peers have acknowledged it. Returns False if that is not so
    /// after `timeout` seconds.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        let is_drained = wait(py, timeout, |time| Ok(endpoint.drain(time)?.then_some(())))?;
        crate::exported::release_unused(py);
        Ok(is_drained.is_some())
    }

    /// Takes back memory of messages that peers have acknowledged. Returns the number of packets.
    fn reap(&self, py: Python<'_>) -> PyResult<usize> {
        let reaped = self.half.get(py)?.endpoint.reap();
        crate::exported::release_unused(py);
        Ok(reaped)
    }

    /// Packets that the peers have not acknowledged yet.
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.half.get(py)?.endpoint.in_flight())
    }

    /// Finishes all connections, waits for `timeout` seconds at most until the peers have acknowledged
    /// everything, and closes the endpoint. Returns False if something was given up.
    #[pyo3(signature = (timeout = 10.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = self::timeout(Some(timeout))?;
        let Some(mut receiver) = self.half.take()? else { return Ok(true) };
        let endpoint = &mut receiver.endpoint;
        let finished = wait(py, timeout, |time| {
            poll_until(endpoint, time, |endpoint| Ok(endpoint.arm_for_finish()?.then_some(())))
        });
        py.detach(|| drop(receiver));
        crate::exported::release_unused(py);
        Ok(finished?.is_some())
    }

    /// What is known of the connection to a peer: address, round_trip and round_trip_min (seconds),
    /// window_packets, in_flight, queued and unread (packets). None if it is not connected.
    fn peer_stats<'py>(
        &self,
        py: Python<'py>,
        peer: &Bound<'_, Peer>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let peer = peer.get().of(self.number)?;
        let stats = self.half.get(py)?.endpoint.peer_stats(peer);
        stats.map(|stats| peer::stats_dict(py, &stats)).transpose()
    }

    /// Evidence for every byte: how many were not copied, and how many were, by cause. Beside them, how many
    /// were copied once more, into arrays.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = ledger_dict(py, self.half.get(py)?.endpoint.ledger())?;
        dict.set_item("copied into arrays", self.copied_into_arrays.load(Relaxed))?;
        Ok(dict)
    }

    /// All counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_dict(py, &self.half.get(py)?.endpoint.stats())
    }

    /// How datagrams are carried, and what that was compared with, in words.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.half.get(py)?.endpoint.explain().to_string())
    }

    /// A descriptor that becomes readable when the endpoint has something to do; only to wait on, after
    /// `arm`.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.half.get(py)?.endpoint.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `fileno`; True if there is a message or an event already, and no wait is
    /// needed.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        self.half.get(py)?.arm().map_err(error::from_io)
    }

    /// Prepares for a wait on `fileno` until there may be room to send; True if there may be already.
    #[pyo3(name = "_arm_to_send")]
    fn arm_to_send(&self, py: Python<'_>) -> PyResult<bool> {
        let endpoint = &mut self.half.get(py)?.endpoint;
        let has_room = SenderHalf::arm(&mut **endpoint).map_err(error::from_io)?;
        crate::exported::release_unused(py);
        Ok(has_room)
    }

    /// Whether an attempt to connect has succeeded; otherwise prepares for a wait on `fileno`.
    #[pyo3(name = "_arm_for_outcome")]
    fn arm_for_outcome(&self, py: Python<'_>, peer: &Bound<'_, Peer>) -> PyResult<bool> {
        let peer = peer.get().of(self.number)?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        match endpoint.arm_for_outcome(peer).map_err(error::from_io)? {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(reason)) => Err(error::not_connected(&reason)),
        }
    }

    /// The response to a request if it has come; otherwise prepares for a wait on `fileno`.
    #[pyo3(name = "_arm_for_response")]
    fn arm_for_response(
        &self,
        py: Python<'_>,
        call: Int<u32>,
        from: &Bound<'_, Peer>,
    ) -> PyResult<Option<Py<Message>>> {
        let from = from.get().of(self.number)?;
        let endpoint = &mut self.half.get(py)?.endpoint;
        let response =
            endpoint.arm_for_response(call.0, from).map_err(|error| error::from_message(py, error))?;
        response.map(|response| self.to_python(py, Taken::new(response))).transpose()
    }

    /// Whether all connections are finished; otherwise prepares for a wait on `fileno`.
    #[pyo3(name = "_arm_for_finish")]
    fn arm_for_finish(&self, py: Python<'_>) -> PyResult<bool> {
        self.half.get(py)?.endpoint.arm_for_finish().map_err(error::from_io)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, 10.0).map(drop)
    }
}

impl Endpoint {
    fn count_copied(&self, bytes: usize) {
        self.copied_into_arrays.fetch_add(bytes as u64, Relaxed); // a number alone
    }

    fn to_python(&self, py: Python<'_>, message: Taken) -> PyResult<Py<Message>> {
        self.count_copied(message.copied_bytes());
        message.into_python(py, self.number)
    }

    /// Repeats an attempt until there is room, and hands over what is queued.
    fn send<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        flush: bool,
        attempt: impl FnMut(&mut library::Endpoint) -> Result<R, nocopy::Reason> + Send,
    ) -> PyResult<R> {
        let mut receiver = self.half.get(py)?;
        let start = Instant::now();
        let sent = with_room(py, &mut receiver.endpoint, timeout, attempt);
        if flush {
            self::flush(py, &mut receiver, time_left(timeout, start))?;
        }
        crate::exported::release_unused(py);
        sent
    }
}

/// Hands over what is queued; false when the time is over before.
fn flush(py: Python<'_>, receiver: &mut Used<'_, Receiver>, timeout: Option<Duration>) -> PyResult<bool> {
    let endpoint = &mut receiver.endpoint;
    if py.detach(|| endpoint.try_flush()).map_err(error::from_io)? {
        return Ok(true);
    }
    let is_all = wait(py, timeout, |time| Ok(endpoint.flush_timeout(time)?.then_some(())))?;
    Ok(is_all.is_some())
}

/// Connects to one address; the attempt ends with the wait for it.
fn connect_to(
    py: Python<'_>,
    endpoint: &mut library::Endpoint,
    address: SocketAddr,
    timeout: Option<Duration>,
) -> PyResult<library::Peer> {
    let raise = |error| error::from_message(py, error);
    let peer = endpoint.start_connect(address).map_err(raise)?;
    let outcome =
        wait(py, timeout, |time| poll_until(endpoint, time, |endpoint| endpoint.arm_for_outcome(peer)));
    match outcome {
        Ok(Some(Ok(()))) => Ok(peer),
        Ok(Some(Err(reason))) => Err(raise(library::Error::NotConnected { address, reason })),
        Ok(None) => {
            endpoint.abort(peer);
            let timeout = timeout.unwrap_or(Duration::MAX);
            Err(raise(library::Error::ConnectTimedOut { address, timeout }))
        }
        Err(raised) => {
            endpoint.abort(peer);
            Err(raised)
        }
    }
}
