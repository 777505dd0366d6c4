//! Futures that are polled by hand, to be dropped at any of their await points.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nocopy_lab::patience::PATIENCE;

/// Counts the calls of a waker.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

pub(crate) struct PolledFuture<F> {
    future: Pin<Box<F>>,
    wakes: Arc<WakeCount>,
}

impl<F: Future> PolledFuture<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    /// Polls once, and returns the result if there is one.
    pub(crate) fn poll(&mut self) -> Option<F::Output> {
        self.wakes.0.store(0, Relaxed);
        let waker = Waker::from(Arc::clone(&self.wakes));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Waits until the future was woken since the last poll.
    pub(crate) async fn wait_until_woken(&self) {
        let woken = async {
            while self.wakes.0.load(Relaxed) == 0 {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, woken).await.expect("woken in time");
    }
}

/// Polls a future that does not end, `polls` times, and drops it. After each poll, the last one, too, `event`
/// makes something happen that wakes it.
pub(crate) async fn poll_and_drop<F: Future>(future: F, polls: usize, mut event: impl FnMut()) {
    let mut polled = PolledFuture::new(future);
    for poll in 1..=polls {
        assert!(polled.poll().is_none(), "still waiting at poll {poll}");
        event();
        polled.wait_until_woken().await;
    }
}

/// Whether a future does not end at its first poll; it is dropped.
pub(crate) fn is_pending(future: impl Future) -> bool {
    PolledFuture::new(future).poll().is_none()
}
