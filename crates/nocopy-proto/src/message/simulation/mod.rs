//! The message protocol in a simulated network: hosts with programs that talk and check what they hear, links
//! that lose, repeat, overtake and damage, and a clock that only the simulation moves.
//!
//! Not part of the interface: for the tests here and the fuzz targets in `fuzz/`. Everything follows from one
//! seed, so a run that fails can be repeated from its number alone.

mod conversation;
pub mod forged_units;
mod host;
mod link;
mod puts;
pub mod schedule;
mod streams;
mod traffic;
mod world;

pub use conversation::End;
pub use host::{HostCounts, HostSettings};
pub use link::{LinkCounts, LinkSettings, OVERHEAD_BYTES};
pub use streams::StreamSettings;
pub use traffic::{Flow, Sizes, Traffic};
pub use world::{HostId, Stranger, World};

#[cfg(test)]
mod by_stream;
#[cfg(test)]
mod computing;
#[cfg(test)]
mod fairness;
#[cfg(test)]
mod goodput;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod placing;
#[cfg(test)]
mod tests;
