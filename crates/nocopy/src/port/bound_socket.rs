//! The sending part of a bound AF_XDP socket: all of a sender without a port, and half of a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::backend::{Backend, KernelRingFeatures};
use super::{Mode, PortBuilder, Statistics};
use crate::sys::interface::{InterfaceQuery, LinkState};
use crate::sys::xsk::{TxKick, XskSocket};

#[derive(Debug)]
pub(super) struct BoundXdpSocket {
    pub(super) socket: XskSocket,
    tx_index_lags: bool,
    pub(super) query: InterfaceQuery,
}

impl BoundXdpSocket {
    pub(super) fn new(settings: &PortBuilder, mode: Mode, socket: XskSocket, query: InterfaceQuery) -> Self {
        // The option appeared one version after the index stopped lagging.
        let tx_index_lags = mode != Mode::XdpZeroCopy && !socket.raise_tx_budget(settings.rings.tx);
        Self { socket, tx_index_lags, query }
    }

    /// Whether the driver refuses only because it is restarting its device, as some do when queues change, or
    /// when the carrier is lost while frames wait to be sent (igb). The interface is up nevertheless.
    #[cold]
    pub(super) fn is_device_resetting(&self, error: &io::Error) -> bool {
        error.raw_os_error() == Some(libc::ENETDOWN) && self.query.link_state() == LinkState::Up
    }
}

impl Backend for BoundXdpSocket {
    fn statistics(&self) -> io::Result<Statistics> {
        self.socket.statistics()
    }

    fn kick_tx(&self) -> io::Result<TxKick> {
        match self.socket.kick_tx() {
            Err(error) if self.is_device_resetting(&error) => Ok(TxKick::Again),
            done => done,
        }
    }

    fn check_alive(&self) -> io::Result<()> {
        self.kick_tx().map(drop)
    }

    fn kernel_ring_features(&self) -> Option<KernelRingFeatures> {
        Some(KernelRingFeatures {
            takes_requests: self.socket.takes_requests,
            tx_index_lags: self.tx_index_lags,
        })
    }
}

impl AsFd for BoundXdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
