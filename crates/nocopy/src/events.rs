//! Events of the feature `tracing`: what `explain` or `ledger` of a half did not say before, in their words.
//!
//! All have the target `nocopy`. Absent fields are not recorded. The table in the documentation of the crate
//! shows which event has which.
//!
//! *Warn* is for what an administrator may want to change: a mode that a port did not get. All else is
//! *info*, for most copies are what was asked for (small datagrams, slices, a stream to this machine), and a
//! method that is ruled out is part of the search for the fastest: with thousands of streams, warnings about
//! those would hide the others.
//!
//! Nothing is done per packet. What changes a method is rare and not inlined; a copy is compared with what
//! was reported once a batch, where its bytes are counted or handed over. Without the feature there is
//! no comparison.

use std::fmt::Display;

use crate::facts::evidence::{Cause, Evidence, Ledger};
#[cfg(feature = "port")]
use crate::facts::method_explanation::Refusal;
#[cfg(feature = "port")]
use crate::facts::mode::Mode;

/// Whether there are events.
pub(crate) const ENABLED: bool = cfg!(feature = "tracing");

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "halves that are not built")]
pub(crate) enum Half {
    Capture,
    MessageEndpoint,
    Port,
    PortReceiver,
    PortSender,
    TcpReceiver,
    TcpSender,
    ToHost,
    UdpReceiver,
    UdpSender,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::MessageEndpoint => "message endpoint",
            Self::Port => "port",
            Self::PortReceiver => "port receiver",
            Self::PortSender => "port sender",
            Self::TcpReceiver => "tcp receiver",
            Self::TcpSender => "tcp sender",
            Self::ToHost => "to host",
            Self::UdpReceiver => "udp receiver",
            Self::UdpSender => "udp sender",
        }
    }
}

/// A half, and the interface and queue that it works on, if it is of a port or a capture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) half: Half,
    pub(crate) interface: Option<&'a str>,
    pub(crate) queue: Option<u32>,
}

impl From<Half> for Subject<'_> {
    fn from(half: Half) -> Self {
        Self { half, interface: None, queue: None }
    }
}

/// The fields of an event beside its subject.
#[derive(Clone, Copy, Default)]
struct Fields<'a> {
    method: Option<&'a dyn Display>,
    work: Option<&'a dyn Display>,
    mode: Option<&'a dyn Display>,
    cause: Option<&'a dyn Display>,
    reason: Option<&'a dyn Display>,
}

#[derive(Clone, Copy)]
enum Severity {
    Info,
    #[cfg_attr(not(feature = "port"), expect(dead_code, reason = "only ports are refused modes"))]
    Warn,
}

/// For a class of sends or receives another method is used than before, which `former` explains.
#[cold]
pub(crate) fn method_changed(half: Half, method: &dyn Display, work: &dyn Display, former: &dyn Display) {
    let fields = Fields { method: Some(method), work: Some(work), reason: Some(former), ..Fields::default() };
    emit(Severity::Info, "method changed", half.into(), fields);
}

/// A method is not used any more, or for other reasons than before.
#[cold]
pub(crate) fn method_ruled_out(half: Half, method: &dyn Display, reason: &dyn Display) {
    let fields = Fields { method: Some(method), reason: Some(reason), ..Fields::default() };
    emit(Severity::Info, "method ruled out", half.into(), fields);
}

/// A port or a capture was opened in this mode, after these were refused.
#[cfg(feature = "port")]
#[cold]
pub(crate) fn mode_taken(subject: Subject<'_>, mode: Mode, order: Option<&str>, refusals: &[Refusal]) {
    for refusal in refusals {
        let fields = Fields { mode: Some(&refusal.mode), reason: Some(refusal), ..Fields::default() };
        emit(Severity::Warn, "mode refused", subject, fields);
    }
    let reason = order.as_ref().map(|order| order as &dyn Display);
    emit(Severity::Info, "mode taken", subject, Fields { mode: Some(&mode), reason, ..Fields::default() });
}

/// A half has copied for this cause for the first time.
#[cold]
pub(crate) fn first_copy(subject: Subject<'_>, cause: Cause) {
    emit(Severity::Info, "first copy", subject, Fields { cause: Some(&cause), ..Fields::default() });
}

#[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "there are no events"))]
fn emit(severity: Severity, message: &str, subject: Subject<'_>, fields: Fields<'_>) {
    let Subject { half, interface, queue } = subject;
    let half = half.name();
    let Fields { method, work, mode, cause, reason } = fields;
    #[cfg(feature = "tracing")]
    {
        use tracing::field::display;
        let [method, work, mode, cause, reason] =
            [method, work, mode, cause, reason].map(|field| field.map(display));
        macro_rules! event {
            ($level:expr) => {
                tracing::event!(
                    target: "nocopy", $level, half, interface, queue, method, work, mode, cause, reason, "{message}"
                )
            };
        }
        match severity {
            Severity::Info => event!(tracing::Level::INFO),
            Severity::Warn => event!(tracing::Level::WARN),
        }
    }
}

/// Adds to a half's ledger, once a batch. The first bytes copied for a cause are an event.
#[inline(always)]
pub(crate) fn add_to_ledger(ledger: &mut Ledger, half: Half, evidence: Evidence, datagrams: u64, bytes: u64) {
    if ENABLED
        && let Evidence::Copied(cause) = evidence
        && ledger.bytes_of(evidence) == 0
        && bytes > 0
    {
        first_copy(half.into(), cause);
    }
    ledger.add(evidence, datagrams, bytes);
}

/// A set of causes: a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Causes(u32);

const _: () = assert!(Cause::ALL.len() <= u32::BITS as usize, "a bit for each cause");

impl Causes {
    /// With the cause of the evidence, if there is one, and if it has bytes.
    #[inline(always)]
    #[cfg_attr(not(feature = "port"), allow(dead_code, reason = "ledgers of halves that are not built"))]
    pub(crate) fn with(self, evidence: Evidence, bytes: u64) -> Self {
        match evidence {
            Evidence::Copied(cause) => Self(self.0 | u32::from(bytes > 0) << cause as u32),
            _ => self,
        }
    }
}

/// The causes that a half has reported which makes its ledger only when asked for it.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "port"), allow(dead_code, reason = "ledgers of halves that are not built"))]
pub(crate) struct ReportedCauses(Causes);

#[cfg_attr(not(feature = "port"), allow(dead_code, reason = "ledgers of halves that are not built"))]
impl ReportedCauses {
    /// Makes an event of each cause that is `present` and was not before; to be called once a batch.
    #[inline(always)]
    pub(crate) fn update<'a>(
        &mut self,
        subject: impl FnOnce() -> Subject<'a>,
        present: impl FnOnce() -> Causes,
    ) {
        if ENABLED {
            let present = present();
            if present.0 & !self.0.0 != 0 {
                self.report(subject(), present);
            }
        }
    }

    #[cold]
    fn report(&mut self, subject: Subject<'_>, present: Causes) {
        let new = Causes(present.0 & !self.0.0);
        let causes = Cause::ALL.into_iter().filter(|&cause| new.0 & (1 << cause as u32) != 0);
        causes.for_each(|cause| first_copy(subject, cause));
        self.0.0 |= new.0;
    }
}

#[cfg(all(test, feature = "tracing"))]
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../tests/common/events.rs"]
pub(crate) mod recorder;
