//! Senders without a port: an AF_XDP socket in copy mode, and nothing on the interface.
//!
//! A port attaches a program even where it only sends, because in zero-copy some drivers ask for one; that is refused where another
//! program is attached, and makes some drivers reset the link. Copy mode asks for nothing of the kind: the kernel takes the
//! frames of any socket bound to a queue, makes socket buffers of them and hands those to the driver. So this is for programs that send
//! much on interfaces which are somebody else's business.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::{Backend, Inner, Mode, OpenError, PortBuilder, Sender};
use crate::memory::area::{Area, Half, none_in};
use crate::ring::{Consumer, Producer};
use crate::sys::capability;
use crate::sys::interface::{Condition, Inquiry, Interface};
use crate::sys::xsk::{Binding, Descriptor, RingSizes, TxKick, XskSocket};

/// Nothing is ever put on it.
const FILL_ENTRIES: u32 = 1;

/// Frames that hold a packet of the common MTU; longer ones are faster by a packet socket.
const FRAME_BYTES: u32 = 2048;

/// What stands behind such a sender.
pub(super) struct Unattached {
    pub(super) socket: XskSocket,
    /// See [`XdpBackend`](super::af_xdp::XdpBackend).
    pub(super) tx_index_lags: bool,
    pub(super) inquiry: Inquiry,
}

impl Unattached {
    /// Makes the kernel look at the tx ring.
    pub(super) fn kick(&self) -> io::Result<TxKick> {
        match self.socket.kick_tx() {
            // As with ports: the driver may just be starting its device anew.
            Err(error)
                if error.raw_os_error() == Some(libc::ENETDOWN)
                    && self.inquiry.condition() == Condition::Up =>
            {
                Ok(TxKick::Again)
            }
            done => done,
        }
    }
}

impl PortBuilder {
    /// Opens a sender alone, in copy mode: nothing is attached to the interface, and what arrives stays with the host. Of the
    /// settings, those of areas, frames and rings count; without an area, frames are of 2048 B whatever the MTU, and
    /// packets that fit none are refused one by one.
    ///
    /// What it sends goes straight to the driver: past the queueing discipline, and unseen by packet sockets that look on. While it
    /// is open, no other AF_XDP socket gets its queue.
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way. Another socket on the queue, too, and at once: there is no wait for one that is being
    /// closed.
    pub fn open_sender(mut self) -> Result<Sender, OpenError> {
        self.check()?;
        self.mode = Some(Mode::XdpCopyNative);
        self.send_metadata = false;
        let interface = self.examine()?;
        self.mtu_bytes = interface.mtu_bytes;
        let area = self.area_or_new(FRAME_BYTES, self.tx_frames, None)?;
        let (socket, tx, completion) = self.sending_socket(&interface, &area)?;
        let mut pool = area.pool(Half::Send, self.tx_frames)?;
        pool.set_offers(none_in(Mode::XdpCopyNative).1);
        let (_, inquiry) = self.attend(&interface)?;
        let tx_index_lags = !socket.raise_tx_budget(self.rings.tx);
        let inner = Inner {
            interface: self.interface.clone(),
            queue: self.queue,
            mode: Mode::XdpCopyNative,
            order: None,
            chain_frames_max: super::af_xdp::CHAIN_FRAMES_MAX,
            refusals: Vec::new(),
            measured: Vec::new(),
            multi_buffer: self.multi_buffer,
            filter: None,
            area,
            backend: Some(Backend::Unattached(Unattached { socket, tx_index_lags, inquiry })),
            left: AtomicBool::new(false),
            parked: Mutex::default(),
        };
        Ok(Sender::new(inner.into(), tx, completion, pool, &self))
    }

    fn sending_socket(
        &self,
        interface: &Interface,
        area: &Area,
    ) -> Result<(XskSocket, Producer<Descriptor>, Consumer<u64>), OpenError> {
        let mut socket = self.new_socket(capability::SENDER)?;
        self.register(&mut socket, area, false)?;
        let sizes = RingSizes { fill: FILL_ENTRIES, ..self.rings };
        let rings = socket.make_send_rings(sizes);
        let (tx, completion) = rings.map_err(|error| self.system("make the rings", error))?;
        let binding = Binding {
            interface_index: interface.index,
            queue: self.queue,
            zero_copy: false,
            need_wakeup: self.need_wakeup,
            multi_buffer: self.multi_buffer,
        };
        match socket.bind(binding) {
            Ok(()) => Ok((socket, tx, completion)),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    OpenError::QueueTaken { interface: self.interface.clone(), queue: self.queue }
                }
                Some(libc::ENETDOWN) => OpenError::Down { interface: self.interface.clone() },
                Some(libc::ENODEV) => OpenError::NoInterface { interface: self.interface.clone() },
                _ => self.system("bind", error),
            }),
        }
    }
}
