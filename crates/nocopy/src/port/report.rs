//! What a port is and how it came to be that, in a few lines for people.

use std::fmt;

use super::{FilterPlace, Inner, Mode};

/// Prints the port's mode, what is known of copies, each better mode with the reason it was refused and what would open it,
/// and the memory; see [`Port::report`](super::Port::report).
#[derive(Debug)]
pub struct Report<'port>(pub(super) &'port Inner);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { interface, queue, mode, order, refusals, measured, area, .. } = self.0;
        writeln!(f, "{interface} queue {queue}: {mode}, {}", self.0.evidence())?;
        if let Some(why) = order {
            writeln!(f, "  order    {why}")?;
        }
        if *mode == Mode::PacketRing {
            writeln!(f, "  host     has every packet too: this mode only looks on")?;
            if !self.0.multi_buffer {
                let joined = "packets that the kernel has joined (GRO, GSO) and no frame holds are dropped and counted";
                writeln!(f, "  long     {joined}; 'multi_buffer' takes them")?;
            }
        }
        match &self.0.filter {
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
        for refusal in refusals {
            writeln!(f, "  refused  {refusal}")?;
        }
        let (frames, bytes, pages) = (area.frame_count(), area.frame_bytes(), area.pages());
        write!(f, "  memory   {frames} frames of {bytes} B on {pages}")?;
        area.numa_node().map_or(Ok(()), |node| write!(f, "; NUMA node {node}"))
    }
}
