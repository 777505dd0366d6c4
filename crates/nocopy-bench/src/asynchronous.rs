//! Programs of tokio, each over `tokio::net` and over this library's asynchronous halves.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use nocopy::udp::Receiver;
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::Failure;
use crate::baseline::datagram_receiver::open_receiver_socket;
use crate::frame;
use crate::stage::NetworkSite;
use crate::traffic::ThreadWork;
use crate::udp;
use crate::window::WindowGauge;

/// How long a receiver waits before it looks whether the trial is over.
const PATIENCE: Duration = Duration::from_millis(10);

/// The longest datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AsyncLibrary {
    Tokio,
    Nocopy,
}

impl AsyncLibrary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Nocopy => "nocopy",
        }
    }

    pub(crate) fn open_datagram_receiver(self, site: &NetworkSite) -> Result<ThreadWork<'static>, Failure> {
        Ok(match self {
            Self::Tokio => {
                let failed = Failure::step(self.name(), "open a receiver", "grant CAP_NET_ADMIN");
                let socket = open_receiver_socket(site).map_err(failed)?;
                Box::new(move |gauge| run_program(receive_by_recv_from(socket, gauge)))
            }
            Self::Nocopy => {
                let receiver = udp::open_receiver(site)?;
                Box::new(move |gauge| run_program(receive_by_stream(receiver, gauge)))
            }
        })
    }
}

/// Runs a program on the calling thread alone.
pub(crate) fn run_program<T>(program: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(program)
}

async fn receive_by_recv_from(socket: std::net::UdpSocket, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    receive_each(gauge, async || {
        let (bytes, _) = socket.recv_from(&mut buffer).await?;
        frame::read_every_byte(&buffer[..bytes]);
        Ok(())
    })
    .await
}

async fn receive_by_stream(receiver: Receiver, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let mut datagrams = receiver.into_async()?;
    receive_each(gauge, async || {
        // As `StreamExt::next` of futures-util does.
        let next = poll_fn(|cx| Pin::new(&mut datagrams).poll_next(cx)).await;
        let datagram = next.ok_or(io::ErrorKind::UnexpectedEof)??;
        frame::read_every_byte(&datagram);
        Ok(())
    })
    .await
}

/// Receives datagrams one by one until the trial is over. The limit of time is one for many datagrams: one
/// for each would cost more than some of them.
async fn receive_each(
    gauge: &mut WindowGauge<'_>,
    mut receive_one: impl AsyncFnMut() -> io::Result<()>,
) -> io::Result<()> {
    while gauge.may_receive() {
        let receive = async {
            while gauge.may_receive() {
                receive_one().await?;
                gauge.count_packets(1);
            }
            Ok(())
        };
        match timeout(PATIENCE, receive).await {
            Ok(done) => return done,
            Err(_) => gauge.count_packets(0),
        }
    }
    Ok(())
}
