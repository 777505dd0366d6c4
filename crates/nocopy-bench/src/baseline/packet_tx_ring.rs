//! A sending ring of a packet socket: frames are written into memory shared with the kernel, and a socket
//! buffer refers to it. A minimal loop.
#![allow(unsafe_code)]

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::packet_ring::map_ring;
use super::packet_socket::{NOTHING, bind_to_interface, open_packet_socket, set_packet_option};
use crate::frame::FrameTemplate;
use crate::window::WindowGauge;

/// Slots: enough for two batches.
const SLOTS: usize = 128;

/// The default offset of a packet in its slot: after the header (`TPACKET2_HDRLEN`, without the address).
const PACKET_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

#[derive(Debug)]
pub(crate) struct PacketTxRing {
    socket: OwnedFd,
    /// `SLOTS * slot_bytes` long, mapped until drop.
    memory: NonNull<u8>,
    slot_bytes: usize,
    next_slot: usize,
}

// SAFETY: the mapping belongs to this value alone, and memory is not bound to a thread.
unsafe impl Send for PacketTxRing {}

impl PacketTxRing {
    /// On an interface of the calling thread's namespace, for frames of that many bytes, bypassing the
    /// queueing discipline.
    pub(crate) fn open(interface_index: u32, frame_bytes: usize) -> io::Result<Self> {
        let socket = open_packet_socket()?;
        set_packet_option(&socket, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        set_packet_option(&socket, libc::PACKET_QDISC_BYPASS, &1_i32)?;
        let slot_bytes = (PACKET_OFFSET + frame_bytes).next_power_of_two();
        // A block consists of whole pages, and holds all slots.
        let request = libc::tpacket_req {
            tp_block_size: (SLOTS * slot_bytes) as u32,
            tp_block_nr: 1,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set_packet_option(&socket, libc::PACKET_TX_RING, &request)?;
        let memory = map_ring(&socket, SLOTS * slot_bytes)?;
        let ring = Self { socket, memory, slot_bytes, next_slot: 0 };
        bind_to_interface(&ring.socket, interface_index, NOTHING)?;
        Ok(ring)
    }

    /// Writes frames in place and sends them in batches.
    pub(crate) fn send(&mut self, template: &FrameTemplate, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let (mut sequence, batch) = (0, template.batch_size() as u64);
        while gauge.may_send() {
            let first = sequence;
            while sequence - first < batch && self.is_slot_free() {
                self.write_frame(template, sequence);
                sequence += 1;
            }
            rustix::net::send(&self.socket, &[], rustix::net::SendFlags::empty())?;
            gauge.count_packets(sequence - first);
        }
        Ok(())
    }

    /// Whether the kernel is done with the next slot.
    fn is_slot_free(&self) -> bool {
        // Pairs with the kernel's write of the status, after its last access to the packet.
        self.slot_status().load(Ordering::Acquire) == libc::TP_STATUS_AVAILABLE
    }

    fn write_frame(&mut self, template: &FrameTemplate, sequence: u64) {
        let length = template.bytes().len();
        let slot = self.slot_address();
        // SAFETY: the slot lies in the mapping and is ours while its status says so (`send`); header and
        // packet fit it (`open`), and nothing else refers to them.
        let packet = unsafe {
            slot.add(offset_of!(libc::tpacket2_hdr, tp_len)).cast::<u32>().write(length as u32);
            std::slice::from_raw_parts_mut(slot.add(PACKET_OFFSET).as_ptr(), length)
        };
        template.write_frame(packet, sequence);
        // Pairs with the kernel's read of the status before it reads the packet.
        self.slot_status().store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next_slot = (self.next_slot + 1) % SLOTS;
    }

    fn slot_address(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping, which is that long.
        unsafe { self.memory.add(self.next_slot * self.slot_bytes) }
    }

    /// The status word of the next slot, by which it changes owner.
    fn slot_status(&self) -> &AtomicU32 {
        // SAFETY: the status is the first word of the slot's header, inside the mapping and aligned, for as
        // long as `self` lives; the kernel and we access it atomically only.
        unsafe { AtomicU32::from_ptr(self.slot_address().cast().as_ptr()) }
    }
}

impl Drop for PacketTxRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no reference into it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), SLOTS * self.slot_bytes) };
    }
}
