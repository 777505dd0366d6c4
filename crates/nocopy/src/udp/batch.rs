//! Received datagrams, borrowed in a batch or taken.

use std::net::SocketAddr;
use std::ops::Deref;
use std::slice::IterMut;

use nocopy_proto::wire::Ecn;

use super::message::Message;
use super::metadata::Metadata;
use super::over_port;
use super::run::{DatagramInfo, Run};
use crate::facts::metadata::{Clock, Timestamp};
use crate::memory::pool::Buffer;
use crate::sys::udp_receive::LocalAddress;

/// Received datagrams: an iterator over [`Datagram`]s.
///
/// The next call reuses their memory, unless they are [taken](Datagram::take). Datagrams not iterated over
/// stay for the next batch.
///
/// ```
/// use nocopy::udp::{OwnedDatagram, Socket};
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # for text in ["one", "two", "three"] {
/// #     client.send_to(text.as_bytes(), socket.local_addr()?)?;
/// # }
/// let mut kept: Vec<OwnedDatagram> = Vec::new();
/// while kept.len() < 3 {
///     kept.extend(socket.receiver().receive()?.map(|datagram| datagram.take())); // not copied
/// }
/// assert_eq!((&kept[0][..], &kept[2][..]), (&b"one"[..], &b"three"[..]));
/// assert_eq!(kept[0].source(), client.local_addr()?);
/// socket.receiver().recycle(kept.remove(0)); // when it is not needed any more; dropping it does the same
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Batch<'half>(BatchSource<'half>);

#[derive(Debug)]
enum BatchSource<'half> {
    Kernel(RunDatagrams<'half>),
    Port(over_port::Batch<'half>),
}

#[derive(Debug)]
struct RunDatagrams<'half> {
    /// Runs (coalesced datagrams) of which none was returned yet.
    runs: IterMut<'half, Run>,
    count: usize,
    /// The current run, and its remaining bytes (empty without a run).
    begun: Option<&'half Run>,
    left: &'half [u8],
    given: &'half mut BatchCursor,
}

/// How much of the last call's datagrams was returned; the rest is in the next batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchCursor {
    pub(super) runs: usize,
    /// Datagrams of the following run.
    pub(super) datagrams: usize,
}

impl BatchCursor {
    pub(super) const NOTHING: Self = Self { runs: 0, datagrams: 0 };
    pub(super) const ALL: Self = Self { runs: usize::MAX, datagrams: 0 };
}

#[cfg(feature = "futures")]
impl BatchCursor {
    /// Takes the next datagram, for streams: a batch that is made for one datagram costs more than taking it.
    #[inline]
    pub(super) fn take_next(&mut self, runs: &mut [Run]) -> Option<OwnedDatagram> {
        let run = runs.get_mut(self.runs)?;
        if run.is_single() {
            *self = Self { runs: self.runs + 1, datagrams: 0 };
            return Some(OwnedDatagram::of_single(run));
        }
        if self.datagrams == 0 {
            run.make_shared();
        }
        // In range: if all of its datagrams had been given, the run would count as given.
        let left = &run.bytes()[self.datagrams * run.segment_bytes()..];
        let (bytes, others) = left.split_at(left.len().min(run.segment_bytes()));
        *self = match others {
            [] => Self { runs: self.runs + 1, datagrams: 0 },
            _ => Self { datagrams: self.datagrams + 1, ..*self },
        };
        Some(OwnedDatagram::of_several(run, bytes))
    }
}

impl<'half> Batch<'half> {
    #[inline]
    pub(super) fn from_runs(runs: &'half mut [Run], given: &'half mut BatchCursor) -> Self {
        let (count, mut runs) = (runs.len(), runs.iter_mut());
        let (mut begun, mut left) = (None, &[][..]);
        if given.datagrams > 0
            && let Some(run) = runs.next()
        {
            let run: &'half Run = run;
            // In range: if all of its datagrams had been given, the run would count as given.
            left = &run.bytes()[given.datagrams * run.segment_bytes()..];
            begun = Some(run);
        }
        // A batch that is forgotten (`mem::forget`) does not come again: buffers of it may have been taken.
        *given = BatchCursor::ALL;
        Self(BatchSource::Kernel(RunDatagrams { runs, count, begun, left, given }))
    }

    #[inline]
    pub(super) fn from_port(batch: over_port::Batch<'half>) -> Self {
        Self(BatchSource::Port(batch))
    }

    /// Takes the next datagrams that arrived together from one sender, without a copy.
    pub fn next_burst(&mut self) -> Option<Burst> {
        match &mut self.0 {
            BatchSource::Kernel(runs) => runs.next_burst(),
            BatchSource::Port(batch) => {
                let datagram = Datagram(DatagramBody::Port(batch.next()?));
                let is_truncated = datagram.is_truncated();
                Some(Burst::new(datagram.take(), is_truncated))
            }
        }
    }

    /// The runs of datagrams that the kernel coalesced, except runs of which a datagram was returned already.
    /// A port coalesces none.
    #[doc(hidden)]
    pub fn into_runs(self) -> &'half [Run] {
        match self.0 {
            BatchSource::Kernel(mut source) => {
                source.left = &[];
                std::mem::take(&mut source.runs).into_slice()
            }
            BatchSource::Port(_) => &[],
        }
    }
}

impl<'half> Iterator for Batch<'half> {
    type Item = Datagram<'half>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'half>> {
        match &mut self.0 {
            BatchSource::Kernel(runs) => runs.next(),
            BatchSource::Port(batch) => batch.next().map(|datagram| Datagram(DatagramBody::Port(datagram))),
        }
    }
}

impl<'half> RunDatagrams<'half> {
    #[inline]
    fn next(&mut self) -> Option<Datagram<'half>> {
        if self.left.is_empty() {
            let run = self.runs.next()?;
            if run.is_single() {
                return Some(Datagram(DatagramBody::Alone(run)));
            }
            run.make_shared();
            let run: &'half Run = run;
            (self.begun, self.left) = (Some(run), run.bytes());
        }
        let run = self.begun?;
        let (bytes, others) = self.left.split_at(self.left.len().min(run.segment_bytes()));
        self.left = others;
        Some(Datagram(DatagramBody::OfRun(run, bytes)))
    }

    /// What is left of the current run, or the next one.
    fn next_burst(&mut self) -> Option<Burst> {
        if let Some(run) = self.begun.filter(|_| !self.left.is_empty()) {
            let left = std::mem::take(&mut self.left);
            return Some(Burst::new(OwnedDatagram::of_several(run, left), run.info_of_all().truncated));
        }
        let run = self.runs.next()?;
        let is_truncated = run.info_of_all().truncated;
        Some(Burst::new(OwnedDatagram::of_all(run), is_truncated))
    }
}

impl Drop for RunDatagrams<'_> {
    /// Datagrams not returned are in the next batch.
    #[inline]
    fn drop(&mut self) {
        let runs = self.count - self.runs.len();
        *self.given = match self.begun.filter(|_| !self.left.is_empty()) {
            None => BatchCursor { runs, datagrams: 0 },
            Some(run) => {
                // A multiple of the segments' length: something is left, so all datagrams given were whole
                // ones.
                let given_bytes = run.bytes().len() - self.left.len();
                // No underflow: the begun run was taken from the iterator.
                BatchCursor { runs: runs - 1, datagrams: given_bytes / run.segment_bytes() }
            }
        };
    }
}

/// A received datagram, in place. It derefs to its payload.
#[derive(Debug)]
pub struct Datagram<'half>(DatagramBody<'half>);

#[derive(Debug)]
enum DatagramBody<'half> {
    /// A run of one datagram, with its own buffer.
    Alone(&'half mut Run),
    OfRun(&'half Run, &'half [u8]),
    Port(over_port::Datagram<'half>),
}

impl Datagram<'_> {
    #[inline]
    fn info(&self) -> DatagramInfo {
        match &self.0 {
            DatagramBody::Alone(run) => run.info(run.bytes().len()),
            DatagramBody::OfRun(run, bytes) => run.info(run.range_of(bytes).end),
            DatagramBody::Port(datagram) => datagram.info(),
        }
    }

    /// The address that sent it.
    #[inline]
    pub fn source(&self) -> SocketAddr {
        match &self.0 {
            DatagramBody::Alone(run) => run.source(),
            DatagramBody::OfRun(run, _) => run.source(),
            DatagramBody::Port(datagram) => datagram.source(),
        }
    }

    /// What else is known about it. A kernel socket reports it on
    /// [request](super::Builder::receive_metadata); a port knows what is in the headers.
    #[inline]
    pub fn metadata(&self) -> Metadata {
        match &self.0 {
            DatagramBody::Alone(run) => Metadata { segment_bytes: run.bytes().len(), ..run.metadata() },
            DatagramBody::OfRun(run, _) => run.metadata(),
            DatagramBody::Port(datagram) => datagram.metadata(),
        }
    }

    /// Whether the end of the datagram was cut off, because the buffer was too small.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.info().truncated
    }

    /// Takes ownership without a copy: of its frame or buffer, which it may share with other datagrams.
    #[inline]
    pub fn take(self) -> OwnedDatagram {
        match self.0 {
            DatagramBody::Alone(run) => OwnedDatagram::of_single(run),
            DatagramBody::OfRun(run, bytes) => OwnedDatagram::of_several(run, bytes),
            DatagramBody::Port(datagram) => {
                let (info, time) = (datagram.info(), datagram.time());
                let bytes: Buffer = datagram.take().into();
                OwnedDatagram::new(&info, time, bytes.len(), bytes)
            }
        }
    }
}

impl Deref for Datagram<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            DatagramBody::Alone(run) => run.bytes(),
            DatagramBody::OfRun(_, bytes) => bytes,
            DatagramBody::Port(datagram) => datagram,
        }
    }
}

impl AsRef<[u8]> for Datagram<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// An owned datagram with its memory. It derefs to its payload. To forward it, give it to
/// [`Sender::send_to`](super::NonblockingSender::send_to), or convert it into a [`Buffer`].
#[derive(Debug)]
pub struct OwnedDatagram {
    from: SocketAddr,
    // Its `Metadata`, which itself needs more room.
    local: Option<LocalAddress>,
    /// When it arrived by `clock`, if that is known.
    time_ns: u64,
    clock: Option<Clock>,
    ecn: Option<Ecn>,
    segment_bytes: u32,
    bytes: Buffer,
}

/// A stream moves each datagram several times, and the compiler moves no more bytes than this without a call.
const _: () = assert!(size_of::<OwnedDatagram>() <= 128);

impl OwnedDatagram {
    #[inline]
    fn new(info: &DatagramInfo, time: Option<Timestamp>, segment_bytes: usize, bytes: Buffer) -> Self {
        Self {
            from: info.from,
            local: info.local,
            time_ns: time.map_or(0, |time| time.ns),
            clock: time.map(|time| time.clock),
            ecn: info.ecn,
            // Fits: the kernel's lengths of packets have 32 bits.
            segment_bytes: segment_bytes as u32,
            bytes,
        }
    }

    /// With the buffer of a run of one datagram.
    #[inline]
    fn of_single(run: &mut Run) -> Self {
        let bytes = run.take_buffer().expect("it is here").freeze();
        Self::new(run.info_of_all(), run.time(), bytes.len(), bytes)
    }

    /// With the buffer of a run of which nothing was taken.
    fn of_all(run: &mut Run) -> Self {
        let bytes = run.take_buffer().expect("it is here").freeze();
        Self::new(run.info_of_all(), run.time(), run.segment_bytes().min(bytes.len()), bytes)
    }

    /// Shares the buffer of a run of several.
    #[inline]
    fn of_several(run: &Run, bytes: &[u8]) -> Self {
        let bytes = Buffer::from_shared(run.shared_buffer(), |all| &all[run.range_of(bytes)]);
        Self::new(run.info_of_all(), run.time(), run.segment_bytes(), bytes)
    }

    /// The address that sent it.
    pub fn source(&self) -> SocketAddr {
        self.from
    }

    /// What else is known about it; see [`Datagram::metadata`].
    pub fn metadata(&self) -> Metadata {
        let Self { from, local, ecn, .. } = *self;
        let time = self.clock.map(|clock| Timestamp { ns: self.time_ns, clock });
        DatagramInfo { from, local, truncated: false, ecn }.metadata(self.segment_bytes as usize, time)
    }
}

impl Deref for OwnedDatagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for OwnedDatagram {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Without a copy. A datagram that shares its buffer with others becomes read-only memory, which can be sent.
impl From<OwnedDatagram> for Buffer {
    #[inline]
    fn from(datagram: OwnedDatagram) -> Self {
        datagram.bytes
    }
}

impl From<OwnedDatagram> for Message {
    #[inline]
    fn from(datagram: OwnedDatagram) -> Self {
        datagram.bytes.into()
    }
}

/// Datagrams of one sender that arrived together, in one buffer: all of one length, except that the last may
/// be shorter. It derefs to the bytes of all.
///
/// A kernel socket coalesces datagrams (`UDP_GRO`) if its buffers have 64 KiB; otherwise, and over a port, a
/// burst is one datagram.
///
/// ```
/// use nocopy::udp::{Message, Socket};
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// let mut peer = Socket::bind("127.0.0.1:0")?;
/// peer.sender().send_to(Message::segments(vec![7; 2500], 1000), socket.local_addr()?)?;
/// peer.sender().flush()?;
/// let mut lengths = Vec::new();
/// while lengths.len() < 3 {
///     let mut batch = socket.receiver().receive()?;
///     while let Some(burst) = batch.next_burst() {
///         lengths.extend(burst.datagrams().map(<[u8]>::len)); // no byte moves
///     }
/// }
/// assert_eq!(lengths, [1000, 1000, 500]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Burst {
    datagrams: OwnedDatagram,
    is_truncated: bool,
}

impl Burst {
    fn new(datagrams: OwnedDatagram, is_truncated: bool) -> Self {
        Self { datagrams, is_truncated }
    }

    /// The address that sent them.
    pub fn source(&self) -> SocketAddr {
        self.datagrams.source()
    }

    /// What else is known about them; see [`Datagram::metadata`](super::Datagram::metadata).
    pub fn metadata(&self) -> Metadata {
        self.datagrams.metadata()
    }

    /// Whether the end of the only datagram was cut off, because the buffer was too small.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The payload of each datagram.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let each = self.metadata().segment_bytes.max(1);
        (0..self.len().div_ceil(each).max(1)).map(move |index| {
            let start = index * each;
            &self[start..self.len().min(start + each)]
        })
    }
}

impl Deref for Burst {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.datagrams
    }
}

/// Without a copy.
impl From<Burst> for Buffer {
    fn from(burst: Burst) -> Self {
        burst.datagrams.into()
    }
}

/// Without a copy, to forward the datagrams in their lengths.
impl From<Burst> for Message {
    fn from(burst: Burst) -> Self {
        let each = burst.metadata().segment_bytes.max(1);
        Self::segments(Buffer::from(burst), each)
    }
}
