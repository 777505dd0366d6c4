//! The ladder: the modes of AF_XDP, tried from the fastest down until one works.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::open::PAGE_BYTES;
use super::redirect::Redirect;
use super::{Mode, OpenError, PortBuilder};
use crate::area::Area;
use crate::sys::interface::Interface;
use crate::sys::xsk::{Binding, XskSocket};
use crate::xdp::{self, Attach};

/// From the fastest down.
pub(crate) const LADDER: [Mode; 3] = [Mode::XdpZeroCopy, Mode::XdpCopyNative, Mode::XdpCopyGeneric];

/// How long to wait for the kernel to let go of a queue whose socket was just closed: that is done by a worker.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A mode that was tried and refused.
#[derive(Debug)]
pub struct Refusal {
    /// The mode.
    pub mode: Mode,
    /// What the kernel said, or why it was not asked.
    pub reason: io::Error,
    step: Step,
    interface: String,
    /// As the subject of a sentence.
    driver: String,
}

/// How far it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Frames of this size would not do: nothing was asked of the kernel.
    Frames { bytes: u32 },
    /// The XDP program was refused.
    Attach,
    /// The socket was refused.
    Bind,
}

impl Refusal {
    /// What the reason means here, and what would open this mode; `None` where it cannot be told.
    pub fn remedy(&self) -> Option<String> {
        let Self { interface, driver, .. } = self;
        if let Step::Frames { bytes } = self.step {
            let lower = || format!("lower it with 'ip link set dev {interface} mtu 1500'");
            return Some(if bytes < PAGE_BYTES { format!("use frames of {PAGE_BYTES} B") } else { lower() });
        }
        Some(match (self.step, self.mode, self.reason.raw_os_error()?) {
            (Step::Attach, _, libc::EOPNOTSUPP) => {
                format!(
                    "{driver} has no native XDP, or not as it is set up now (offloads); 'nocopy doctor' tells which"
                )
            }
            (Step::Attach, _, libc::ERANGE) => {
                format!("the MTU is more than {driver} gives to XDP; 'ip link set dev {interface} mtu 1500'")
            }
            (Step::Attach, _, libc::EINVAL) => {
                format!("{driver} takes no XDP as it is set up now; the kernel log may say why: 'dmesg'")
            }
            (Step::Bind, Mode::XdpZeroCopy, libc::EOPNOTSUPP) => {
                format!("{driver} has no AF_XDP zero-copy in this kernel; a newer kernel or another card may")
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.mode, self.reason)?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, ": {remedy}"))
    }
}

impl PortBuilder {
    /// Walks the modes from the fastest down, or takes the one asked for, and keeps each refusal.
    pub(super) fn climb(
        &self,
        interface: &Interface,
        area: &Area,
        socket: &XskSocket,
    ) -> Result<(Arc<Redirect>, Mode, Vec<Refusal>), OpenError> {
        let refusal = |mode, step, reason| {
            let (interface, driver) = (interface.name.clone(), interface.driver_words());
            Refusal { mode, reason, step, interface, driver }
        };
        let mut refusals = Vec::new();
        let mut native: Option<Arc<Redirect>> = None;
        for mode in LADDER.into_iter().filter(|mode| self.mode.is_none_or(|wanted| wanted == *mode)) {
            if mode == Mode::XdpZeroCopy
                && Self::zero_copy_frame_bytes(interface, area.headroom_bytes()) > area.frame_bytes()
                && !interface.loopback
            {
                refusals.push(refusal(mode, Step::Frames { bytes: area.frame_bytes() }, spread(interface)));
                continue;
            }
            let at = if mode == Mode::XdpCopyGeneric { Attach::Generic } else { Attach::Native };
            // An interface runs its program in one place only.
            let reused = native.take().filter(|redirect| redirect.at == at);
            let redirect = match reused.map_or_else(|| Redirect::on(interface, at, self.displace), Ok) {
                Ok(redirect) => redirect,
                Err(error) => {
                    refusals.push(refusal(mode, Step::Attach, refused_here(at, error)?));
                    continue;
                }
            };
            match self.bind(interface, socket, mode == Mode::XdpZeroCopy)? {
                Ok(()) => return Ok((redirect, self.reported_mode(socket, at)?, refusals)),
                Err(reason) => refusals.push(refusal(mode, Step::Bind, reason)),
            }
            native = Some(redirect);
        }
        Err(OpenError::NoMode { interface: self.interface.clone(), queue: self.queue, refusals })
    }

    /// Binds; a refusal of this mode is the inner error, anything worse the outer one.
    fn bind(
        &self,
        interface: &Interface,
        socket: &XskSocket,
        zero_copy: bool,
    ) -> Result<Result<(), io::Error>, OpenError> {
        let (interface_index, queue, need_wakeup) = (interface.index, self.queue, self.need_wakeup);
        let give_up = Instant::now() + RELEASE_TIMEOUT;
        loop {
            let Err(error) = socket.bind(Binding { interface_index, queue, zero_copy, need_wakeup }) else {
                return Ok(Ok(()));
            };
            match error.raw_os_error() {
                Some(libc::EBUSY) if Instant::now() < give_up => std::thread::sleep(RETRY_INTERVAL),
                Some(libc::EBUSY) => {
                    return Err(OpenError::QueueTaken { interface: self.interface.clone(), queue });
                }
                Some(libc::ENETDOWN) => return Err(OpenError::Down { interface: self.interface.clone() }),
                Some(libc::ENODEV) => {
                    return Err(OpenError::NoInterface { interface: self.interface.clone() });
                }
                _ => return Ok(Err(error)),
            }
        }
    }

    /// The mode by the kernel's own word.
    fn reported_mode(&self, socket: &XskSocket, at: Attach) -> Result<Mode, OpenError> {
        let zero_copy = socket.is_zero_copy().map_err(|error| self.system("read XDP_OPTIONS", error))?;
        Ok(match (zero_copy, at) {
            (true, _) => Mode::XdpZeroCopy,
            (false, Attach::Native) => Mode::XdpCopyNative,
            (false, Attach::Generic) => Mode::XdpCopyGeneric,
        })
    }
}

fn spread(interface: &Interface) -> io::Error {
    let (driver, mtu_bytes) = (interface.driver_words(), interface.mtu_bytes);
    let words = format!(
        "{driver} counts buffers in KiB and would spread packets of MTU {mtu_bytes} over several frames"
    );
    io::Error::new(io::ErrorKind::InvalidInput, words)
}

/// What the kernel said, if it refused the program in the driver for a reason that may not hold outside it.
fn refused_here(at: Attach, error: xdp::Error) -> Result<io::Error, OpenError> {
    match error {
        xdp::Error::NoNative { source, .. }
        | xdp::Error::Mtu { source, .. }
        | xdp::Error::System { source, .. }
            if at == Attach::Native =>
        {
            Ok(source)
        }
        error => Err(error.into()),
    }
}
