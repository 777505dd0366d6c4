//! How connections are set up (docs/protocol.md §3): the client keeps state, the server keeps nothing until
//! the client has proved that it receives at its address.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use super::Endpoint;
use crate::message::answers::Answered;
use crate::message::connection::{Agreed, Connection};
use crate::message::wire::{
    Abort, AbortReason, Accept, COOKIE_BYTES, Connect, Cookie, Hello, Parameters, Placement, Refused,
    VERSION, Versions,
};
use crate::message::{Event, LostReason, MESSAGE_BYTES_MAX, Path, Settings, Time};

/// The first wait for an answer; each further one is twice as long.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// This many Connects have the length of the longest datagram; if none gets through, the path may not allow
/// it.
const LONG_TRIES: u32 = 3;
/// A datagram length that nearly every path allows (as QUIC, RFC 9000 section 14).
const SHORT_DATAGRAM_BYTES: u16 = 1200;

/// A connection that this end is setting up.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) path: Path,
    id: u64,
    first_sequence: u32,
    stream_key: Option<NonZeroU64>,
    pub(super) placement: Placement,
    settings: Settings,
    cookie: Option<[u8; COOKIE_BYTES]>,
    /// Datagrams sent since the last progress.
    tries: u32,
    /// The length of the last Connect. Longer datagrams are not agreed to, since they may be known not to get
    /// through.
    stated_bytes: u16,
    due: Time,
    give_up: Time,
}

impl Connecting {
    /// `stream_key`: the key with which a stream for it must begin, if streams are allowed.
    pub(super) fn new(
        path: Path,
        (id, stream_key): (u64, Option<NonZeroU64>),
        first_sequence: u32,
        settings: &Settings,
        now: Time,
    ) -> Self {
        let give_up = now + settings.dead_after;
        Self {
            path,
            id,
            first_sequence,
            stream_key,
            placement: said_of_placement(settings),
            settings: settings.clone(),
            cookie: None,
            tries: 0,
            stated_bytes: 0,
            due: now,
            give_up,
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.due
    }

    pub(super) fn deadline(&self) -> Time {
        self.due.min(self.give_up)
    }

    /// Errors: no answer has come. Only the time counts in which this end asked, as for a peer that falls
    /// silent (docs/protocol.md §10).
    pub(super) fn handle_timeout(&mut self, now: Time) -> Result<(), LostReason> {
        let late = now.since(self.due);
        if late > ANSWER_TIMEOUT_MAX {
            (self.due, self.give_up) = (now, self.give_up + late);
        }
        if now >= self.give_up { Err(LostReason::NoAnswer) } else { Ok(()) }
    }

    fn parameters(&self) -> Parameters {
        let short = self.tries >= LONG_TRIES;
        Parameters {
            datagram_bytes: match short {
                true => self.settings.datagram_bytes.min(SHORT_DATAGRAM_BYTES),
                false => self.settings.datagram_bytes,
            },
            placement: self.placement,
            ..parameters(&self.settings, self.first_sequence, self.stream_key)
        }
    }

    /// Writes the Hello or Connect that is due.
    pub(super) fn emit(&mut self, now: Time, datagram: &mut Vec<u8>) {
        match self.cookie {
            None => Hello { versions: Versions::HERE, client_id: self.id }.emit(datagram),
            Some(cookie) => {
                let parameters = self.parameters();
                self.stated_bytes = parameters.datagram_bytes;
                Connect { client_id: self.id, cookie, parameters }.emit(datagram);
            }
        }
        let timeout = ANSWER_TIMEOUT.saturating_mul(1 << self.tries.min(8)).min(ANSWER_TIMEOUT_MAX);
        self.tries += 1;
        self.due = now + timeout;
    }
}

/// The parameters that an endpoint announces.
fn parameters(settings: &Settings, first_sequence: u32, stream_key: Option<NonZeroU64>) -> Parameters {
    Parameters {
        datagram_bytes: settings.datagram_bytes,
        max_message_bytes: settings.max_message_bytes,
        initial_credit: u32::try_from(settings.window_packets).unwrap_or(u32::MAX),
        first_sequence,
        crc: settings.crc,
        stream_key,
        placement: said_of_placement(settings),
    }
}

fn said_of_placement(settings: &Settings) -> Placement {
    if settings.placement { Placement::Known } else { Placement::None }
}

/// The settings of a connection, from the parameters of both ends.
fn agreed(path: Path, remote_id: u64, is_client: bool, ours: &Parameters, theirs: &Parameters) -> Agreed {
    let crc = ours.crc || theirs.crc;
    Agreed {
        path,
        remote_id,
        crc,
        datagram_bytes: usize::from(ours.datagram_bytes.min(theirs.datagram_bytes)),
        message_bytes_max: theirs.max_message_bytes.min(MESSAGE_BYTES_MAX) as usize,
        first_sent: ours.first_sequence,
        first_received: theirs.first_sequence,
        credit: theirs.initial_credit,
        // Streams are not used with checksums: units have none.
        stream_key: theirs.stream_key.filter(|_| !crc),
        is_client,
        knows_placement: theirs.placement == Placement::Known,
    }
}

impl<S, R: AsRef<[u8]>> Endpoint<S, R> {
    pub(super) fn handle_hello(&mut self, now: Time, from: SocketAddr, hello: &Hello) {
        let client_id = hello.client_id;
        if hello.versions.newest_common(Versions::HERE).is_none() {
            let versions = Versions::HERE;
            self.reply(Answered::Hello, from, |datagram| Refused { versions, client_id }.emit(datagram));
        } else if !self.settings.accept && !self.takes_puts && self.attempt_to(from).is_none() {
            self.refuse(Answered::Hello, from, client_id);
        } else {
            let cookie = self.cookies.bake(now, &self.path_of(from), client_id);
            self.reply(Answered::Hello, from, |datagram| Cookie { client_id, cookie }.emit(datagram));
        }
    }

    fn refuse(&mut self, sort: Answered, from: SocketAddr, client_id: u64) {
        self.counters.refused += 1;
        self.reply(sort, from, |datagram| Abort { to: client_id, reason: AbortReason::FULL }.emit(datagram));
    }

    /// Handles a Connect, whose client is proven to receive at its address. A repeated Connect gets the same
    /// answer.
    pub(super) fn handle_connect(&mut self, now: Time, from: SocketAddr, connect: &Connect) {
        let Connect { client_id, cookie, parameters: theirs } = *connect;
        if !self.cookies.are_good(now, &self.path_of(from), client_id, &cookie) {
            self.counters.bad_cookies += 1;
            return;
        }
        let limit = self.settings.datagram_bytes;
        let datagram_bytes = limit.min(theirs.datagram_bytes);
        let (server_id, first_sequence, datagram_bytes) = match self.accepted(from, client_id) {
            Some((server_id, connection)) => {
                // A shorter one than before: the longer answer did not get through.
                connection.shorten(usize::from(datagram_bytes));
                (server_id, connection.agreed.first_sent, connection.agreed.datagram_bytes as u16)
            }
            None => {
                let is_beside = matches!(theirs.placement, Placement::Beside(_));
                let attempt = if is_beside { None } else { self.attempt_to(from) };
                let (index, server_id, first_sequence) = match attempt {
                    Some((id, _)) if id > client_id => return, // it has ours, and joins that
                    Some((id, index)) => (index, id, self.ids.next() as u32),
                    None if is_beside => match self.place_beside(from, theirs.placement) {
                        Some(place) => place,
                        None => return self.refuse(Answered::Proven, from, client_id),
                    },
                    None => match self.settings.accept.then(|| self.place_for_client(from)).flatten() {
                        Some(place) => place,
                        None => return self.refuse(Answered::Proven, from, client_id),
                    },
                };
                let ours = parameters(&self.settings, first_sequence, self.stream_key(server_id));
                let agreed = agreed(self.path_of(from), client_id, false, &ours, &theirs);
                let mut connection = Connection::new(agreed, &self.settings, now);
                (connection.is_joined, connection.is_beside) = (attempt.is_some(), is_beside);
                self.establish(index, connection, attempt.is_none());
                (server_id, first_sequence, datagram_bytes)
            }
        };
        if datagram_bytes > theirs.datagram_bytes {
            return; // not more than came; the client has spoken before, so it has an answer
        }
        let ours = parameters(&self.settings, first_sequence, self.stream_key(server_id));
        let parameters = Parameters { datagram_bytes, ..ours };
        self.reply(Answered::Proven, from, |datagram| {
            Accept { client_id, server_id, parameters }.emit(datagram)
        });
    }

    pub(super) fn handle_cookie(&mut self, now: Time, from: SocketAddr, cookie: &Cookie) {
        let Some((index, connecting)) = self.connecting(cookie.client_id, from) else { return };
        if connecting.cookie == Some(cookie.cookie) {
            return; // said twice: the Connect goes again when it is due
        }
        if connecting.cookie.is_none() {
            connecting.tries = 0;
        }
        // A later cookie replaces the first, which may have expired.
        (connecting.cookie, connecting.due) = (Some(cookie.cookie), now);
        self.urgent = true;
        self.touch(index);
    }

    pub(super) fn handle_refused(&mut self, from: SocketAddr, refused: &Refused) {
        let Some((index, _)) = self.connecting(refused.client_id, from) else { return };
        let Versions { first, last } = refused.versions;
        if refused.versions.newest_common(Versions::HERE).is_none() {
            self.lose(index, LostReason::Version { first, last, ours: VERSION });
        }
    }

    pub(super) fn handle_accept(&mut self, now: Time, from: SocketAddr, accept: &Accept) {
        let Some((index, connecting)) = self.connecting(accept.client_id, from) else { return };
        if accept.parameters.datagram_bytes > connecting.stated_bytes {
            return; // of a Connect before the last one, or of none at all
        }
        let ours = parameters(&connecting.settings, connecting.first_sequence, connecting.stream_key);
        let agreed = agreed(connecting.path, accept.server_id, true, &ours, &accept.parameters);
        let mut connection = Connection::new(agreed, &self.settings, now);
        connection.confirm();
        connection.is_beside = self.entries[index as usize].beside.is_some();
        let is_beside = connection.is_beside;
        let peer = self.establish(index, connection, false);
        self.urgent = true;
        self.events.push(is_beside, Event::Connected(peer, from));
    }
}
