//! A program's side of one connection: sends messages, and checks those that arrive.

use std::collections::VecDeque;

use super::host::Truth;
use super::traffic::Utterance;
use crate::message::framing::{self, Laid};
use crate::message::{Endpoint, Event, Kind, LostReason, Outlook, Peer, Time};

/// A message, in one piece or in several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard<'a> {
    pub(super) kind: Kind,
    pub(super) pieces: &'a [&'a [u8]],
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both sides had sent everything.
    Closed,
    Lost(LostReason),
    /// By us, at once.
    Aborted,
}

#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) peer: Peer,
    pub(super) connected: bool,
    pub(super) end: Option<End>,
    speech: Option<Speech>,
    /// The seed of the messages from the peer.
    hears: Option<u64>,
    /// Responses to be sent.
    responses: VecDeque<(u64, u64)>,
    peer_finished: bool,
    finished: bool,
    packer: Packer,
    /// Messages from this length on go by the stream.
    streams_from: Option<usize>,
    /// A message that is sent, or expected.
    message: Vec<u8>,
}

#[derive(Debug)]
struct Speech {
    seed: u64,
    greeted: bool,
    next: u64,
    answered: u64,
    /// The burst is over; the next begins at this time.
    quiet_until: Time,
}

/// Puts messages into packets, and into units.
#[derive(Debug, Default)]
pub(super) struct Packer {
    pub(super) full: VecDeque<Load>,
    open: Vec<u8>,
    /// A unit to which messages may be added, and the number of packets it would be.
    open_unit: Vec<u8>,
    laid: Laid,
}

/// A packet or unit that is ready to be queued.
#[derive(Debug)]
pub(super) enum Load {
    Packet(Vec<u8>),
    /// A unit, with the sequence numbers that it takes.
    Unit(Vec<u8>, u32),
}

impl Load {
    pub(super) fn queue(self, endpoint: &mut Endpoint<Vec<u8>, Vec<u8>>, peer: Peer) -> Result<(), Self> {
        match self {
            Self::Packet(packet) => endpoint.queue(peer, packet).map_err(|(packet, _)| Self::Packet(packet)),
            Self::Unit(unit, span) => {
                let bytes = unit.len() as u32;
                endpoint.queue_unit(peer, unit, span, bytes).map_err(|(unit, _)| Self::Unit(unit, span))
            }
        }
    }
}

/// A unit of this length takes no more messages.
const UNIT_BYTES: usize = 3_000;

impl Packer {
    pub(super) fn pack(&mut self, kind: Kind, message: &[u8], payload_bytes_max: usize) {
        self.close_unit();
        let room = payload_bytes_max - self.open.len();
        for chunk in framing::chunks(kind, message.len(), room, payload_bytes_max) {
            if chunk.fresh_packet {
                self.close_packet();
            }
            self.open.extend_from_slice(chunk.header());
            self.open.extend_from_slice(&message[chunk.range]);
        }
    }

    /// Puts a message into a unit, which takes no more numbers than the peer has room for.
    pub(super) fn pack_unit(&mut self, kind: Kind, message: &[u8], payload_bytes_max: usize, window: usize) {
        self.close_packet();
        let mut with = self.laid;
        with.add(kind, message.len(), payload_bytes_max);
        if with.packets() > window {
            self.close_unit();
        }
        let mut header = [0; framing::CHUNK_HEADER_BYTES_MAX];
        let header_bytes = framing::put_whole_header(kind, message.len(), &mut header);
        self.open_unit.extend_from_slice(&header[..header_bytes]);
        self.open_unit.extend_from_slice(message);
        self.laid.add(kind, message.len(), payload_bytes_max);
        if self.open_unit.len() >= UNIT_BYTES {
            self.close_unit();
        }
    }

    pub(super) fn close(&mut self) {
        self.close_packet();
        self.close_unit();
    }

    fn close_packet(&mut self) {
        if !self.open.is_empty() {
            self.full.push_back(Load::Packet(std::mem::take(&mut self.open)));
        }
    }

    fn close_unit(&mut self) {
        let (unit, laid) = (std::mem::take(&mut self.open_unit), std::mem::take(&mut self.laid));
        if !unit.is_empty() {
            self.full.push_back(Load::Unit(unit, laid.packets() as u32));
        }
    }
}

impl Conversation {
    pub(super) fn new(peer: Peer, says: Option<u64>, streams_from: Option<usize>) -> Self {
        let speech = says.map(|seed| Speech {
            seed,
            greeted: false,
            next: 0,
            answered: 0,
            quiet_until: Time::default(),
        });
        Self {
            peer,
            connected: false,
            end: None,
            speech,
            hears: None,
            responses: VecDeque::new(),
            peer_finished: false,
            finished: false,
            packer: Packer::default(),
            streams_from,
            message: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, event: Event, truth: &mut Truth) {
        if let Some(end) = self.end {
            truth.fault(|| format!("{event:?} after the end, {end:?}"));
        }
        match event {
            Event::Connected(..) | Event::Accepted(..) => {
                if std::mem::replace(&mut self.connected, true) {
                    truth.fault(|| format!("{event:?} for the second time"));
                }
            }
            Event::Writable(_) | Event::Placed { .. } | Event::PutDone(..) | Event::PutRefused(..) => {}
            Event::Finished(_) => {
                self.peer_finished = true;
                if let Some(flow) = self.hears.and_then(|seed| truth.flows.get_mut(&seed)) {
                    flow.finished = true;
                }
            }
            Event::Closed(_) => {
                if !self.finished || !self.peer_finished {
                    truth.fault(|| "closed before both sides had said everything".into());
                }
                self.end = Some(End::Closed);
            }
            Event::Lost(_, reason) => {
                self.end = Some(End::Lost(reason));
                self.packer = Packer::default();
                self.responses.clear();
            }
        }
    }

    /// Sends as many messages as there is room for. Returns when the next burst begins.
    pub(super) fn speak(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint<Vec<u8>, Vec<u8>>,
        queued: &mut usize,
        truth: &Truth,
    ) -> Option<Time> {
        if !self.connected || self.end.is_some() || self.finished {
            return None;
        }
        let Outlook { payload_bytes_max, window, .. } = endpoint.outlook(self.peer).ok()?;
        loop {
            self.hand_over(endpoint, queued, payload_bytes_max);
            if !self.packer.full.is_empty() {
                return None; // no room: Writable comes
            }
            let Some(utterance) = self.next_utterance(now, truth) else { break };
            utterance.write(&truth.flows, &mut self.message);
            let is_long = self.streams_from.is_some_and(|from| self.message.len() >= from);
            let has_stream = endpoint.has_stream(self.peer);
            if is_long && !has_stream {
                let _ = endpoint.want_stream(self.peer);
            }
            match is_long && has_stream {
                true => self.packer.pack_unit(utterance.kind(), &self.message, payload_bytes_max, window),
                false => self.packer.pack(utterance.kind(), &self.message, payload_bytes_max),
            }
        }
        self.packer.close();
        self.hand_over(endpoint, queued, payload_bytes_max);
        if self.packer.full.is_empty() && self.has_said_everything(truth) {
            self.finished = endpoint.finish(self.peer, Vec::new()).is_ok();
            *queued += usize::from(self.finished);
        }
        self.speech.as_ref().map(|speech| speech.quiet_until).filter(|&quiet_until| quiet_until > now)
    }

    fn hand_over(
        &mut self,
        endpoint: &mut Endpoint<Vec<u8>, Vec<u8>>,
        queued: &mut usize,
        payload_bytes_max: usize,
    ) {
        while let Some(load) = self.packer.full.pop_front() {
            assert!(!matches!(&load, Load::Packet(packet) if packet.len() > payload_bytes_max));
            if let Err(load) = load.queue(endpoint, self.peer) {
                return self.packer.full.push_front(load);
            }
            *queued += 1;
        }
    }

    fn next_utterance(&mut self, now: Time, truth: &Truth) -> Option<Utterance> {
        if let Some((seed, number)) = self.responses.pop_front() {
            return Some(Utterance::Response { seed, number });
        }
        let speech = self.speech.as_mut()?;
        let (seed, number) = (speech.seed, speech.next);
        let traffic = &truth.flows[&seed].traffic;
        if !std::mem::replace(&mut speech.greeted, true) {
            return Some(Utterance::Greeting { seed });
        }
        let waits = traffic.calls.is_some_and(|most| number - speech.answered >= most);
        if number == traffic.messages || now < speech.quiet_until || waits {
            return None;
        }
        speech.next += 1;
        if let Some((messages, pause)) = traffic.burst
            && speech.next % messages == 0
        {
            speech.quiet_until = now + pause;
        }
        Some(match traffic.calls {
            Some(_) => Utterance::Request { seed, number },
            None => Utterance::Message { seed, number },
        })
    }

    fn has_said_everything(&self, truth: &Truth) -> bool {
        let Some(speech) = &self.speech else { return self.peer_finished };
        let traffic = &truth.flows[&speech.seed].traffic;
        let answered = traffic.calls.is_none() || speech.answered == traffic.messages;
        traffic.finish && speech.greeted && speech.next == traffic.messages && answered
    }

    /// Checks a message: it must be the one that comes next, whole and unchanged.
    pub(super) fn hear(&mut self, message: Heard<'_>, truth: &mut Truth) {
        if let Err(fault) = self.check(message, truth) {
            truth.fault(|| fault);
        }
    }

    fn check(&mut self, message: Heard<'_>, truth: &mut Truth) -> Result<(), String> {
        if self.peer_finished {
            return Err("a message behind the end".into());
        }
        if let Kind::Response(call) = message.kind {
            let speech = self.speech.as_mut().ok_or("a response to who says nothing")?;
            let (seed, number) = (speech.seed, speech.answered);
            speech.answered += 1;
            if number >= speech.next || call != number as u32 {
                return Err(format!("response to call {call}, expected was {number} of {}", speech.next));
            }
            truth.flows.get_mut(&seed).expect("it speaks").answered += 1;
            return self.compare(message, Utterance::Response { seed, number }, truth);
        }
        let Some(seed) = self.hears else { return self.greet(message, truth) };
        let flow = truth.flows.get_mut(&seed).expect("it greeted");
        let number = flow.received;
        flow.received += 1;
        if number >= flow.traffic.messages {
            return Err(format!("message {number} of {}", flow.traffic.messages));
        }
        let utterance = match flow.traffic.calls {
            Some(_) => {
                self.responses.push_back((seed, number));
                Utterance::Request { seed, number }
            }
            None => Utterance::Message { seed, number },
        };
        self.compare(message, utterance, truth)
    }

    /// Reads from the first message what the others will be.
    fn greet(&mut self, message: Heard<'_>, truth: &mut Truth) -> Result<(), String> {
        let bytes = message.pieces.concat();
        let seed = u64::from_be_bytes(bytes.try_into().map_err(|_| "a greeting of another length")?);
        let flow = truth.flows.get_mut(&seed).ok_or("a greeting of nobody")?;
        if std::mem::replace(&mut flow.begun, true) {
            return Err("a second greeting".into());
        }
        self.hears = Some(seed);
        Ok(())
    }

    fn compare(&mut self, message: Heard<'_>, expected: Utterance, truth: &Truth) -> Result<(), String> {
        expected.write(&truth.flows, &mut self.message);
        if message.kind != expected.kind() {
            return Err(format!("{:?}, expected was {expected:?}", message.kind));
        }
        let bytes = message.pieces.concat();
        if bytes != self.message {
            return Err(format!(
                "{expected:?} of {} bytes came as other {}",
                self.message.len(),
                bytes.len()
            ));
        }
        Ok(())
    }
}
