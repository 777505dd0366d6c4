//! Filter and counts of a capture, for use by several threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nocopy_proto::filter::{Instruction, Program};

use super::open_error::OpenError;
use crate::events::{Half, Subject};
use crate::sys::packet::PacketSocket;

/// What the kernel counted for a capture since it was opened, under the kernel's names
/// (`struct tpacket_stats_v3`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureTotals {
    /// Packets that matched the filter, including those then dropped.
    pub tp_packets: u64,
    /// Packets dropped because no block was free.
    pub tp_drops: u64,
    /// How often the kernel reached a block that was not free.
    pub tp_freeze_q_cnt: u64,
}

/// How many blocks are in use: the program holds them, or they wait to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockUsage {
    /// Blocks that the kernel cannot write to.
    pub used: u32,
    /// All blocks.
    pub total: u32,
}

impl BlockUsage {
    /// `used / total`, from 0 to 1.
    pub fn used_ratio(&self) -> f64 {
        f64::from(self.used) / f64::from(self.total.max(1))
    }
}

#[derive(Debug)]
pub(super) struct CaptureState {
    interface: String,
    pub(super) socket: PacketSocket,
    snap_bytes: u32,
    has_filter: AtomicBool,
    // Sums of the kernel's counts. No other memory depends on them, so relaxed ordering suffices.
    packets: AtomicU64,
    drops: AtomicU64,
    freezes: AtomicU64,
}

impl CaptureState {
    pub(super) fn new(interface: String, socket: PacketSocket, snap_bytes: u32, has_filter: bool) -> Self {
        let [packets, drops, freezes] = [const { AtomicU64::new(0) }; 3];
        Self { interface, socket, snap_bytes, has_filter: has_filter.into(), packets, drops, freezes }
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    /// The capture, for events.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { half: Half::Capture, interface: Some(&self.interface), queue: None }
    }

    pub(super) fn has_filter(&self) -> bool {
        self.has_filter.load(Ordering::Relaxed)
    }

    /// The totals. Reading restarts the kernel's counters, so each answer is added exactly once, whichever
    /// thread asks.
    pub(super) fn totals(&self) -> io::Result<CaptureTotals> {
        let since = self.socket.take_counts()?;
        let add = |sum: &AtomicU64, more: u32| {
            sum.fetch_add(more.into(), Ordering::Relaxed).wrapping_add(more.into())
        };
        Ok(CaptureTotals {
            tp_packets: add(&self.packets, since.packets),
            tp_drops: add(&self.drops, since.drops),
            tp_freeze_q_cnt: add(&self.freezes, since.freezes),
        })
    }
}

/// A capture's filter and counts for use outside the thread that receives: another thread, or a signal
/// handler. It keeps the capture's socket open.
#[derive(Debug, Clone)]
pub struct Control {
    pub(super) shared: Arc<CaptureState>,
}

impl Control {
    /// Replaces the kernel's filter; `None` accepts everything. The change is atomic: each packet is checked
    /// by either the old or the new filter. Packets that the old filter accepted stay in their blocks,
    /// including the block that the kernel is writing.
    ///
    /// # Errors
    /// [`OpenError::Filter`] and [`OpenError::System`]; the old filter stays.
    pub fn set_filter(&self, filter: Option<&Program>) -> Result<(), OpenError> {
        self.replace_filter(packet_socket_filter(filter, &self.shared.interface)?.as_ref())
    }

    /// As [`Control::set_filter`], for a filter as libpcap compiles it for live captures: packet sockets get
    /// the VLAN tag separate from the frame (`SKF_AD_VLAN_TAG`).
    ///
    /// # Errors
    /// [`OpenError::System`]; the old filter stays.
    pub fn set_socket_filter(&self, filter: Option<&Program>) -> Result<(), OpenError> {
        self.replace_filter(filter)
    }

    fn replace_filter(&self, filter: Option<&Program>) -> Result<(), OpenError> {
        let CaptureState { interface, socket, snap_bytes, has_filter, .. } = &*self.shared;
        socket.replace_filter(&limited_instructions(filter, *snap_bytes)).map_err(|source| {
            OpenError::System { interface: interface.clone(), operation: "set the filter", source }
        })?;
        has_filter.store(filter.is_some(), Ordering::Relaxed);
        Ok(())
    }

    /// What the kernel counted so far: one system call, no lock and no allocation, so a signal handler may
    /// call it.
    ///
    /// # Errors
    /// The kernel refused the system call.
    pub fn totals(&self) -> io::Result<CaptureTotals> {
        self.shared.totals()
    }
}

impl AsFd for Control {
    /// The capture's descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

/// A filter written for frames on the wire, changed for a socket that gets frames without their VLAN tags.
pub(super) fn packet_socket_filter(
    filter: Option<&Program>,
    interface: &str,
) -> Result<Option<Program>, OpenError> {
    let filter = filter.map(Program::for_packet_socket).transpose();
    filter.map_err(|source| OpenError::Filter { interface: interface.to_owned(), source })
}

/// The filter, or one that accepts everything; it returns how many bytes to keep.
pub(super) fn limited_instructions(filter: Option<&Program>, snap_bytes: u32) -> Vec<Instruction> {
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let everything = [Instruction { code: RETURN, jump_true: 0, jump_false: 0, constant: u32::MAX }];
    let instructions = filter.map_or(&everything[..], Program::instructions);
    let limited = instructions.iter().map(|&instruction| match instruction {
        Instruction { code: RETURN, constant, .. } => {
            Instruction { constant: constant.min(snap_bytes), ..instruction }
        }
        other => other,
    });
    limited.collect()
}
