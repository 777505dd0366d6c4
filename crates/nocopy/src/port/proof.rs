//! Proves with one frame that a socket sends: some drivers accept frames and send nothing.

use std::io;
use std::time::{Duration, Instant};

use super::OpenError;
use super::PortBuilder;
use super::drivers::{self, PROBE_FRAME_TIMEOUT, QuirkEffect};
use crate::memory::area::{Area, AreaError, Faults, LentFramesOnClose, PoolDirection};
use crate::ring::{Consumer, Producer};
use crate::sys::interface::{self, Interface};
use crate::sys::xsk::{Descriptor, PortRings, XskSocket};

/// An EtherType for experiments (IEEE 802 local experimental 1), which no network stack uses.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// The shortest Ethernet frame, without its check sequence.
const FRAME_BYTES: usize = 60;

const POLL_INTERVAL: Duration = Duration::from_micros(100);

impl PortBuilder {
    /// How long zero-copy may take to send the frame, if a proof is needed.
    fn proof_timeout(&self, interface: &Interface) -> Option<Duration> {
        let known = drivers::has_quirk_effect(interface.driver.as_deref(), QuirkEffect::ProbeFrame);
        self.tuning.probe_frame.or(known.then_some(PROBE_FRAME_TIMEOUT))
    }

    /// Frames that an area loses if a proof fails.
    pub(super) fn proof_frames(&self, interface: &Interface) -> u32 {
        u32::from(self.proof_timeout(interface).is_some())
    }

    /// Whether a socket just bound in zero-copy mode sends. It is tested only if the user or the table of
    /// drivers asks for it, with a frame addressed to the interface itself, so that no other host receives
    /// it.
    pub(super) fn is_zero_copy_proven(
        &self,
        interface: &Interface,
        area: &Area,
        socket: &XskSocket,
        rings: &mut PortRings,
    ) -> Result<bool, OpenError> {
        let Some(timeout) = self.proof_timeout(interface) else { return Ok(true) };
        self.wait_for_carrier(true)?; // without one, no card sends
        let mac = interface::hardware_address(&self.interface)
            .map_err(|error| self.system_error("read the hardware address", error))?;
        let kick = || socket.kick_tx().map(drop);
        let proven = probe_frame_completes(area, &mut rings.tx, &mut rings.completion, mac, timeout, kick)?;
        proven.map_err(|error| self.half_error("send a frame as proof", error))
    }
}

/// Sends one frame and waits up to `timeout` for its completion. Without one, the frame is retired with its
/// pool.
fn probe_frame_completes(
    area: &Area,
    tx: &mut Producer<Descriptor>,
    completion: &mut Consumer<u64>,
    mac: [u8; 6],
    timeout: Duration,
    mut kick: impl FnMut() -> io::Result<()>,
) -> Result<io::Result<bool>, AreaError> {
    let pool = area.pool(PoolDirection::Send, 1)?;
    let mut frame = pool.take_frame().expect("the pool has one");
    let bytes = frame.append(FRAME_BYTES).expect("a frame holds the shortest packet");
    bytes.fill(0);
    bytes[..6].copy_from_slice(&mac);
    bytes[6..12].copy_from_slice(&mac);
    bytes[12..14].copy_from_slice(&ETHERTYPE);
    let descriptor = pool.lend(frame).expect("a frame of this area");
    pool.count_lent(1);
    tx.push(descriptor).expect("a new ring has room");
    tx.publish();
    let (started, mut faults) = (Instant::now(), Faults::default());
    let proven = loop {
        if started.elapsed() >= timeout {
            break Ok(false);
        }
        if let Err(error) = kick() {
            break Err(error);
        }
        if pool.reap(completion, u32::MAX, &mut faults, &mut Vec::new()) > 0 {
            break Ok(true);
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    pool.close(LentFramesOnClose::Retire);
    Ok(proven)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::area::AreaConfig;
    use crate::ring;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// Both for waits that succeed and for one that does not.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(5);

    /// A kernel that answers each kick with `answer`, which gets its end of the tx ring.
    fn run_proof(
        timeout: Duration,
        mut answer: impl FnMut(Option<Descriptor>) -> io::Result<Option<u64>>,
    ) -> (io::Result<bool>, Area, Vec<Descriptor>) {
        let area = Area::new(AreaConfig { frame_count: 4, ..AreaConfig::default() }).unwrap();
        let (mut tx, mut kernel_tx) = ring::pair(4);
        let (mut kernel_completion, mut completion) = ring::pair(4);
        let mut seen = Vec::new();
        let kick = || {
            let descriptor = kernel_tx.ready_entries(1).next();
            seen.extend(descriptor);
            if let Some(address) = answer(descriptor)? {
                let _ = kernel_completion.push(address); // a full ring: the liar has said enough
                kernel_completion.publish();
            }
            Ok(())
        };
        let proven = probe_frame_completes(&area, &mut tx, &mut completion, MAC, timeout, kick).unwrap();
        (proven, area, seen)
    }

    #[test]
    fn a_returned_frame_proves_zero_copy() {
        let (proven, area, seen) = run_proof(LONG, |sent| Ok(sent.map(|sent| sent.address)));
        assert!(proven.unwrap());
        let [sent] = seen[..] else { panic!("one frame expected: {seen:?}") };
        assert_eq!(sent.len as usize, FRAME_BYTES);
        let balance = area.balance();
        assert!(balance.free == 4 && balance.is_balanced(), "{balance}");
    }

    #[test]
    fn no_answer_and_invalid_addresses_prove_nothing() {
        let silence = |_| Ok(None);
        let (proven, area, _) = run_proof(SHORT, silence);
        assert!(!proven.unwrap());
        assert_eq!((area.balance().free, area.balance().retired), (3, 1));
        let (proven, area, _) = run_proof(SHORT, |_| Ok(Some(1 << 40)));
        assert!(!proven.unwrap());
        assert_eq!(area.balance().retired, 1);
    }

    #[test]
    fn a_kernel_error_during_the_proof_is_returned() {
        let (proven, area, _) = run_proof(LONG, |_| Err(io::Error::from_raw_os_error(libc::ENETDOWN)));
        assert_eq!(proven.unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
        assert!(area.balance().is_balanced());
    }
}
