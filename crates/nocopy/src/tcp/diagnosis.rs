//! Why pages were not mapped: facts, the most likely cause, and what to do.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use crate::engine::address;
use crate::engine::path::{Path, Paths};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::sys::tcp_receive::{self, PAGE_BYTES};
use crate::sys::{ethtool, option, sockets};

/// Headers in front of TCP's data, with timestamps: over IPv4 20 + 20 + 12 bytes, over IPv6 20 more.
const HEADERS_BYTES: [u32; 2] = [52, 72];

/// A cause that affects less than one in this many bytes is not mentioned.
const MENTIONED_SHARE: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    Host,
    /// An interface without a card (veth, bridge, tap): the sender is on this machine, or behind a card that is not visible here.
    Link,
    Card,
    Unknown,
}

/// The conditions for mapping pages, as found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Bytes of a full segment, as the kernel has received them (`tcpi_rcv_mss`); 0: not reported.
    pub(super) segment_bytes: u32,
    /// Where packets come from, if they use the same path as packets to the peer.
    pub(super) carrier: Carrier,
    /// The interface, if it can be queried.
    pub(super) interface: Option<String>,
    /// Whether the card puts headers and data into separate buffers; `None`: not a card, or not reported.
    pub(super) splits_headers: Option<bool>,
    /// Whether this machine's sockets send from pages of high order (`net.core.high_order_alloc_disable` is 0); `None`: not reported in
    /// this network namespace.
    pub(super) high_order_pages: Option<bool>,
    is_ipv6: bool,
}

/// Facts and findings. It displays a line for each finding: fact, cause, action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnosis {
    pub(super) mapped_bytes: u64,
    /// Bytes that were copied though they should have been mapped.
    pub(super) unmapped_bytes: u64,
    pub(super) facts: Facts,
    /// The likely causes; never empty.
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Mapping was not tried yet.
    Untried,
    /// More than 99 % of the bytes were mapped.
    Mapped,
    /// The sender is, or may be, on this machine, and its bytes are on pages that the kernel does not map.
    LocalSender,
    /// The data of a packet does not fill whole pages.
    SegmentSize,
    /// The card puts headers in front of the data.
    HeadersNotSplit,
    /// The driver does not report whether it splits headers off.
    HeaderSplitUnknown,
    /// Parts of pages arrived, because a send, or a packet, ended there.
    PartsOfPages,
    /// The program holds too much data that was received before.
    NoSlot,
    /// None of the known causes.
    Unexplained,
}

/// The sources of facts.
#[derive(Debug)]
pub(super) struct Surroundings {
    paths: Paths,
    peer: Option<IpAddr>,
}

impl Surroundings {
    /// To be called in the network namespace of the socket.
    pub(super) fn of(socket: &impl AsFd) -> Self {
        let ip = |told: std::io::Result<SocketAddr>| told.ok().map(|address| address.ip());
        Self { paths: Paths::of(socket, ip(address::local(socket))), peer: ip(address::peer(socket)) }
    }

    pub(super) fn facts(&self, socket: &impl AsFd) -> Facts {
        self.paths.refresh();
        let carrier = match self.paths.to(self.peer) {
            Path::Local if self.paths.ends_here(self.peer) => Carrier::Host,
            Path::Local => Carrier::Link,
            Path::Card => Carrier::Card,
            Path::Unknown => Carrier::Unknown,
        };
        // Another thread's namespace may have an interface of that name too.
        let can_be_asked = matches!(carrier, Carrier::Card | Carrier::Link) && is_of_this_namespace(socket);
        let interface = if can_be_asked { self.paths.interface(self.peer) } else { None };
        Facts {
            segment_bytes: tcp_receive::information(socket).map_or(0, |told| told.tcpi_rcv_mss),
            carrier,
            splits_headers: interface.as_deref().and_then(|name| ethtool::header_split(name).ok()?.on),
            interface,
            high_order_pages: high_order_pages(),
            is_ipv6: self.peer.is_some_and(|peer| peer.to_canonical().is_ipv6()),
        }
    }
}

/// Whether this thread is in the socket's network namespace, so that its interfaces can be queried.
fn is_of_this_namespace(socket: &impl AsFd) -> bool {
    let mine = sockets::tcp().and_then(|socket| option::namespace_cookie(&socket));
    matches!((mine, option::namespace_cookie(socket)), (Ok(mine), Ok(its)) if mine == its)
}

fn high_order_pages() -> Option<bool> {
    let switch = fs::read_to_string("/proc/sys/net/core/high_order_alloc_disable").ok()?;
    switch.trim().parse::<u32>().ok().map(|disabled| disabled == 0)
}

impl Facts {
    /// The certain cause why whole pages were not mapped.
    pub(super) fn cause(&self) -> Cause {
        match (self.carrier, self.splits_headers) {
            (Carrier::Host, _) => Cause::LocalPages,
            (Carrier::Card, Some(false)) => Cause::HeadersNotSplit,
            (Carrier::Card, _) if !self.fills_pages() => Cause::SegmentSize,
            _ => Cause::NotMapped,
        }
    }

    fn fills_pages(&self) -> bool {
        self.segment_bytes > 0 && self.segment_bytes.is_multiple_of(PAGE_BYTES as u32)
    }

    /// The MTUs at which data fill one page, or two.
    fn mtus(&self) -> [u32; 2] {
        let headers_bytes = HEADERS_BYTES[usize::from(self.is_ipv6)];
        [1, 2].map(|pages| pages * PAGE_BYTES as u32 + headers_bytes)
    }
}

impl Diagnosis {
    pub(super) fn new(facts: Facts, tally: &Ledger) -> Self {
        let mapped_bytes = tally.bytes_of(Evidence::ZeroCopy);
        let unmapped_bytes =
            Self::CAUSES.into_iter().map(|cause| tally.bytes_of(Evidence::Copied(cause))).sum();
        let findings = findings(&facts, tally, mapped_bytes + unmapped_bytes, unmapped_bytes);
        Self { mapped_bytes, unmapped_bytes, facts, findings }
    }

    const CAUSES: [Cause; 6] = [
        Cause::PartOfPage,
        Cause::LocalPages,
        Cause::HeadersNotSplit,
        Cause::SegmentSize,
        Cause::NotMapped,
        Cause::NoSlot,
    ];

    /// The share of bytes that were mapped, of those that should have been, 0 to 1; `None` without such bytes.
    pub(super) fn mapped_fraction(&self) -> Option<f64> {
        let all = self.mapped_bytes + self.unmapped_bytes;
        (all > 0).then(|| self.mapped_bytes as f64 / all as f64)
    }
}

fn findings(facts: &Facts, tally: &Ledger, all_bytes: u64, unmapped_bytes: u64) -> Vec<Finding> {
    if all_bytes == 0 {
        return vec![Finding::Untried];
    }
    if unmapped_bytes * MENTIONED_SHARE < all_bytes {
        return vec![Finding::Mapped];
    }
    let is_worth_a_word = |causes: &[Cause]| {
        causes.iter().map(|&cause| tally.bytes_of(Evidence::Copied(cause))).sum::<u64>() * MENTIONED_SHARE
            >= all_bytes
    };
    let whole_pages = [Cause::LocalPages, Cause::HeadersNotSplit, Cause::SegmentSize, Cause::NotMapped];
    let by_host = matches!(facts.carrier, Carrier::Host | Carrier::Link);
    let by_card = facts.carrier == Carrier::Card;
    let unmapped = is_worth_a_word(&whole_pages);
    let in_parts = is_worth_a_word(&[Cause::PartOfPage]);
    let candidates = [
        (Finding::LocalSender, unmapped && by_host),
        (
            Finding::SegmentSize,
            (in_parts || unmapped && !by_host) && facts.segment_bytes > 0 && !facts.fills_pages(),
        ),
        (Finding::HeadersNotSplit, unmapped && facts.splits_headers == Some(false)),
        (Finding::HeaderSplitUnknown, unmapped && by_card && facts.splits_headers.is_none()),
        (Finding::PartsOfPages, in_parts && facts.fills_pages()),
        (Finding::NoSlot, is_worth_a_word(&[Cause::NoSlot])),
    ];
    let mut found: Vec<Finding> =
        candidates.into_iter().filter_map(|(finding, holds)| holds.then_some(finding)).collect();
    if found.is_empty() {
        found.push(Finding::Unexplained);
    }
    found
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fraction) = self.mapped_fraction() {
            let all_bytes = self.mapped_bytes + self.unmapped_bytes;
            writeln!(f, "{:.2} % of {all_bytes} bytes that should be mapped were mapped", 100.0 * fraction)?;
        }
        for (place, finding) in self.findings.iter().enumerate() {
            f.write_str(if place > 0 { "\n" } else { "" })?;
            self.explain(finding, f)?;
        }
        Ok(())
    }
}

impl Diagnosis {
    fn explain(&self, finding: &Finding, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &self.facts;
        let interface = facts.interface.as_deref().unwrap_or("<interface>");
        let [one, two] = facts.mtus();
        match finding {
            Finding::Untried => f.write_str("no data to map has arrived yet"),
            Finding::Mapped => f.write_str("pages are mapped; no change is needed"),
            Finding::LocalSender if facts.carrier == Carrier::Link => write!(
                f,
                "packets come by {interface}, which is not a card: if the sender is on this machine, the kernel keeps its data on pages that cannot be mapped; let it send with MSG_ZEROCOPY, or receive by copy"
            ),
            Finding::LocalSender => f.write_str(match facts.high_order_pages {
                Some(false) => {
                    "the sender is on this machine, and its data lie on pages of files or shared memory, or share pages: \
                     let it write multiples of 4096 bytes, or receive by copy"
                }
                _ => {
                    "the sender is on this machine: the kernel holds what it sends by an ordinary call on pages of high order, and what \
                     it sends by sendfile on those of the file; neither map. Receive by copy; what is sent with MSG_ZEROCOPY would \
                     map, or all after 'sysctl net.core.high_order_alloc_disable=1'"
                }
            }),
            Finding::SegmentSize => {
                let bytes = facts.segment_bytes;
                write!(f, "segments of {bytes} bytes are not whole pages of {PAGE_BYTES}: set the MTU to {one} or {two} at both ends")?;
                match &facts.interface {
                    Some(name) => write!(f, ", as by 'ip link set dev {name} mtu {one}'"),
                    None => Ok(()),
                }
            }
            Finding::HeadersNotSplit => write!(
                f,
                "{interface} puts headers in front of the data, so they do not begin with a page: 'ethtool -G {interface} \
                 tcp-data-split on'"
            ),
            Finding::HeaderSplitUnknown => write!(
                f,
                "the driver of {interface} does not say whether it splits headers off, without which no page can be mapped: 'nocopy doctor \
                 --interface {interface}' says what it does say; 'ethtool -G {interface} tcp-data-split on' asks it to"
            ),
            Finding::PartsOfPages => f.write_str(
                "pages came in parts, since the sender ends its writes or segments there: let it write multiples of 4096 bytes, \
                 and not set TCP_NODELAY for less",
            ),
            Finding::NoSlot => f.write_str(
                "the program holds so many mapped chunks that there was no room for more: drop them sooner, or copy the data to keep",
            ),
            Finding::Unexplained => f.write_str(
                "pages were not mapped for a reason that is not visible here: the card's driver may put data on parts of pages, or on \
                 pages larger than 4096 bytes; receive by copy",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::evidence::Evidence;

    fn facts(carrier: Carrier, segment_bytes: u32, splits_headers: Option<bool>) -> Facts {
        let interface = (carrier == Carrier::Card).then(|| "eth7".to_owned());
        Facts {
            segment_bytes,
            carrier,
            interface,
            splits_headers,
            high_order_pages: Some(true),
            is_ipv6: false,
        }
    }

    fn diagnosis(facts: Facts, mapped_bytes: u64, copied: &[(Cause, u64)]) -> Diagnosis {
        let mut tally = Ledger::default();
        tally.add(Evidence::ZeroCopy, 1, mapped_bytes);
        copied.iter().for_each(|&(cause, bytes)| tally.add(Evidence::Copied(cause), 1, bytes));
        Diagnosis::new(facts, &tally)
    }

    #[test]
    fn the_cause_is_what_is_certain() {
        let cases = [
            (facts(Carrier::Host, 1448, None), Cause::LocalPages),
            (facts(Carrier::Card, 4096, Some(false)), Cause::HeadersNotSplit),
            (facts(Carrier::Card, 1448, None), Cause::SegmentSize),
            (facts(Carrier::Card, 4096, None), Cause::NotMapped),
            (facts(Carrier::Unknown, 1448, None), Cause::NotMapped),
            // The sender behind a veth may be on another machine.
            (facts(Carrier::Link, 1448, None), Cause::NotMapped),
        ];
        for (facts, cause) in cases {
            assert_eq!(facts.cause(), cause, "{facts:?}");
        }
    }

    #[test]
    fn every_finding_has_its_line_with_fact_and_action() {
        let card = |split| facts(Carrier::Card, 1448, split);
        let whole = |carrier, split| facts(carrier, 8192, split);
        let cases = [
            (card(None), 0, vec![], vec![Finding::Untried], "yet"),
            (card(None), 1000, vec![(Cause::PartOfPage, 5)], vec![Finding::Mapped], "no change is needed"),
            (
                facts(Carrier::Host, 1448, None),
                0,
                vec![(Cause::LocalPages, 1000)],
                vec![Finding::LocalSender],
                "high_order_alloc_disable",
            ),
            (
                facts(Carrier::Link, 4096, None),
                0,
                vec![(Cause::NotMapped, 1000)],
                vec![Finding::LocalSender],
                "if the sender is on this machine",
            ),
            (
                card(Some(true)),
                0,
                vec![(Cause::SegmentSize, 1000)],
                vec![Finding::SegmentSize],
                "'ip link set dev eth7 mtu 4148'",
            ),
            (
                whole(Carrier::Card, Some(false)),
                0,
                vec![(Cause::HeadersNotSplit, 1000)],
                vec![Finding::HeadersNotSplit],
                "'ethtool -G eth7 tcp-data-split on'",
            ),
            (
                whole(Carrier::Card, None),
                0,
                vec![(Cause::NotMapped, 1000)],
                vec![Finding::HeaderSplitUnknown],
                "does not say",
            ),
            (
                whole(Carrier::Host, None),
                1000,
                vec![(Cause::PartOfPage, 100), (Cause::NoSlot, 100)],
                vec![Finding::PartsOfPages, Finding::NoSlot],
                "drop them sooner",
            ),
            (
                whole(Carrier::Unknown, None),
                0,
                vec![(Cause::NotMapped, 100)],
                vec![Finding::Unexplained],
                "receive by copy",
            ),
        ];
        for (facts, mapped_bytes, copied, findings, words) in cases {
            let diagnosis = diagnosis(facts, mapped_bytes, &copied);
            assert_eq!(diagnosis.findings, findings);
            let text = diagnosis.to_string();
            assert!(text.contains(words), "{text}");
            let share_line = usize::from(diagnosis.mapped_fraction().is_some());
            assert_eq!(text.lines().count(), findings.len() + share_line, "{text}");
        }
    }

    #[test]
    fn bytes_that_were_not_to_be_mapped_do_not_count() {
        let told = diagnosis(facts(Carrier::Host, 0, None), 0, &[(Cause::SocketCall, 99), (Cause::Slice, 1)]);
        assert_eq!((told.mapped_fraction(), told.findings), (None, vec![Finding::Untried]));
    }
}
