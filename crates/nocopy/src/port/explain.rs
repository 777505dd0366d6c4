//! The explanation of a port: its mode, and why.

use std::fmt;

use super::{FilterPlace, Mode, SharedPort};
use crate::facts::metadata::Unsupported;
use crate::facts::method_explanation::Explanation;
use crate::memory::area::AreaConfig;

impl SharedPort {
    pub(super) fn explanation(&self) -> Explanation {
        let mut explanation = Explanation::from_choice(&ExplanationLines(self), self.evidence());
        explanation.refusals.clone_from(&self.refusals);
        explanation.filter.clone_from(&self.filter);
        explanation.checksum = self.offers.checksum;
        explanation.departure_clock = self.offers.timestamp;
        explanation
    }
}

/// The mode, the evidence about copies, each better mode with the reason of its refusal and a remedy, and the
/// memory.
struct ExplanationLines<'port>(&'port SharedPort);

impl fmt::Display for ExplanationLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedPort { interface, queue, mode, order, refusals, area, multi_buffer, .. } = self.0;
        writeln!(f, "{interface} queue {queue}: {mode}, {}", self.0.evidence())?;
        if let Some(why) = order {
            writeln!(f, "  order    {why}")?;
        }
        if *mode == Mode::PacketRing {
            writeln!(f, "  host     also gets every packet: this mode captures passively")?;
            if !multi_buffer {
                let joined = "packets joined by the kernel (GRO, GSO) that are too long for a frame are dropped and counted";
                writeln!(f, "  long     {joined}; 'multi_buffer' takes them")?;
            }
        }
        match &self.0.filter {
            None => {}
            Some(FilterPlace::Xdp) => {
                writeln!(
                    f,
                    "  filter   in front of the redirect: packets that do not match go to the host, uncopied"
                )?;
            }
            Some(FilterPlace::Socket) => {
                writeln!(f, "  filter   at the socket: packets that do not match are not copied")?;
            }
            Some(FilterPlace::UserSpace(why)) => writeln!(f, "  filter   in user space: {why}")?,
        }
        for refusal in refusals {
            writeln!(f, "  refused  {refusal}")?;
        }
        let (&AreaConfig { frame_count: frames, frame_bytes: bytes, .. }, pages) =
            (area.config(), area.page_kind());
        match (self.0.offers.checksum, mode) {
            (Ok(()), Mode::XdpZeroCopy) => writeln!(f, "  checksum by the card")?,
            (Ok(()), _) => writeln!(f, "  checksum by the kernel, while it copies")?,
            (Err(Unsupported::NotRequested | Unsupported::Mode(_)), _) => {}
            (Err(why), _) => writeln!(f, "  checksum in software: {why}")?,
        }
        write!(f, "  memory   {frames} frames of {bytes} B on {pages}")?;
        area.config().numa_node.map_or(Ok(()), |node| write!(f, "; NUMA node {node}"))
    }
}
