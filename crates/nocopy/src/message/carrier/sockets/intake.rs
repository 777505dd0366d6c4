//! Keeps received datagrams until they are read: runs stay where the kernel wrote them, single ones move to
//! small buffers. One message that the program waits for is read before the next call, and not kept.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nocopy_proto::message::Local;

use crate::memory::pool::{Buffer, BufferMut, Pool};
use crate::message::carrier::{Deliver, Received};
use crate::sys::udp_receive::LocalAddress;
use crate::udp::kernel::RunInPlace;
use crate::udp::run::Run;

/// Runs of at least this many datagrams, or bytes, stay in the buffer they were received into, which is full
/// enough.
const RUN_KEPT_FROM: usize = 8;
const RUN_KEPT_FROM_BYTES: usize = 16 << 10;

/// Small buffers for datagrams that are not kept, mostly acknowledgements.
pub(in crate::message) const PASSING: usize = 64;

/// Kept runs, each shared by its datagrams; reused.
#[derive(Debug, Default)]
struct Held {
    run: Option<Run>,
}

/// A datagram of a run.
#[derive(Debug)]
pub(in crate::message) struct Shared {
    held: Arc<Held>,
    at: u32,
    bytes: u32,
}

impl AsRef<[u8]> for Shared {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        let run = self.held.run.as_ref().expect("held as long as somebody has a part of it");
        &run.bytes()[self.at as usize..][..self.bytes as usize]
    }
}

/// The datagrams of a run, which share its buffer.
#[derive(Debug)]
pub(in crate::message) struct Parts {
    held: Arc<Held>,
    at: u32,
    step: u32,
    end: u32,
}

impl Iterator for Parts {
    type Item = Received;

    #[inline]
    fn next(&mut self) -> Option<Received> {
        let bytes = self.step.min(self.end - self.at);
        if bytes == 0 {
            return None;
        }
        let part = Shared { held: Arc::clone(&self.held), at: self.at, bytes };
        self.at += bytes;
        Some(Received::Shared(part))
    }
}

/// Memory for received datagrams that were not read.
#[derive(Debug)]
pub(in crate::message) struct Intake {
    /// Small buffers, each for one datagram.
    small: Pool,
    /// Small buffers that are cached here: taking one needs no lock.
    here: Vec<Buffer>,
    /// How many buffers must stay in the pool of run buffers, for the next runs.
    large_reserve: usize,
    spare: Vec<Arc<Held>>,
    /// Datagrams that were dropped because no small buffer was free.
    pub(super) no_memory: u64,
    /// Datagrams that were copied into small buffers, and their bytes.
    pub(super) copied: (u64, u64),
}

impl Intake {
    pub(super) fn new(small: Pool, large_reserve: usize) -> Self {
        let here = std::iter::from_fn(|| small.take()).map(BufferMut::freeze).collect();
        Self { small, here, large_reserve, spare: Vec::new(), no_memory: 0, copied: (0, 0) }
    }

    /// How many more datagrams may be kept, or somewhat fewer. While that is nearly all, the exact number,
    /// which needs a lock, does not matter.
    #[inline]
    pub(super) fn free(&self) -> usize {
        let here = self.here.len();
        let all = if here > self.small.total() / 4 * 3 { here } else { here + self.small.available() };
        all.saturating_sub(PASSING)
    }

    /// Delivers all datagrams of a run, each with its sender and congestion mark.
    pub(super) fn take(&mut self, run: &mut RunInPlace<'_>, deliver: &mut impl Deliver) {
        let message = run.message();
        let (from, congested) = (message.from, message.is_congested());
        if let Some(local) = message.local {
            deliver.asked(own(local, from.is_ipv6()));
        }
        let Some(segment_bytes) = message.segment_bytes else {
            return match run.is_last() {
                true => self.last(from, congested, run.bytes(), deliver),
                false => self.copy(from, congested, run.bytes(), deliver),
            };
        };
        // One that would be cut is none of these, and one that would be copied if it is taken is short.
        let may_be_read = run.is_last()
            && segment_bytes.get() <= self.small.buffer_bytes()
            && message.bytes < RUN_KEPT_FROM_BYTES;
        if may_be_read && deliver.lone_run(from, congested, run.bytes(), segment_bytes.get()) {
            return;
        }
        // Those that arrive meanwhile need buffers, too.
        if is_kept(message.datagrams(), message.bytes)
            && let Some(run) = run.keep(self.large_reserve)
        {
            return self.keep(run, deliver);
        }
        for bytes in run.bytes().chunks(segment_bytes.get()) {
            self.copy(from, congested, bytes, deliver);
        }
    }

    fn keep(&mut self, run: Run, deliver: &mut impl Deliver) {
        let (from, congested) = (run.source(), run.is_congested());
        let (step, all) = (run.segment_bytes(), run.bytes().len());
        let mut held = self.spare.pop().unwrap_or_default();
        Arc::get_mut(&mut held).expect("nobody has a part of a spare one").run = Some(run);
        deliver.run(from, congested, Parts { held, at: 0, step: step as u32, end: all as u32 });
    }

    /// Delivers the last datagram of a call: in place if it is the next message to be read.
    #[inline]
    pub(super) fn last(
        &mut self,
        from: SocketAddr,
        congested: bool,
        bytes: &[u8],
        deliver: &mut impl Deliver,
    ) {
        // One that would be cut is no such message.
        if bytes.len() > self.small.buffer_bytes() || !deliver.lone(from, congested, bytes) {
            self.copy(from, congested, bytes, deliver);
        }
    }

    /// Delivers a datagram; if it is kept, in a small buffer of its own.
    #[inline]
    pub(super) fn copy(
        &mut self,
        from: SocketAddr,
        congested: bool,
        bytes: &[u8],
        deliver: &mut impl Deliver,
    ) {
        // What does not fit is longer than anything that was agreed on. It is cut before it is judged: what
        // is judged is what is kept.
        let bytes = &bytes[..bytes.len().min(self.small.buffer_bytes())];
        if !deliver.in_place(from, congested, bytes, || self.copied(bytes))
            && let Some(datagram) = self.copied(bytes)
        {
            deliver.one(from, congested, datagram);
        }
    }

    /// Copies a datagram into a small buffer, if one is free.
    #[inline]
    pub(in crate::message) fn copied(&mut self, bytes: &[u8]) -> Option<Received> {
        let Some(mut buffer) = self.here.pop().or_else(|| self.small.take().map(BufferMut::freeze)) else {
            self.no_memory += 1;
            return None;
        };
        buffer.writable().expect("memory of a pool").fill(bytes).expect("cut by the callers");
        self.copied.0 += 1;
        self.copied.1 += buffer.len() as u64;
        Some(Received::Buffer(buffer))
    }

    /// Returns a small buffer.
    #[inline]
    pub(super) fn put_buffer(&mut self, buffer: Buffer) {
        self.here.push(buffer);
    }

    /// Returns a part of a run.
    #[inline]
    pub(super) fn put_shared(&mut self, mut part: Shared) {
        if Arc::strong_count(&part.held) == 1
            && let Some(held) = Arc::get_mut(&mut part.held)
        {
            held.run = None; // its buffer goes home
            self.spare.push(part.held);
        }
    }
}

/// The address of this host from which a datagram to that address is answered, by a socket of IPv6 or IPv4;
/// `None`: any.
fn own(asked: LocalAddress, is_ipv6: bool) -> Option<Local> {
    let address = asked.answer_source()?;
    let is_of_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let interface = if is_of_link { asked.interface } else { 0 };
    let own = match address {
        IpAddr::V4(address) if is_ipv6 => address.to_ipv6_mapped().into(),
        address => address,
    };
    Some(Local { address: own, interface })
}

/// Whether a run of this size stays in the buffer that it was received into.
fn is_kept(datagrams: usize, bytes: usize) -> bool {
    datagrams >= RUN_KEPT_FROM || datagrams > 1 && bytes >= RUN_KEPT_FROM_BYTES
}

/// The pools for received datagrams.
pub(super) fn pools(
    small: u32,
    small_bytes: usize,
    large: u32,
    large_bytes: usize,
) -> io::Result<(Pool, Pool)> {
    Ok((Pool::with_shared_pages(small, small_bytes)?, Pool::new(large, large_bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps every datagram, and notes what it was when it was judged.
    #[derive(Default)]
    struct Keeper {
        is_common: bool,
        judged: Vec<u8>,
        kept: Vec<u8>,
    }

    impl Deliver for Keeper {
        fn asked(&mut self, _: Option<Local>) {}

        fn lone(&mut self, _: SocketAddr, _: bool, _: &[u8]) -> bool {
            false
        }

        fn lone_run(&mut self, _: SocketAddr, _: bool, _: &[u8], _: usize) -> bool {
            false
        }

        fn in_place(
            &mut self,
            _: SocketAddr,
            _: bool,
            datagram: &[u8],
            keep: impl FnOnce() -> Option<Received>,
        ) -> bool {
            self.judged = datagram.to_vec();
            if self.is_common {
                self.kept = keep().expect("there is memory").as_ref().to_vec();
            }
            self.is_common
        }

        fn one(&mut self, _: SocketAddr, _: bool, datagram: Received) {
            self.kept = datagram.as_ref().to_vec();
        }

        fn run(&mut self, _: SocketAddr, _: bool, _: Parts) {
            panic!("it came alone");
        }
    }

    /// A packet is not accepted for messages that are cut off when it is kept.
    #[test]
    fn a_datagram_is_judged_by_the_bytes_that_are_kept() {
        let from = ([127, 0, 0, 1], 7).into();
        let (small, _) = pools(1, 2048, 1, 4096).unwrap();
        let most = small.buffer_bytes();
        for (is_common, bytes, kept) in [(true, 100, 100), (true, most + 1, most), (false, most + 1, most)] {
            let mut keeper = Keeper { is_common, ..Keeper::default() };
            Intake::new(small.clone(), 1).copy(from, false, &vec![7; bytes], &mut keeper);
            assert_eq!((keeper.judged.len(), keeper.kept.len()), (kept, kept), "of {bytes} bytes");
        }
    }
}
