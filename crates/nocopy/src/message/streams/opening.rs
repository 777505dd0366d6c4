//! Streams before they are attached: those that this end, a client, opens, and those that a server has
//! accepted, and that have not named their connection yet.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nocopy_proto::message::wire::{ATTACH_BYTES, ATTACHED_BYTES, Attach, Attached as Answer};
use nocopy_proto::message::{Path, Peer, are_within_shares, network_of};
use rustix::event::epoll::{self, EventFlags};

use super::{OTHERS, Places, Protocol, StreamCounters, add};
use crate::memory::pool::Buffer;
use crate::tcp::{self, ConnectInProgress, Listener, Stream};

/// The most streams that may wait before they name their connection, and the most that are being opened.
/// Addresses and networks share these places.
const UNATTACHED_MAX: usize = 64;
/// How long they may, and how long a stream may take to be opened.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after a stream was refused or cut another one is tried.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The most connections accepted at a time, before other work has its turn.
const ACCEPTS_MAX: u32 = 16;
/// How often to handle streams that are being opened, and how long the listener pauses when a resource is
/// missing.
const LOOK: Duration = Duration::from_millis(100);

/// A stream that is attached to a connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) peer: Peer,
    pub(super) stream: Stream,
}

/// All that are not attached.
#[derive(Debug)]
pub(super) struct Openings {
    listener: Listener,
    /// Since when the listener is not watched, because there was no descriptor or no memory for a connection.
    rests: Option<Instant>,
    builder: tcp::Builder,
    local: SocketAddr,
    /// Accepted streams, with the bytes received so far.
    unattached: Vec<Unattached>,
    /// That this end opens.
    opened: Vec<Opened>,
    /// Peers to which one was tried, or attached, lately, and when.
    tried: Vec<(Peer, Instant)>,
}

#[derive(Debug)]
struct Unattached {
    from: IpAddr,
    stream: Stream,
    words: Words<ATTACH_BYTES>,
    since: Instant,
}

#[derive(Debug)]
struct Opened {
    peer: Peer,
    to: IpAddr,
    attach: Attach,
    step: Step,
    since: Instant,
}

#[derive(Debug)]
enum Step {
    Connecting(Box<ConnectInProgress>),
    /// It has named its connection, and waits for the answer.
    Asked(Box<Stream>, Words<ATTACHED_BYTES>),
    /// The stream was refused, or took too long.
    Over,
}

/// First words, as far as they have come.
#[derive(Debug)]
struct Words<const BYTES: usize> {
    bytes: [u8; BYTES],
    have: usize,
}

impl<const BYTES: usize> Words<BYTES> {
    fn new() -> Self {
        Self { bytes: [0; BYTES], have: 0 }
    }

    /// The first bytes, once they are complete; an error if they never will be.
    fn read(&mut self, stream: &mut Stream) -> Result<Option<&[u8; BYTES]>, ()> {
        match stream.receiver().read_now(&mut self.bytes[self.have..]) {
            Ok(Some(0)) | Err(_) => return Err(()),
            Ok(came) => self.have += came.unwrap_or(0),
        }
        Ok((self.have == BYTES).then_some(&self.bytes))
    }
}

impl Openings {
    pub(super) fn new(listener: Listener, builder: tcp::Builder, local: SocketAddr) -> Self {
        let (unattached, opened, tried) = (Vec::new(), Vec::new(), Vec::new());
        Self { listener, rests: None, builder, local, unattached, opened, tried }
    }

    /// Begins to open a stream to a peer, unless that was tried just before, or too many are being opened.
    pub(super) fn begin(&mut self, peer: Peer, path: &Path, attach: Attach, poll: &OwnedFd) {
        let (since, to) = (Instant::now(), path.remote);
        if self.tried_lately(peer, since) {
            return;
        }
        if !may_wait(self.opened.iter().map(|other| other.to), to.ip()) {
            return;
        }
        self.tried.push((peer, since));
        let from = match path.local {
            Some(asked) => Some(asked.at(0)),
            None => Some(self.local).filter(|own| !own.ip().is_unspecified()),
        };
        let Ok(opening) = self.builder.clone().start_connect(from, to) else { return };
        if add(poll, &opening, OTHERS, EventFlags::OUT).is_ok() {
            let step = Step::Connecting(Box::new(opening));
            self.opened.push(Opened { peer, to: to.ip(), attach, step, since });
        }
    }

    /// Whether a stream to a peer was tried, or attached, just before.
    pub(super) fn tried_lately(&mut self, peer: Peer, at: Instant) -> bool {
        self.tried.retain(|(_, tried)| at.saturating_duration_since(*tried) < AGAIN_AFTER);
        self.tried.iter().any(|(tried, _)| *tried == peer)
    }

    /// The longest wait before [`next`](Self::next) must be called.
    pub(super) fn care_within(&self) -> Duration {
        if self.is_idle() { Duration::MAX } else { LOOK }
    }

    /// Whether nothing is being opened.
    pub(super) fn is_idle(&self) -> bool {
        self.opened.is_empty() && self.unattached.is_empty() && self.rests.is_none()
    }

    /// Returns the next stream that has become attached.
    pub(super) fn next(
        &mut self,
        at: Instant,
        protocol: &mut Protocol,
        places: &Places,
        poll: &OwnedFd,
        counters: &mut StreamCounters,
    ) -> Option<Attached> {
        self.next_that_came(at, protocol, places, counters).or_else(|| self.next_opened(at, poll))
    }

    /// Accepts streams; closes those beyond the limit of waiting ones.
    pub(super) fn accept(&mut self, at: Instant, poll: &OwnedFd, counters: &mut StreamCounters) {
        if let Some(since) = self.rests {
            if at - since < LOOK || add(poll, &self.listener, OTHERS, EventFlags::IN).is_err() {
                return;
            }
            self.rests = None;
        }
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept_tcp() {
                Ok((stream, from)) => {
                    let kept = self.keep(stream, from.ip(), at, poll);
                    counters.streams_refused += u64::from(kept.is_none());
                }
                Err(tcp::OpenError::Accept(error)) if error.kind() == ErrorKind::WouldBlock => return,
                Err(tcp::OpenError::Accept(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                // It would be readable without end.
                Err(_) => {
                    let _ = epoll::delete(poll, &self.listener); // it is watched
                    self.rests = Some(at);
                    return;
                }
            }
        }
    }

    /// Keeps an accepted stream until it names its connection, unless too many wait.
    fn keep(&mut self, stream: TcpStream, from: IpAddr, since: Instant, poll: &OwnedFd) -> Option<()> {
        if !may_wait(self.unattached.iter().map(|other| other.from), from) {
            return None;
        }
        let mut stream = self.listener.wrap_accepted(stream).ok()?;
        add(poll, &stream.receiver().kernel_socket(), OTHERS, EventFlags::IN).ok()?;
        self.unattached.push(Unattached { from, stream, words: Words::new(), since });
        Some(())
    }

    fn next_that_came(
        &mut self,
        at: Instant,
        protocol: &mut Protocol,
        places: &Places,
        counters: &mut StreamCounters,
    ) -> Option<Attached> {
        let mut place = 0;
        while let Some(Unattached { from, stream, words, since }) = self.unattached.get_mut(place) {
            let attached = match words.read(stream) {
                Ok(None) if at - *since < PATIENCE => {
                    place += 1;
                    continue;
                }
                Ok(Some(words)) if places.has_one_for(*from) => {
                    Attach::parse(words).ok().and_then(|attach| protocol.attach(*from, &attach))
                }
                Ok(_) | Err(()) => None,
            };
            let mut stream = self.unattached.swap_remove(place).stream;
            if let Some((peer, answer)) = attached
                && say(&mut stream, |words| answer.emit(words))
            {
                return Some(Attached { peer, stream });
            }
            counters.streams_refused += 1;
        }
        None
    }

    fn next_opened(&mut self, at: Instant, poll: &OwnedFd) -> Option<Attached> {
        let mut place = 0;
        while let Some(opened) = self.opened.get_mut(place) {
            let is_late = at - opened.since >= PATIENCE;
            opened.go_on(poll);
            let is_over = is_late || matches!(opened.step, Step::Over);
            let is_answered = matches!(&opened.step, Step::Asked(_, words) if words.have == ATTACHED_BYTES);
            if !is_over && !is_answered {
                place += 1;
                continue;
            }
            let Opened { peer, step, .. } = self.opened.swap_remove(place);
            if let Step::Asked(stream, _) = step
                && is_answered
            {
                self.tried.push((peer, at));
                return Some(Attached { peer, stream: *stream });
            }
        }
        None
    }
}

impl Opened {
    /// Does what can be done.
    fn go_on(&mut self, poll: &OwnedFd) {
        let attach = self.attach;
        self.step = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Connecting(opening) => match opening.finish_connect() {
                Ok(Err(opening)) => Step::Connecting(opening),
                Ok(Ok(mut stream)) => {
                    let data = epoll::EventData::new_u64(OTHERS);
                    let socket = stream.receiver().kernel_socket();
                    let is_watched = epoll::modify(poll, socket, data, EventFlags::IN).is_ok();
                    match is_watched && say(&mut stream, |words| attach.emit(words)) {
                        true => Step::Asked(Box::new(stream), Words::new()),
                        false => Step::Over,
                    }
                }
                Err(_) => Step::Over,
            },
            Step::Asked(mut stream, mut words) => match words.read(&mut stream) {
                Ok(None) => Step::Asked(stream, words),
                Ok(Some(answer)) if Answer::parse(answer).is_ok_and(|answer| answer.to == attach.from) => {
                    Step::Asked(stream, words)
                }
                Ok(Some(_)) | Err(()) => Step::Over,
            },
            Step::Over => Step::Over,
        };
    }
}

/// Whether one more stream from or to an address may wait beside those of these addresses.
fn may_wait(beside: impl Iterator<Item = IpAddr> + Clone, ip: IpAddr) -> bool {
    let network = network_of(ip);
    let free = UNATTACHED_MAX - beside.clone().count();
    let of_address = beside.clone().filter(|other| *other == ip).count();
    are_within_shares(of_address, beside.filter(|other| network_of(*other) == network).count(), free)
}

/// Sends the first bytes of a stream; returns whether they were accepted.
fn say(stream: &mut Stream, write: impl FnOnce(&mut Vec<u8>)) -> bool {
    let mut words = Vec::new();
    write(&mut words);
    let sender = stream.sender();
    sender.send(Buffer::from(words)).is_ok() && sender.try_flush().is_ok_and(|is_all| is_all)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use nocopy_proto::message::{Settings, Time};

    use super::*;
    use crate::memory::pool::Pool;

    /// Peers that answer no connection take a bounded number of descriptors, and leave some to others.
    #[test]
    fn streams_that_are_being_opened_leave_places_to_others() {
        let few = Pool::new(1, 4096).unwrap();
        let builder = Stream::builder().send_pool(&few).receive_pool(&few);
        let bind = |ip: [u8; 4]| builder.clone().listen(SocketAddr::from((ip, 0))).unwrap();
        let silent = [[127, 0, 0, 1], [127, 0, 0, 2]]
            .map(|ip| std::net::TcpListener::bind((IpAddr::from(ip), 0)).unwrap());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut openings = Openings::new(bind([127, 0, 0, 1]), builder.clone(), ([0; 4], 0).into());
        let mut protocol = Protocol::new(Settings::default(), [1; 32]);
        let opened = silent.map(|silent| {
            let to = silent.local_addr().unwrap();
            let before = openings.opened.len();
            for port in 1..=100 {
                let peer = protocol.connect(Time::default(), SocketAddr::new(to.ip(), port)).unwrap();
                openings.begin(peer, &to.into(), Attach { to: 1, from: 2, key: NonZeroU64::MIN }, &poll);
            }
            openings.opened.len() - before
        });
        assert_eq!(opened, [32, 16]);
    }
}
