//! Messages between the preloaded library and `nocopy run`: one JSON datagram each.
//!
//! ```text
//!   a process of the command                                  nocopy run
//!   Join, by the socket that the command inherited, or ─────▶ (with one end of a channel of this process alone)
//!   by the address of another, if the program closed that
//!   Opened, Filter, Inherited, Closed, by that channel ─────▶ kept for the report
//!   Control, with descriptors ──────────────────────────────▶ kept until the handle is closed
//!   Call ───────────────────────────────────────────────────▶
//!        ◀─────────────────────────────────────────────────── Reply::Ready: only then a filter is asked for
//!   FilterRequest ──────────────────────────────────────────▶ loaded for that handle, or not
//!                 ◀────────────────────────────────────────── Reply
//! ```
//!
//! All processes of a command inherit one socket, and any of them could read an answer there: hence the
//! channels. Any process of the network namespace can send to the address: hence the key, which a datagram to
//! it [begins with](with_key). Without it, the kernel drops the datagram where it is sent: with descriptors
//! in it, a stranger could make the process that closes them wait for as long as it likes. A process that
//! lost its channel joins again, with the same number. This module checks each message, because an attacker's
//! packet may have taken over a process that reads packets: a parsed message has no text that is too long,
//! and no more instructions than a filter may have.

mod instructions;
#[doc(hidden)]
pub mod oracle;
pub mod sockets;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::filter::{INSTRUCTIONS_MAX, Instruction, InvalidProgram, Program};

/// Version of the protocol. Library and command are built together, so there is only one.
pub const VERSION: u32 = 1;

/// A datagram is never longer; a filter of [`INSTRUCTIONS_MAX`] instructions fits.
pub const DATAGRAM_BYTES_MAX: usize = 128 << 10;

/// A text is never longer.
pub const TEXT_BYTES_MAX: usize = 1024;

/// The most queues of a capture that are reported; it may have more.
pub const QUEUES_MAX: usize = 64;

/// The name of a queue's mode is never longer.
pub const MODE_BYTES_MAX: usize = 64;

/// Bytes of the key in front of a datagram to the address.
pub const KEY_BYTES: usize = size_of::<u64>();

/// A datagram that joins, in the form in which it is sent to the address.
pub fn with_key(key: u64, datagram: &[u8]) -> Vec<u8> {
    [&key.to_be_bytes(), datagram].concat()
}

/// The filter of the socket at the address: the kernel drops datagrams that do not begin with the key.
///
/// # Panics
/// Never: these are valid instructions.
pub fn key_filter(key: u64) -> Program {
    let [high, low] = [(key >> 32) as u32, key as u32];
    // ld [0]; jne high, refused; ld [4]; jne low, refused; ret all; refused: ret none
    let program = format!("6,32 0 0 0,21 0 3 {high},32 0 0 4,21 0 1 {low},6 0 0 {},6 0 0 0,", u32::MAX);
    Program::parse(&program).expect("valid instructions")
}

/// A message of the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LibraryMessage {
    /// A process joins. Comes with one descriptor: the other end of its channel.
    Join(JoinRequest),
    /// A handle has been activated.
    Opened(OpenedHandle),
    /// The means to replace the filter of a handle. Comes with descriptors, which other code handles.
    Control {
        /// Which handle.
        handle: u64,
    },
    /// The new place of a handle's filter.
    Filter {
        /// Which handle.
        handle: u64,
        /// Where; `None`: it has no filter any more.
        place: Option<FilterLocation>,
    },
    /// Asks whether `nocopy run` answers, before a filter is requested: a request without a waiting process
    /// would still be granted once it is read. [`CommandReply::Ready`] follows.
    Call {
        /// A number that the reply repeats.
        request: u64,
    },
    /// Asks for a filter in front of a handle's packets. A [`CommandReply`] follows.
    FilterRequest(FilterRequest),
    /// A process goes on with a handle of another process, which has forked it and has ended, as daemons do.
    Inherited {
        /// Which handle.
        handle: u64,
        /// The channel of the process that has opened it.
        channel: u64,
    },
    /// A handle has been closed.
    Closed(ClosedHandle),
}

/// A process that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// [`VERSION`].
    pub version: u32,
    /// The process's number in its own namespace.
    pub process: u32,
    /// Its name.
    pub program: String,
    /// The key that `nocopy run` gave to its command.
    #[serde(default)] // absent in messages of other versions, which are to be told apart
    pub key: u64,
    /// A number of the process's choice for its channel: it has the same one if it joins again.
    #[serde(default)]
    pub channel: u64,
}

/// A handle that has been activated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedHandle {
    /// A number of the process's choice, which it does not use again.
    pub handle: u64,
    /// The interface it captures from.
    pub interface: String,
    /// The library that captures.
    pub library: CapturingLibrary,
    /// Whether packets for other hosts were requested.
    pub promiscuous: bool,
    /// Captured bytes of a packet.
    pub snap_bytes: u32,
}

/// The library that captures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapturingLibrary {
    /// nocopy.
    Ours {
        /// How.
        mode: CaptureMode,
        /// A remark for the user, such as why the capture is passive.
        note: Option<String>,
    },
    /// The system's libpcap.
    System {
        /// Why not nocopy.
        why: String,
    },
}

/// How nocopy captures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMode {
    /// Passive: blocks of a packet socket, read in place.
    Passive,
    /// Takes packets from the host, by AF_XDP.
    Take {
        /// The mode of each queue's port, in the order of queues; of the first [`QUEUES_MAX`].
        queues: Vec<String>,
    },
}

/// The place of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterLocation {
    /// Before the redirect: packets that do not match are not copied, and go to the host.
    Xdp,
    /// At the packet socket, in the kernel.
    Socket,
    /// In the library.
    UserSpace {
        /// Why no earlier.
        why: String,
    },
}

/// A filter that the library may not load itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRequest {
    /// Which handle.
    pub handle: u64,
    /// A number that the reply repeats.
    pub request: u64,
    /// The filter; `None` asks for none.
    #[serde(with = "instructions")]
    pub instructions: Option<Vec<Instruction>>,
}

impl CaptureMode {
    /// The value, with its text shortened to the limit of a message.
    pub fn clip(mut self) -> Self {
        if let Self::Take { queues } = &mut self {
            queues.truncate(QUEUES_MAX);
            queues.iter_mut().for_each(|mode| *mode = text_prefix(mode, MODE_BYTES_MAX));
        }
        self
    }
}

impl FilterRequest {
    /// The filter, checked.
    ///
    /// # Errors
    /// The kernel would refuse it.
    pub fn checked_program(&self) -> Result<Option<Program>, InvalidProgram> {
        self.instructions.clone().map(Program::new).transpose()
    }
}

/// A handle that was closed, and its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedHandle {
    /// Which handle.
    pub handle: u64,
    /// Its counts.
    pub counts: HandleCounts,
    /// How it sent, if it did.
    pub sending: Option<String>,
}

/// Packet counts of a handle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleCounts {
    /// Received (`ps_recv`).
    pub received: u64,
    /// Lost for want of room (`ps_drop`).
    pub dropped: u64,
    /// Lost by the interface (`ps_ifdrop`).
    pub interface_dropped: u64,
    /// Handed over for sending.
    pub sent: u64,
}

/// The answer of `nocopy run` to a [`FilterRequest`] or a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CommandReply {
    /// The command answers.
    #[serde(rename = "here")]
    Ready {
        /// To which call.
        request: u64,
    },
    /// The filter is in front of the packets.
    Loaded {
        /// To which request.
        request: u64,
    },
    /// Not loaded; the filter before is unchanged.
    Refused {
        /// To which request.
        request: u64,
        /// Why.
        why: String,
    },
}

/// Why a datagram is not a message, or a message not a datagram.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedDatagram {
    /// The datagram is too long.
    #[error(
        "datagram of {bytes} B: refused; none has more than {DATAGRAM_BYTES_MAX}; send less in one message"
    )]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// The datagram is not one of these messages.
    #[error("datagram: not a message; {0}; use the library and the command of the same nocopy")]
    Json(#[from] serde_json::Error),
    /// A part is too long.
    #[error("message: refused; its {field} has {found}, and at most {max} are possible; send less")]
    TooMuch {
        /// Which part.
        field: &'static str,
        /// How long it is.
        found: usize,
        /// How long it could be.
        max: usize,
    },
    /// The library is of another version.
    #[error(
        "library of version {theirs}: refused; this command speaks version {VERSION}; install both of the same nocopy"
    )]
    Version {
        /// Its version.
        theirs: u32,
    },
}

impl LibraryMessage {
    /// Reads a datagram.
    ///
    /// # Errors
    /// It is not a message, or one that exceeds the limits.
    pub fn parse(datagram: &[u8]) -> Result<Self, MalformedDatagram> {
        let message: Self = from_json(datagram)?;
        message.check_limits()?;
        Ok(message)
    }

    /// Makes a datagram.
    ///
    /// # Errors
    /// The message exceeds the limits of [`parse`](Self::parse). [`clip_text`] shortens texts.
    pub fn datagram(&self) -> Result<Vec<u8>, MalformedDatagram> {
        self.check_limits()?;
        to_json(self)
    }

    fn check_limits(&self) -> Result<(), MalformedDatagram> {
        match self {
            Self::Join(JoinRequest { version, .. }) if *version != VERSION => {
                Err(MalformedDatagram::Version { theirs: *version })
            }
            Self::Join(join) => check_text("program", &join.program),
            Self::Opened(opened) => opened.check_limits(),
            Self::Filter { place: Some(FilterLocation::UserSpace { why }), .. } => check_text("reason", why),
            Self::FilterRequest(request) => {
                let count = request.instructions.as_ref().map_or(0, Vec::len);
                check_count("filter", count, INSTRUCTIONS_MAX)
            }
            Self::Closed(closed) => closed.sending.iter().try_for_each(|way| check_text("way to send", way)),
            Self::Control { .. } | Self::Filter { .. } | Self::Call { .. } | Self::Inherited { .. } => Ok(()),
        }
    }
}

impl OpenedHandle {
    fn check_limits(&self) -> Result<(), MalformedDatagram> {
        check_text("interface", &self.interface)?;
        match &self.library {
            CapturingLibrary::System { why } => check_text("reason", why),
            CapturingLibrary::Ours { mode, note } => {
                note.iter().try_for_each(|note| check_text("note", note))?;
                let CaptureMode::Take { queues } = mode else { return Ok(()) };
                check_count("list of queues", queues.len(), QUEUES_MAX)?;
                queues.iter().try_for_each(|mode| check_count("mode", mode.len(), MODE_BYTES_MAX))
            }
        }
    }
}

impl CommandReply {
    /// Reads a datagram.
    ///
    /// # Errors
    /// It is not a reply, or one that exceeds the limits.
    pub fn parse(datagram: &[u8]) -> Result<Self, MalformedDatagram> {
        let reply: Self = from_json(datagram)?;
        reply.check_limits()?;
        Ok(reply)
    }

    /// Makes a datagram.
    ///
    /// # Errors
    /// The reply exceeds the limits of [`parse`](Self::parse). [`clip_text`] shortens texts.
    pub fn datagram(&self) -> Result<Vec<u8>, MalformedDatagram> {
        self.check_limits()?;
        to_json(self)
    }

    /// To which request.
    pub fn request_number(&self) -> u64 {
        match self {
            Self::Ready { request } | Self::Loaded { request } | Self::Refused { request, .. } => *request,
        }
    }

    fn check_limits(&self) -> Result<(), MalformedDatagram> {
        match self {
            Self::Ready { .. } | Self::Loaded { .. } => Ok(()),
            Self::Refused { why, .. } => check_text("reason", why),
        }
    }
}

impl fmt::Display for FilterLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Xdp => "xdp",
            Self::Socket => "socket",
            Self::UserSpace { .. } => "user space",
        })
    }
}

/// The text, shortened to the limit of a message.
pub fn clip_text(text: &str) -> String {
    text_prefix(text, TEXT_BYTES_MAX)
}

fn text_prefix(text: &str, bytes_max: usize) -> String {
    let end = (0..=text.len().min(bytes_max)).rev().find(|&end| text.is_char_boundary(end));
    text[..end.unwrap_or(0)].to_owned()
}

fn from_json<T: for<'a> Deserialize<'a>>(datagram: &[u8]) -> Result<T, MalformedDatagram> {
    check_length(datagram)?;
    Ok(serde_json::from_slice(datagram)?)
}

fn to_json(message: &impl Serialize) -> Result<Vec<u8>, MalformedDatagram> {
    let datagram = serde_json::to_vec(message)?;
    check_length(&datagram)?;
    Ok(datagram)
}

fn check_length(datagram: &[u8]) -> Result<(), MalformedDatagram> {
    match datagram.len() {
        ..=DATAGRAM_BYTES_MAX => Ok(()),
        bytes => Err(MalformedDatagram::TooLong { bytes }),
    }
}

fn check_text(field: &'static str, text: &str) -> Result<(), MalformedDatagram> {
    check_count(field, text.len(), TEXT_BYTES_MAX)
}

fn check_count(field: &'static str, found: usize, max: usize) -> Result<(), MalformedDatagram> {
    if found > max { Err(MalformedDatagram::TooMuch { field, found, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn any_text() -> impl Strategy<Value = String> {
        ".{0,300}".prop_map(|text| clip_text(&text))
    }

    fn any_opened_handle() -> impl Strategy<Value = OpenedHandle> {
        let mode = prop_oneof![
            Just(CaptureMode::Passive),
            vec(any_text(), 0..3).prop_map(|queues| CaptureMode::Take { queues }.clip()),
        ];
        let library = prop_oneof![
            (mode, option::of(any_text())).prop_map(|(mode, note)| CapturingLibrary::Ours { mode, note }),
            any_text().prop_map(|why| CapturingLibrary::System { why }),
        ];
        (any::<u64>(), any_text(), library, any::<bool>(), any::<u32>()).prop_map(
            |(handle, interface, library, promiscuous, snap_bytes)| OpenedHandle {
                handle,
                interface,
                library,
                promiscuous,
                snap_bytes,
            },
        )
    }

    fn any_instructions(
        count: impl Into<proptest::collection::SizeRange>,
    ) -> impl Strategy<Value = Vec<Instruction>> {
        let one = any::<(u16, u8, u8, u32)>().prop_map(|(code, jump_true, jump_false, constant)| {
            Instruction { code, jump_true, jump_false, constant }
        });
        vec(one, count)
    }

    fn any_message() -> impl Strategy<Value = LibraryMessage> {
        let place = prop_oneof![
            Just(FilterLocation::Xdp),
            Just(FilterLocation::Socket),
            any_text().prop_map(|why| FilterLocation::UserSpace { why }),
        ];
        let request = (any::<u64>(), any::<u64>(), option::of(any_instructions(0..20)));
        let closed = (any::<u64>(), any::<[u64; 4]>(), option::of(any_text()));
        prop_oneof![
            (any::<u32>(), any_text(), any::<[u64; 2]>()).prop_map(|(process, program, [key, channel])| {
                LibraryMessage::Join(JoinRequest { version: VERSION, process, program, key, channel })
            }),
            any_opened_handle().prop_map(LibraryMessage::Opened),
            any::<u64>().prop_map(|handle| LibraryMessage::Control { handle }),
            any::<u64>().prop_map(|request| LibraryMessage::Call { request }),
            any::<[u64; 2]>().prop_map(|[handle, channel]| LibraryMessage::Inherited { handle, channel }),
            (any::<u64>(), option::of(place))
                .prop_map(|(handle, place)| LibraryMessage::Filter { handle, place }),
            request.prop_map(|(handle, request, instructions)| {
                LibraryMessage::FilterRequest(FilterRequest { handle, request, instructions })
            }),
            closed.prop_map(|(handle, [received, dropped, interface_dropped, sent], sending)| {
                let counts = HandleCounts { received, dropped, interface_dropped, sent };
                LibraryMessage::Closed(ClosedHandle { handle, counts, sending })
            }),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_json_round_trips(message in any_message()) {
            prop_assert_eq!(LibraryMessage::parse(&message.datagram().unwrap()).unwrap(), message);
        }

        #[test]
        fn replies_survive_json_round_trips(request: u64, is_here: bool, why in option::of(any_text())) {
            let reply = match why {
                None if is_here => CommandReply::Ready { request },
                None => CommandReply::Loaded { request },
                Some(why) => CommandReply::Refused { request, why },
            };
            prop_assert_eq!(CommandReply::parse(&reply.datagram().unwrap()).unwrap(), reply);
        }

        /// Messages with a byte changed come closer to being messages than noise does.
        #[test]
        fn arbitrary_datagrams_are_refused_or_parsed(
            message in any_message(), place: prop::sample::Index, byte: u8, noise: Vec<u8>,
        ) {
            oracle::check_round_trip(&noise);
            let mut datagram = message.datagram().unwrap();
            let place = place.index(datagram.len());
            datagram[place] = byte;
            oracle::check_round_trip(&datagram);
        }
    }

    #[test]
    fn the_longest_filter_fits_and_a_longer_one_is_refused() {
        let longest =
            Instruction { code: u16::MAX, jump_true: u8::MAX, jump_false: u8::MAX, constant: u32::MAX };
        let of = |count| {
            let instructions = Some(vec![longest; count]);
            LibraryMessage::FilterRequest(FilterRequest { handle: u64::MAX, request: u64::MAX, instructions })
        };
        let datagram = of(INSTRUCTIONS_MAX).datagram().unwrap();
        assert_eq!(LibraryMessage::parse(&datagram).unwrap(), of(INSTRUCTIONS_MAX));
        let refused = of(INSTRUCTIONS_MAX + 1).datagram().unwrap_err().to_string();
        assert_eq!(
            refused,
            "message: refused; its filter has 4097, and at most 4096 are possible; send less"
        );
    }

    #[test]
    fn long_fields_are_refused_in_both_directions() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let program = long.clone();
        let message =
            LibraryMessage::Join(JoinRequest { version: VERSION, process: 1, program, key: 2, channel: 3 });
        assert!(matches!(message.datagram(), Err(MalformedDatagram::TooMuch { field: "program", .. })));
        let forged = serde_json::to_vec(&message).unwrap();
        assert!(matches!(
            LibraryMessage::parse(&forged),
            Err(MalformedDatagram::TooMuch { field: "program", .. })
        ));
        assert_eq!(clip_text(&long).len(), TEXT_BYTES_MAX);
        assert_eq!(clip_text(&"ä".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
        let spaces = vec![b' '; DATAGRAM_BYTES_MAX + 1];
        assert!(matches!(CommandReply::parse(&spaces), Err(MalformedDatagram::TooLong { .. })));
    }

    #[test]
    fn many_queues_are_clipped_to_the_limit() {
        let of = |mode| {
            let library = CapturingLibrary::Ours { mode, note: None };
            let interface = "eth0".into();
            LibraryMessage::Opened(OpenedHandle {
                handle: 0,
                interface,
                library,
                promiscuous: true,
                snap_bytes: 96,
            })
        };
        let long = CaptureMode::Take { queues: vec!["x".repeat(MODE_BYTES_MAX + 1)] };
        let many = CaptureMode::Take { queues: vec!["xdp copy native".into(); QUEUES_MAX + 1] };
        assert!(matches!(of(long.clone()).datagram(), Err(MalformedDatagram::TooMuch { field: "mode", .. })));
        assert!(matches!(of(many.clone()).datagram(), Err(MalformedDatagram::TooMuch { .. })));
        assert_eq!(long.clip(), CaptureMode::Take { queues: vec!["x".repeat(MODE_BYTES_MAX)] });
        let first = CaptureMode::Take { queues: vec!["xdp copy native".into(); QUEUES_MAX] };
        assert_eq!(LibraryMessage::parse(&of(many.clip()).datagram().unwrap()).unwrap(), of(first));
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let forged = br#"{"kind":"join","version":2,"process":1,"program":"x","more":true}"#;
        assert_eq!(
            LibraryMessage::parse(forged).unwrap_err().to_string(),
            "library of version 2: refused; this command speaks version 1; install both of the same nocopy"
        );
    }
}
