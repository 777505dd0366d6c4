//! The chosen method, and the alternatives.

use std::fmt;
use std::io;
use std::sync::Arc;

use nocopy_proto::errno::ErrorCause;

use super::evidence::Evidence;
use super::metadata::{Clock, Unsupported};
use super::mode::Mode;

/// The chosen method on this machine, the alternatives, and why. It displays as text, a line for each choice;
/// the fields are for programs.
///
/// Ports, queues, captures and everything over a port fill in the fields about the port's modes and card. For
/// other kinds they are empty, and the text has everything.
///
/// ```
/// # let listener = nocopy::tcp::Listener::bind("127.0.0.1:0")?;
/// # let mut stream = nocopy::tcp::Stream::connect(listener.local_addr()?)?;
/// # let (port, _peer) = nocopy::Port::memory_pair()?;
/// let explanation = stream.sender().explain().to_string();
/// println!("{explanation}");
/// assert!(explanation.contains("the peer is on this machine")); // so sending without a copy was not considered
///
/// let explanation = port.explain();
/// assert!(explanation.refusals.is_empty()); // nothing better was tried
/// assert!(explanation.to_string().starts_with("memory queue 0: memory, copied (memory port)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// Evidence about copies that is known before anything is sent or received: from the mode of a port, or
    /// because a kernel socket copies. [`Unknown`](Evidence::Unknown) if it differs from send to send; then
    /// the half's `ledger` has the evidence.
    pub evidence: Evidence,
    /// The modes of a port that were tried before, and why each was refused.
    pub refusals: Vec<Refusal>,
    /// Where a filter runs, if there is one ([`PortBuilder::filter`](crate::port::PortBuilder::filter)).
    pub filter: Option<FilterPlace>,
    /// Whether the card (`xdp zero-copy`) or the kernel (other modes) completes the checksums of sent
    /// packets. If not, they are completed in software, for this reason.
    pub checksum: Result<(), Unsupported>,
    /// The clock of departure times ([`Request::timestamp`](crate::metadata::Request::timestamp)).
    pub departure_clock: Result<Clock, Unsupported>,
    text: String,
}

impl From<(String, Evidence)> for Explanation {
    /// Made of text, and evidence that is known in advance. For kinds of I/O that are built on this crate.
    fn from((text, evidence): (String, Evidence)) -> Self {
        Self::from_choice(&text, evidence)
    }
}

impl Explanation {
    /// An explanation without a port.
    pub(crate) fn from_choice(choice: &impl fmt::Display, evidence: Evidence) -> Self {
        Self {
            evidence,
            refusals: Vec::new(),
            filter: None,
            checksum: Err(Unsupported::NotRequested),
            departure_clock: Err(Unsupported::NotRequested),
            text: choice.to_string(),
        }
    }

    /// Adds lines at the front, about an object that uses this one.
    pub(crate) fn prefixed_with(self, choice: &impl fmt::Display) -> Self {
        Self { text: format!("{choice}\n{self}"), ..self }
    }

    /// Joins the lines and refusals of several ports; the other fields are the first port's.
    #[cfg(feature = "port")]
    pub(crate) fn joined(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|mut all, next| {
            all.text = format!("{all}\n{next}");
            all.refusals.extend(next.refusals);
            if all.evidence != next.evidence {
                all.evidence = Evidence::Unknown;
            }
            all
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A mode that was tried and refused.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Refusal {
    /// The mode.
    pub mode: Mode,
    /// The kernel's reason, or why the kernel was not asked.
    pub reason: Arc<io::Error>,
    /// What the reason means on this machine, and what would make the mode available; `None` if unknown.
    pub(crate) remedy: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: not available{}", self.mode, ErrorCause(&self.reason))?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

/// Where the filter of a port runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterPlace {
    /// Before the redirect, as eBPF: packets that do not match go to the host, unchanged and not copied.
    Xdp,
    /// At the packet socket, as classic BPF: packets that do not match are not copied into the ring.
    Socket,
    /// In the receiver, because the kernel refused it, for the reason in the text. The kernel has already
    /// copied packets that do not match; in the AF_XDP modes each is returned to the host
    /// ([`ToHost`](crate::ToHost)), by a system call and another copy.
    UserSpace(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::evidence::Cause;

    #[test]
    fn explanations_of_several_ports_are_joined() {
        let of = |text: &str, evidence| Explanation::from_choice(&text, evidence);
        let (copied, other) = (Evidence::Copied(Cause::MemoryPort), Evidence::Copied(Cause::PacketRing));
        let same = Explanation::joined([of("first", copied), of("second", copied)]).unwrap();
        assert_eq!((same.to_string().as_str(), same.evidence), ("first\nsecond", copied));
        let mixed = Explanation::joined([of("first", copied), of("second", other)]).unwrap();
        assert_eq!(mixed.evidence, Evidence::Unknown, "never merged");
        assert!(Explanation::joined([]).is_none());
    }
}
