//! The message protocol, `docs/protocol.md`: reliable, ordered messages between peers, in UDP datagrams.
//!
//! An [`Endpoint`] has no socket and no clock, and uses the caller's memory. The caller gives it received
//! datagrams and the time, and sends the datagrams that it returns. Sent packets stay in place until the peer
//! has acknowledged them, and received ones until they are read:
//!
//! ```text
//!   queue(peer, S) ──► send window ──► poll_transmit() ──► the network ──► handle_datagram(R) ──► receive window ──► receive()
//!   acknowledged() ◄──     ▲ loss, congestion, pacing, round trips                  │  admission     │      └──► released()
//!                          └───────────── acknowledgements ◄────────────────────────┴────────────────┘
//! ```
//!
//! * [`wire`]: datagrams; [`framing`]: messages in the payloads of packets. Units (`units`): messages by a
//!   stream beside the datagrams.
//! * [`Endpoint`]: all connections; each one only decides, by parts that are pure: windows, losses, round
//!   trips, congestion, pacing.
//!
//! A packet keeps its sequence number when it is sent again, so it stays in the frame where it was written,
//! with a new header in front. In a run of packets, those that merely continue the one before are not checked
//! one by one; `twins` tests that this changes nothing.

mod admission;
mod ahead;
mod alarms;
mod answers;
mod congestion;
mod connection;
mod cookie;
pub mod crc;
mod endpoint;
pub mod framing;
mod pacing;
mod path;
mod placing;
mod receive_window;
mod round_trip;
mod send_window;
pub mod sequence;
mod settings;
mod shares;
mod shortage;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod simulation;
#[cfg(test)]
mod tests;
mod time;
mod timers;
#[cfg(test)]
mod twins;
mod waiting;
pub mod wire;

pub use endpoint::{Arriving, BesideError, Endpoint, Fresh, Message, Next, Outlook, Piece, Places, Transmit};
pub use path::{Local, Path};
pub use placing::{PUT_HEADER_BYTES, PutHeader, PutRefusal, Region, Regions, parse_put_answer, put_answer};
pub use settings::{
    ConnectError, Counters, Event, Gone, Kind, LostReason, MESSAGE_BYTES_MAX, Peer, PeerStats, QueueError,
    Settings, Violation,
};
pub use shares::{Shares, are_within_shares, network_of};
pub use time::Time;
