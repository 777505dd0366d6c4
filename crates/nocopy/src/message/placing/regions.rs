//! Memory that peers may write to (docs/protocol.md §17.2), as the program registers it and takes it back.

use std::sync::{Mutex, PoisonError};

use nocopy_proto::message::{Peer, PutHeader, PutRefusal, Region, Regions};

use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pool::BufferMut;
use crate::message::NonblockingEndpoint;

/// The regions of an endpoint, into which its streams read. Locked while a piece is copied or read.
#[derive(Debug, Default)]
pub(in crate::message) struct Registered(Mutex<Regions<BufferMut>>);

impl Registered {
    pub(in crate::message) fn with<T>(&self, change: impl FnOnce(&mut Regions<BufferMut>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `write` with the memory for a put of `bytes` bytes, and the region.
    /// Errors: there is no such region for this peer, or the bytes do not lie within it.
    pub(in crate::message) fn write<T>(
        &self,
        from: Peer,
        put: &PutHeader,
        bytes: usize,
        write: impl FnOnce(Region, &mut [u8]) -> T,
    ) -> Result<T, PutRefusal> {
        self.with(|regions| {
            let (region, buffer, range) = regions.place(from, put, bytes)?;
            Ok(write(region, &mut buffer[range]))
        })
    }
}

/// Returns the buffer as an error if nothing can be received into it.
pub(super) fn check_capacity(buffer: BufferMut) -> Result<BufferMut, Rejected<BufferMut>> {
    match buffer.capacity() {
        0 => Err(Rejected { item: buffer, reason: Reason::Empty }),
        _ => Ok(buffer),
    }
}

impl NonblockingEndpoint {
    /// Registers a buffer into which one peer, `writer`, may [put](Self::put) bytes. The region is as long as
    /// the buffer, or as its capacity if it is empty. Returns the region's name, which the peer needs, for
    /// example in a message: `<[u8; 16]>::from(region)` gives its 16 bytes, and `Region::from(bytes)` reads
    /// them. [`Event::Placed`](crate::message::Event::Placed) reports each executed put. Other bytes of the
    /// buffer keep their values.
    ///
    /// ```
    /// # use nocopy::{Buffer, Pool, message::{Endpoint, Event, Region}};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let to_right = left.start_connect(right.local_addr())?;
    /// # let to_left = loop {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// #     if let Some(Event::Accepted(peer, _)) = right.poll_event() { break peer }
    /// # };
    /// # while left.poll_event().is_some() {}
    /// let buffer = Pool::new(1, 64 << 10)?.take().ok_or("all buffers are in use")?;
    /// let region = right.register(buffer, to_left)?;
    /// right.send_copy_to(&<[u8; 16]>::from(region), to_left)?; // tells the peer
    /// right.flush()?;
    /// let told = loop {
    ///     if let Some(message) = left.receive()? {
    ///         break Region::from(<[u8; 16]>::try_from(&message.to_vec()[..])?);
    ///     }
    /// };
    /// let mut bytes = vec![7; 50_000];
    /// let put = loop {
    ///     match left.put(bytes, to_right, told, 100) {
    ///         Ok(number) => break number,
    ///         Err(rejected) => bytes = rejected.item.into_iter().next().ok_or("empty")?.to_vec(), // not connected for puts yet
    ///     }
    ///     # right.wait(Duration::from_millis(1))?;
    ///     left.wait(Duration::from_millis(1))?;
    ///     while left.poll_event().is_some() {}
    /// };
    /// loop {
    ///     # right.wait(Duration::from_millis(1))?;
    ///     left.wait(Duration::from_millis(1))?;
    ///     match left.poll_event() {
    ///         Some(Event::PutDone(peer, number)) => break assert_eq!((peer, number), (to_right, put)),
    ///         Some(Event::PutRefused(_, _, refusal)) => return Err(refusal.into()),
    ///         _ => {}
    ///     }
    /// }
    /// assert_eq!(right.poll_event(), Some(Event::Placed { from: to_left, region, offset: 100, bytes: 50_000 }));
    /// assert_eq!(right.read_region(region, |bytes| bytes[100]), Some(7));
    /// let buffer = right.withdraw(region).ok_or("it was withdrawn")?; // nothing is written there any more
    /// assert_eq!(buffer.len(), 64 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the buffer if it has no room, or with `Gone`.
    pub fn register(&mut self, buffer: BufferMut, writer: Peer) -> Result<Region, Rejected<BufferMut>> {
        let mut buffer = check_capacity(buffer)?;
        if !self.protocol.has_peer(writer) {
            return Err(Rejected { item: buffer, reason: Reason::Gone });
        }
        if buffer.is_empty() {
            buffer.resize(buffer.capacity());
        }
        self.protocol.take_puts_of(writer);
        let registered = self.puts.registered.get_or_insert_default();
        if let Some(streams) = &mut self.streams {
            streams.put_to(registered);
        }
        let bytes = buffer.len() as u64;
        Ok(registered.with(|regions| regions.register(writer, buffer, bytes)))
    }

    /// Takes a registered buffer back. Nothing is written to it any more, and puts are refused. `None` if it
    /// was withdrawn before.
    pub fn withdraw(&mut self, region: Region) -> Option<BufferMut> {
        self.puts.registered.as_ref()?.with(|regions| regions.withdraw(region))
    }

    /// Gives the bytes of a registered buffer to `read`. `None` if it was withdrawn.
    pub fn read_region<T>(&self, region: Region, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.puts.registered.as_ref()?.with(|regions| regions.memory(region).map(|buffer| read(buffer)))
    }
}
