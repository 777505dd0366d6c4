//! Senders without a port: an AF_XDP socket in copy mode, with nothing attached to the interface.
//!
//! A port attaches a program even if it only sends, because in zero-copy mode some drivers need one.
//! Attaching is refused if another program is attached, and makes some drivers reset the link. Copy mode
//! needs no program: the kernel takes the frames of any socket bound to a queue, makes socket buffers of them
//! and passes those to the driver. So this is for programs that send many frames on interfaces whose
//! configuration they must not change.

use super::af_xdp::CHAIN_FRAMES_MAX;
use super::bound_socket::BoundXdpSocket;
use super::{Mode, NonblockingSender, OpenError, PortBuilder, Sender, SharedPort};
use crate::memory::area::{Area, PoolDirection, no_metadata_for_mode};
use crate::ring::{Consumer, Producer};
use crate::sys::capability;
use crate::sys::interface::Interface;
use crate::sys::xsk::{Descriptor, RingSizes, XskBinding, XskSocket};

/// Nothing is ever put on the fill ring.
const FILL_ENTRIES: u32 = 1;

/// Frames that hold a packet of the common MTU; longer packets are faster through a packet socket.
const FRAME_BYTES: u32 = 2048;

impl PortBuilder {
    /// Opens only a sender, in copy mode: nothing is attached to the interface, and arriving packets stay
    /// with the host. Of the settings, those of areas, frames and rings are used; without an area, frames
    /// have 2048 B whatever the MTU, and packets that do not fit are refused one by one.
    ///
    /// Sent packets go straight to the driver, past the queueing discipline, and capturing packet sockets do
    /// not see them. While the sender is open, no other AF_XDP socket can use its queue.
    ///
    /// # Errors
    /// [`OpenError`] says what prevents it. If another socket is on the queue, even one that is being closed,
    /// the call fails without waiting.
    #[doc(hidden)]
    pub fn open_sender(mut self) -> Result<Sender, OpenError> {
        self.check_settings()?;
        self.mode = Some(Mode::XdpCopyNative);
        self.send_metadata = false;
        let interface = self.check_interface()?;
        self.mtu_bytes = interface.mtu_bytes;
        let area = self.given_or_new_area(FRAME_BYTES, self.tx_frames, None)?;
        let (socket, tx, completion) = self.sending_socket(&interface, &area)?;
        let mut pool = area.pool(PoolDirection::Send, self.tx_frames)?;
        pool.set_offers(no_metadata_for_mode(Mode::XdpCopyNative).1);
        let (_, query) = self.promiscuous_and_query(&interface)?;
        let bound = BoundXdpSocket::new(&self, Mode::XdpCopyNative, socket, query);
        let inner =
            SharedPort::new(&self, interface.index, Mode::XdpCopyNative, CHAIN_FRAMES_MAX, area, bound);
        Ok(Sender(NonblockingSender::new(inner.into(), tx, completion, pool, &self)))
    }

    fn sending_socket(
        &self,
        interface: &Interface,
        area: &Area,
    ) -> Result<(XskSocket, Producer<Descriptor>, Consumer<u64>), OpenError> {
        let mut socket = self.new_xdp_socket(capability::SENDER)?;
        self.register_area(&mut socket, area, false)?;
        let sizes = RingSizes { fill: FILL_ENTRIES, ..self.rings };
        let rings = socket.make_send_rings(sizes);
        let (tx, completion) = rings.map_err(|error| self.system_error("make the rings", error))?;
        let binding = XskBinding {
            interface_index: interface.index,
            queue: self.queue,
            zero_copy: false,
            need_wakeup: self.tuning.need_wakeup,
            multi_buffer: self.multi_buffer,
        };
        match socket.bind(binding) {
            Ok(()) => Ok((socket, tx, completion)),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    OpenError::QueueTaken { interface: self.interface.clone(), queue: self.queue }
                }
                _ => self.interface_error("bind", error),
            }),
        }
    }
}
