//! What a port is and how it came to be that.

use std::fmt;

use super::{FilterPlace, Inner, Mode, Refusal};
use crate::facts::evidence::Evidence;
use crate::facts::metadata::{Clock, Unsupported};
use crate::memory::area::AreaConfig;

/// What a port is, and what it was compared with: see [`Port::explain`](super::Port::explain). Displayed in a few lines: the mode, what is
/// known of copies, each better mode with the reason it was refused and what would open it, and the memory.
///
/// ```
/// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
/// let explanation = port.explain();
/// assert!(explanation.refusals.is_empty()); // nothing better was tried
/// assert!(explanation.to_string().starts_with("memory queue 0: memory, copied (memory port)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Explanation<'port> {
    /// How the port moves frames.
    pub mode: Mode,
    /// What is known of copies between the area and the wire.
    pub evidence: Evidence,
    /// The modes that were tried before, and why each was refused.
    pub refusals: &'port [Refusal],
    /// Where the port's filter runs, if it has one ([`PortBuilder::filter`](super::PortBuilder::filter)).
    pub filter: Option<&'port FilterPlace>,
    /// Whether checksums are completed by the card (`xdp zero-copy`) or the kernel (other modes); otherwise in software, and why.
    pub checksum: Result<(), Unsupported>,
    /// The clock that times of leaving are read from ([`Request::timestamp`](crate::metadata::Request::timestamp)).
    pub departure_clock: Result<Clock, Unsupported>,
    port: &'port Inner,
}

impl<'port> Explanation<'port> {
    pub(super) fn of(port: &'port Inner) -> Self {
        Self {
            mode: port.mode,
            evidence: port.evidence(),
            refusals: &port.refusals,
            filter: port.filter.as_ref(),
            checksum: port.offers.checksum,
            departure_clock: port.offers.timestamp,
            port,
        }
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { interface, queue, order, measured, area, .. } = self.port;
        let Self { mode, evidence, refusals, .. } = self;
        writeln!(f, "{interface} queue {queue}: {mode}, {evidence}")?;
        if let Some(why) = order {
            writeln!(f, "  order    {why}")?;
        }
        if *mode == Mode::PacketRing {
            writeln!(f, "  host     has every packet too: this mode only looks on")?;
            if !self.port.multi_buffer {
                let joined = "packets that the kernel has joined (GRO, GSO) and no frame holds are dropped and counted";
                writeln!(f, "  long     {joined}; 'multi_buffer' takes them")?;
            }
        }
        match self.filter {
            None => {}
            Some(FilterPlace::Xdp) => {
                writeln!(
                    f,
                    "  filter   in front of the redirect: what does not match goes to the host, uncopied"
                )?;
            }
            Some(FilterPlace::Socket) => {
                writeln!(f, "  filter   at the socket: what does not match is not copied")?;
            }
            Some(FilterPlace::UserSpace(why)) => writeln!(f, "  filter   in user space: {why}")?,
        }
        for measurement in measured {
            writeln!(f, "  measured {measurement}")?;
        }
        for refusal in *refusals {
            writeln!(f, "  refused  {refusal}")?;
        }
        let (&AreaConfig { frame_count: frames, frame_bytes: bytes, .. }, pages) =
            (area.config(), area.pages());
        match (self.checksum, mode) {
            (Ok(()), Mode::XdpZeroCopy) => writeln!(f, "  checksum by the card")?,
            (Ok(()), _) => writeln!(f, "  checksum by the kernel, while it copies")?,
            (Err(Unsupported::NotRequested | Unsupported::Mode(_)), _) => {}
            (Err(why), _) => writeln!(f, "  checksum in software: {why}")?,
        }
        write!(f, "  memory   {frames} frames of {bytes} B on {pages}")?;
        area.config().numa_node.map_or(Ok(()), |node| write!(f, "; NUMA node {node}"))
    }
}
