//! Why pages were not mapped: facts, the most likely cause, and what to do.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;

use crate::engine::address;
use crate::engine::path::{PathKind, SocketPaths};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::sys::tcp_receive::{self, PAGE_BYTES};
use crate::sys::{ethtool, option, sockets};

/// Headers in front of TCP's data, with timestamps: over IPv4 20 + 20 + 12 bytes, over IPv6 20 more.
const HEADERS_BYTES: [u32; 2] = [52, 72];

/// A cause that affects less than one in this many bytes is not mentioned.
const MENTIONED_SHARE: u64 = 100;

const UNTRIED: &str = "no data to map has arrived yet";

const MAPPED: &str = "pages are mapped; no change is needed";

const LOCAL: &str = "the sender is on this machine: the kernel holds what it sends by an ordinary call on pages of high order, and \
                     what it sends by sendfile on those of the file; neither map. Receive by copy; what is sent with MSG_ZEROCOPY \
                     would map, or all after 'sysctl net.core.high_order_alloc_disable=1'";

const LOCAL_FILES: &str = "the sender is on this machine, and its data lie on pages of files or shared memory, or share pages: let it \
                           write multiples of 4096 bytes, or receive by copy";

const IN_PARTS: &str = "pages came in parts, since the sender ends its writes or segments there: let it write multiples of 4096 \
                        bytes, and not set TCP_NODELAY for less";

const NO_SLOT: &str = "the program holds so many mapped chunks that there was no room for more: drop them sooner, or copy the data to \
                       keep";

const UNEXPLAINED: &str = "pages were not mapped for a reason that is not visible here: the card's driver may put data on parts of \
                           pages, or on pages larger than 4096 bytes; receive by copy";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketSource {
    Host,
    /// An interface without a card (veth, bridge, tap): the sender is on this machine, or behind a card that
    /// is not visible here.
    Link,
    Card,
    Unknown,
}

/// The conditions for mapping pages, as found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappingFacts {
    /// Bytes of a full segment, as the kernel has received them (`tcpi_rcv_mss`); 0: not reported.
    pub(super) segment_bytes: u32,
    /// Where packets come from, if they use the same path as packets to the peer.
    pub(super) carrier: PacketSource,
    /// The interface, if it can be queried.
    pub(super) interface: Option<String>,
    /// Whether the card puts headers and data into separate buffers; `None`: not a card, or not reported.
    pub(super) splits_headers: Option<bool>,
    /// Whether this machine's sockets send from pages of high order (`net.core.high_order_alloc_disable` is
    /// 0); `None`: not reported in this network namespace.
    pub(super) high_order_pages: Option<bool>,
    is_ipv6: bool,
}

/// Facts and findings. It displays a line for each finding: fact, cause, action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappingDiagnosis {
    pub(super) mapped_bytes: u64,
    /// Bytes that were copied though they should have been mapped.
    pub(super) unmapped_bytes: u64,
    pub(super) facts: MappingFacts,
    /// The likely causes; never empty.
    pub(super) findings: Vec<String>,
}

/// The sources of facts.
#[derive(Debug)]
pub(super) struct PeerContext {
    paths: SocketPaths,
    peer: Option<IpAddr>,
}

impl PeerContext {
    /// To be called in the network namespace of the socket.
    pub(super) fn of_socket(socket: &impl AsFd) -> Self {
        Self {
            paths: SocketPaths::of_socket(socket),
            peer: address::peer_addr(socket).ok().map(|peer| peer.ip()),
        }
    }

    pub(super) fn gather_facts(&self, socket: &impl AsFd) -> MappingFacts {
        self.paths.refresh();
        let carrier = match self.paths.path_to(self.peer) {
            PathKind::Local if self.paths.is_local_address(self.peer) => PacketSource::Host,
            PathKind::Local => PacketSource::Link,
            PathKind::Card => PacketSource::Card,
            PathKind::Unknown => PacketSource::Unknown,
        };
        // Another thread's namespace may have an interface of that name too.
        let can_be_asked =
            matches!(carrier, PacketSource::Card | PacketSource::Link) && is_in_this_namespace(socket);
        let interface = if can_be_asked { self.paths.interface_to(self.peer) } else { None };
        MappingFacts {
            segment_bytes: tcp_receive::tcp_info(socket).map_or(0, |diagnosed| diagnosed.tcpi_rcv_mss),
            carrier,
            splits_headers: interface.as_deref().and_then(|name| ethtool::header_split(name).ok()?.on),
            interface,
            high_order_pages: high_order_pages(),
            is_ipv6: self.peer.is_some_and(|peer| peer.to_canonical().is_ipv6()),
        }
    }
}

/// Whether this thread is in the socket's network namespace, so that its interfaces can be queried.
fn is_in_this_namespace(socket: &impl AsFd) -> bool {
    let mine = sockets::tcp_socket().and_then(|socket| option::namespace_cookie(&socket));
    matches!((mine, option::namespace_cookie(socket)), (Ok(mine), Ok(its)) if mine == its)
}

fn high_order_pages() -> Option<bool> {
    let switch = fs::read_to_string("/proc/sys/net/core/high_order_alloc_disable").ok()?;
    switch.trim().parse::<u32>().ok().map(|disabled| disabled == 0)
}

impl MappingFacts {
    /// The certain cause why whole pages were not mapped.
    pub(super) fn not_mapped_cause(&self) -> Cause {
        match (self.carrier, self.splits_headers) {
            (PacketSource::Host, _) => Cause::LocalPages,
            (PacketSource::Card, Some(false)) => Cause::HeadersNotSplit,
            (PacketSource::Card, _) if !self.fills_pages() => Cause::SegmentSize,
            _ => Cause::NotMapped,
        }
    }

    fn fills_pages(&self) -> bool {
        self.segment_bytes > 0 && self.segment_bytes.is_multiple_of(PAGE_BYTES as u32)
    }

    /// The sender is, or may be, on this machine, and its bytes are on pages that the kernel does not map.
    fn local_sender_advice(&self) -> String {
        match (self.carrier, self.high_order_pages) {
            (PacketSource::Link, _) => format!(
                "packets come by {}, which is not a card: if the sender is on this machine, the kernel keeps its data on pages that \
                 cannot be mapped; let it send with MSG_ZEROCOPY, or receive by copy",
                self.interface_name()
            ),
            (_, Some(false)) => LOCAL_FILES.into(),
            _ => LOCAL.into(),
        }
    }

    /// The data of a packet does not fill whole pages: the MTUs at which it fills one, or two.
    fn segment_size_advice(&self) -> String {
        let headers_bytes = HEADERS_BYTES[usize::from(self.is_ipv6)];
        let [one, two] = [1, 2].map(|pages| pages * PAGE_BYTES as u32 + headers_bytes);
        let command = |name: &String| format!(", as by 'ip link set dev {name} mtu {one}'");
        let command = self.interface.as_ref().map(command).unwrap_or_default();
        let bytes = self.segment_bytes;
        format!(
            "segments of {bytes} bytes are not whole pages of {PAGE_BYTES}: set the MTU to {one} or {two} at both ends{command}"
        )
    }

    fn interface_name(&self) -> &str {
        self.interface.as_deref().unwrap_or("<interface>")
    }
}

impl MappingDiagnosis {
    pub(super) fn new(facts: MappingFacts, tally: &Ledger) -> Self {
        let copied_bytes = |cause| tally.bytes_of(Evidence::Copied(cause));
        let whole_pages = [Cause::LocalPages, Cause::HeadersNotSplit, Cause::SegmentSize, Cause::NotMapped];
        let in_whole_pages: u64 = whole_pages.into_iter().map(copied_bytes).sum();
        let unmapped = [in_whole_pages, copied_bytes(Cause::PartOfPage), copied_bytes(Cause::NoSlot)];
        let mapped_bytes = tally.bytes_of(Evidence::ZeroCopy);
        let findings = findings(&facts, mapped_bytes, unmapped);
        Self { mapped_bytes, unmapped_bytes: unmapped.iter().sum(), facts, findings }
    }

    /// The share of bytes that were mapped, of those that should have been, 0 to 1; `None` without such
    /// bytes.
    pub(super) fn mapped_fraction(&self) -> Option<f64> {
        let all = self.mapped_bytes + self.unmapped_bytes;
        (all > 0).then(|| self.mapped_bytes as f64 / all as f64)
    }
}

/// `unmapped`: bytes of whole pages, of parts of pages, and for which there was no room.
fn findings(facts: &MappingFacts, mapped_bytes: u64, unmapped: [u64; 3]) -> Vec<String> {
    let unmapped_bytes: u64 = unmapped.iter().sum();
    let all_bytes = mapped_bytes + unmapped_bytes;
    let is_worth_a_word = |bytes: u64| bytes * MENTIONED_SHARE >= all_bytes;
    if all_bytes == 0 {
        return vec![UNTRIED.into()];
    }
    if !is_worth_a_word(unmapped_bytes) {
        return vec![MAPPED.into()];
    }
    let [is_unmapped, is_in_parts, is_without_slot] = unmapped.map(is_worth_a_word);
    let by_host = matches!(facts.carrier, PacketSource::Host | PacketSource::Link);
    let by_card = facts.carrier == PacketSource::Card;
    let is_cut = facts.segment_bytes > 0 && !facts.fills_pages();
    let name = facts.interface_name();
    let not_split = format!(
        "{name} puts headers in front of the data, so they do not begin with a page: 'ethtool -G {name} tcp-data-split on'"
    );
    let split_unknown = format!(
        "the driver of {name} does not say whether it splits headers off, without which no page can be mapped: 'nocopy doctor \
         --interface {name}' says what it does say; 'ethtool -G {name} tcp-data-split on' asks it to"
    );
    let candidates = [
        (is_unmapped && by_host, facts.local_sender_advice()),
        ((is_in_parts || is_unmapped && !by_host) && is_cut, facts.segment_size_advice()),
        (is_unmapped && facts.splits_headers == Some(false), not_split),
        (is_unmapped && by_card && facts.splits_headers.is_none(), split_unknown),
        (is_in_parts && facts.fills_pages(), IN_PARTS.into()),
        (is_without_slot, NO_SLOT.into()),
    ];
    let found: Vec<String> =
        candidates.into_iter().filter_map(|(holds, finding)| holds.then_some(finding)).collect();
    if found.is_empty() { vec![UNEXPLAINED.into()] } else { found }
}

impl fmt::Display for MappingDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fraction) = self.mapped_fraction() {
            let all_bytes = self.mapped_bytes + self.unmapped_bytes;
            writeln!(f, "{:.2} % of {all_bytes} bytes that should be mapped were mapped", 100.0 * fraction)?;
        }
        f.write_str(&self.findings.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::evidence::Evidence;

    fn facts_with(carrier: PacketSource, segment_bytes: u32, splits_headers: Option<bool>) -> MappingFacts {
        let interface = (carrier == PacketSource::Card).then(|| "eth7".to_owned());
        MappingFacts {
            segment_bytes,
            carrier,
            interface,
            splits_headers,
            high_order_pages: Some(true),
            is_ipv6: false,
        }
    }

    fn diagnose(facts: MappingFacts, mapped_bytes: u64, copied: &[(Cause, u64)]) -> MappingDiagnosis {
        let mut tally = Ledger::default();
        tally.add(Evidence::ZeroCopy, 1, mapped_bytes);
        copied.iter().for_each(|&(cause, bytes)| tally.add(Evidence::Copied(cause), 1, bytes));
        MappingDiagnosis::new(facts, &tally)
    }

    #[test]
    fn only_a_certain_cause_is_reported() {
        let cases = [
            (facts_with(PacketSource::Host, 1448, None), Cause::LocalPages),
            (facts_with(PacketSource::Card, 4096, Some(false)), Cause::HeadersNotSplit),
            (facts_with(PacketSource::Card, 1448, None), Cause::SegmentSize),
            (facts_with(PacketSource::Card, 4096, None), Cause::NotMapped),
            (facts_with(PacketSource::Unknown, 1448, None), Cause::NotMapped),
            // The sender behind a veth may be on another machine.
            (facts_with(PacketSource::Link, 1448, None), Cause::NotMapped),
        ];
        for (facts, cause) in cases {
            assert_eq!(facts.not_mapped_cause(), cause, "{facts:?}");
        }
    }

    #[test]
    fn each_finding_has_a_line_with_fact_and_action() {
        let card = |split| facts_with(PacketSource::Card, 1448, split);
        let whole = |carrier, split| facts_with(carrier, 8192, split);
        let cases = [
            (card(None), 0, vec![], vec![UNTRIED]),
            (card(None), 1000, vec![(Cause::PartOfPage, 5)], vec![MAPPED]),
            (facts_with(PacketSource::Host, 1448, None), 0, vec![(Cause::LocalPages, 1000)], vec![LOCAL]),
            (
                facts_with(PacketSource::Link, 4096, None),
                0,
                vec![(Cause::NotMapped, 1000)],
                vec!["if the sender is on this machine"],
            ),
            (card(Some(true)), 0, vec![(Cause::SegmentSize, 1000)], vec!["'ip link set dev eth7 mtu 4148'"]),
            (
                whole(PacketSource::Card, Some(false)),
                0,
                vec![(Cause::HeadersNotSplit, 1000)],
                vec!["'ethtool -G eth7 tcp-data-split on'"],
            ),
            (whole(PacketSource::Card, None), 0, vec![(Cause::NotMapped, 1000)], vec!["does not say"]),
            (
                whole(PacketSource::Host, None),
                1000,
                vec![(Cause::PartOfPage, 100), (Cause::NoSlot, 100)],
                vec![IN_PARTS, NO_SLOT],
            ),
            (whole(PacketSource::Unknown, None), 0, vec![(Cause::NotMapped, 100)], vec![UNEXPLAINED]),
        ];
        for (facts, mapped_bytes, copied, expected) in cases {
            let diagnosis = diagnose(facts, mapped_bytes, &copied);
            let text = diagnosis.to_string();
            assert_eq!(diagnosis.findings.len(), expected.len(), "{text}");
            for (finding, words) in diagnosis.findings.iter().zip(&expected) {
                assert!(finding.contains(*words), "{text}");
            }
            let share_line = usize::from(diagnosis.mapped_fraction().is_some());
            assert_eq!(text.lines().count(), expected.len() + share_line, "{text}");
        }
    }

    #[test]
    fn bytes_received_by_copy_are_not_in_the_mapped_fraction() {
        let diagnosed = diagnose(
            facts_with(PacketSource::Host, 0, None),
            0,
            &[(Cause::SocketCall, 99), (Cause::Slice, 1)],
        );
        assert_eq!(diagnosed.mapped_fraction(), None);
        assert_eq!(diagnosed.findings, [UNTRIED]);
    }
}
