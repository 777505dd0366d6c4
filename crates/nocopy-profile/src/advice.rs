//! Advice derived from the figures; each piece names its evidence.
//!
//! Thresholds were measured on a 2-core virtual machine with Linux 6.18 over veth, or read in the kernel's
//! source; each comment says which. Above a threshold an effect begins to matter, but a change may still not
//! pay: so advice names what to try, and why.

use serde::{Deserialize, Serialize};

use super::category::{SampleCategory, TimeCategory};
use super::figures::{CallFigures, CallKind, Figures};
use super::measured::{SampleOwner, SampledStack, WindowMeasurement};
use nocopy_report::quantity::short_number;

/// `recv` into 1 KiB reached 15 Gbit/s, 4 KiB 31, 16 KiB 49, 64 KiB 55, and larger buffers hardly more; a
/// receiver that also reads the bytes was slower with 4 MiB than with 256 KiB, which fit into a processor's
/// own cache (2 MiB).
const READ_BYTES_ENOUGH: f64 = 65_536.0;
const READ_BYTES_MAX: f64 = 262_144.0;

/// With fewer calls, packets or samples, ratios are not reliable.
const CALLS_MIN: u64 = 100;
const PACKETS_MIN: u64 = 100;
const SAMPLES_MIN: u64 = 100;

/// The cost of a wake-up compared with a read: 2.4 us on one core, 40 across cores; a read of 4 KiB takes
/// about 1.
const WAKE_SHARE_MIN: f64 = 0.1;
const WAITED_BYTES_MAX: f64 = 16_384.0;

/// Segments of this size, up to those of jumbo frames, are full: the sender had more to send. GRO joins up to
/// 45 of 1,448 bytes; without it the backlog joined up to 2.5.
const FULL_SEGMENT_BYTES: std::ops::Range<f64> = 1_000.0..9_000.0;
const JOINED_MIN: f64 = 3.0;

/// The share of a fixed receive buffer that can hold data: the kernel advertises at most about half of it
/// (the rest is for packets' overhead).
const BUFFER_USED_MIN: f64 = 0.4;
const WINDOW_SHARE_MAX: f64 = 0.125;

/// A share of processor time that is worth a change of the program.
const COPY_SHARE_MIN: f64 = 0.2;

/// A page, as TCP_ZEROCOPY_RECEIVE maps them: only segments whose payload is whole pages map (MTU 4148,
/// 8244).
const PAGE_BYTES: f64 = 4_096.0;

/// MSG_ZEROCOPY pays above about 10 KB a call on real cards.
const ZERO_COPY_BYTES_MIN: f64 = 10_000.0;

/// `nocopy run --batch-udp` joins datagrams that are less than 50 us apart, 8 or more of them, without a wait
/// or a receive between them.
const DATAGRAMS_PER_SECOND_MIN: f64 = 20_000.0;
const DATAGRAMS_PER_WAIT_MIN: f64 = 8.0;

/// The longest datagram of jumbo frames: a call that sends more sends several datagrams already (`sendmmsg`,
/// `UDP_SEGMENT`), or fragments.
const DATAGRAM_BYTES_MAX: f64 = 8_972.0;

/// The kernel's functions in which datagrams are sent, over IPv4 and IPv6.
const UDP_SENDS: [&str; 2] = ["udp_sendmsg", "udpv6_sendmsg"];

/// The share of one processor that one thread uses.
const BUSY_MIN: f64 = 0.8;
const SOFTIRQ_SHARE_MIN: f64 = 0.3;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Advice {
    pub name: String,
    /// The recommendation, or why a change would not pay.
    pub text: String,
    pub evidence: String,
}

/// All advice for which there is evidence.
pub(crate) fn all_advice(measured: &WindowMeasurement, figures: &Figures) -> Vec<Advice> {
    let pieces = [
        advise_read_buffer(figures),
        advise_low_water_mark(figures),
        advise_gro(figures),
        advise_another_core(measured, figures),
        advise_receive_buffer(figures),
        advise_on_drops(figures),
        advise_mapped_receive(figures),
        advise_zero_copy_send(figures),
        advise_gso(measured, figures),
    ];
    pieces.into_iter().flatten().collect()
}

fn make_advice(name: &str, text: String, evidence: String) -> Option<Advice> {
    Some(Advice { name: name.into(), text, evidence })
}

/// Receiving calls, if there are enough for reliable ratios.
fn enough_receive_calls(figures: &Figures) -> Option<&CallFigures> {
    figures.calls_of_kind(CallKind::Receive).filter(|calls| calls.count >= CALLS_MIN)
}

fn advise_read_buffer(figures: &Figures) -> Option<Advice> {
    let (calls, queue) = (enough_receive_calls(figures)?, figures.queue.as_ref()?);
    let is_left_behind = queue.depth_mean_bytes >= 2.0 * calls.bytes_per_call;
    if calls.bytes_per_call >= READ_BYTES_ENOUGH / 2.0 || !is_left_behind {
        return None;
    }
    let wanted = queue.depth_mean_bytes.clamp(READ_BYTES_ENOUGH, READ_BYTES_MAX) as u64;
    let kib = wanted.next_power_of_two() >> 10;
    make_advice(
        "read-buffer",
        format!("read with a buffer of {kib} KiB"),
        format!(
            "{} bytes a call, while {} lay ready on average; system-call entry {:.0} % of the time",
            short_number(calls.bytes_per_call),
            short_number(queue.depth_mean_bytes),
            100.0 * figures.category_share(TimeCategory::SystemCall)
        ),
    )
}

fn advise_low_water_mark(figures: &Figures) -> Option<Advice> {
    let (calls, queue) = (enough_receive_calls(figures)?, figures.queue.as_ref()?);
    let woken = figures.category_share(TimeCategory::Scheduler);
    let waits = queue.queued_share < 0.5 && calls.bytes_per_call < WAITED_BYTES_MAX;
    if !waits || woken < WAKE_SHARE_MIN || figures.time.samples < SAMPLES_MIN {
        return None;
    }
    make_advice(
        "low-water-mark",
        "set SO_RCVLOWAT to what the program can use at once, up to 64 KiB, so that it is woken less often"
            .into(),
        format!(
            "{:.0} % of the bytes were waited for, {} bytes a call; scheduler and wake-ups {:.0} % of the time",
            100.0 * (1.0 - queue.queued_share),
            short_number(calls.bytes_per_call),
            100.0 * woken
        ),
    )
}

fn advise_gro(figures: &Figures) -> Option<Advice> {
    let tcp = figures.tcp.as_ref().filter(|tcp| tcp.packets_in >= PACKETS_MIN)?;
    let joined = tcp.segments_per_packet?;
    let segment_bytes = figures.received_bytes as f64 / tcp.segments_in as f64;
    if joined >= JOINED_MIN || !FULL_SEGMENT_BYTES.contains(&segment_bytes) {
        return None;
    }
    make_advice(
        "gro",
        "switch GRO on at the interface that receives: 'ethtool -K INTERFACE gro on'".into(),
        format!(
            "{joined:.2} segments a packet, of {} bytes each; driver and softirq receive {:.0} % of the time",
            short_number(segment_bytes),
            100.0
                * (figures.category_share(TimeCategory::SoftirqDriver)
                    + figures.category_share(TimeCategory::SoftirqReceive))
        ),
    )
}

/// Softirqs that take processor time from the threads that read.
fn advise_another_core(measured: &WindowMeasurement, figures: &Figures) -> Option<Advice> {
    let machine = |owners: &[SampleOwner]| -> u64 {
        let stacks = measured.stacks.iter().filter(|stack| owners.contains(&stack.owner));
        let machine = stacks.filter(|stack| {
            SampleCategory::from_stack(stack.owner, &stack.functions).is_some_and(|spot| spot.is_machine)
        });
        machine.map(|stack| stack.samples).sum()
    };
    let on_top = machine(&[SampleOwner::Receiving, SampleOwner::Elsewhere]);
    let all = on_top + machine(&[SampleOwner::Sending, SampleOwner::OtherTask]);
    let time = &figures.time;
    let busy = time.accounted_seconds / figures.seconds / f64::from(figures.threads.max(1));
    let taken = on_top as f64 * time.period_us / 1e6 / time.accounted_seconds.max(f64::MIN_POSITIVE);
    let is_shared = 2 * on_top > all && taken >= SOFTIRQ_SHARE_MIN && busy >= BUSY_MIN;
    if !is_shared || figures.received_bytes <= figures.sent_bytes || time.samples < SAMPLES_MIN {
        return None;
    }
    make_advice(
        "one-core",
        "run the reader on another core than its softirq: taskset(1), or the interrupt's smp_affinity, or RPS".into(),
        format!(
            "its threads are {:.0} % busy, and {:.0} % of that is softirqs, of which {:.0} % run on the reader's core",
            100.0 * busy,
            100.0 * taken,
            100.0 * on_top as f64 / all as f64
        ),
    )
}

fn advise_receive_buffer(figures: &Figures) -> Option<Advice> {
    let tcp = figures.tcp.as_ref().filter(|tcp| tcp.receive_buffer_fixed && tcp.packets_in >= PACKETS_MIN)?;
    let room = tcp.receive_buffer_bytes as f64;
    let deepest = figures.queue.as_ref().map_or(0.0, |queue| queue.depth_max_bytes as f64);
    let window = tcp.window_mean_bytes?;
    if deepest < BUFFER_USED_MIN * room && window > WINDOW_SHARE_MAX * room {
        return None;
    }
    make_advice(
        "receive-buffer",
        "leave SO_RCVBUF alone, so that the kernel raises the buffer as needed (net.ipv4.tcp_rmem), or set it higher".into(),
        format!(
            "the buffer is fixed at {} bytes, up to {} lay in it, and the window was {} on average",
            short_number(room),
            short_number(deepest),
            short_number(window)
        ),
    )
}

fn advise_on_drops(figures: &Figures) -> Option<Advice> {
    let is_room =
        |reason: &str| ["RCVBUFF", "PROTO_MEM", "SOCKET_BACKLOG"].iter().any(|why| reason.contains(why));
    let lost = figures.drops.iter().find(|drops| drops.of_target && is_room(&drops.reason))?;
    make_advice(
        "dropped",
        "raise SO_RCVBUF (and net.core.rmem_max), or read more often".into(),
        format!("{} packets were thrown away at its sockets: {}", lost.packets, lost.reason),
    )
}

fn advise_mapped_receive(figures: &Figures) -> Option<Advice> {
    let (calls, tcp) =
        (enough_receive_calls(figures)?, figures.tcp.as_ref().filter(|tcp| tcp.packets_in >= PACKETS_MIN)?);
    let copied = &figures.copies.received.as_ref()?.bytes;
    tcp.segments_per_packet?; // otherwise not all segments are known
    let share = figures.category_share(TimeCategory::CopyToUser);
    let is_copied = copied.to_user_bytes > 0 && copied.mapped_bytes <= copied.to_user_bytes;
    if figures.time.samples < SAMPLES_MIN || !is_copied {
        return None;
    }
    let segment_bytes = figures.received_bytes as f64 / tcp.segments_in.max(1) as f64;
    let evidence = format!(
        "copy to user {:.0} % of the time; {} bytes a segment, {} a call",
        100.0 * share,
        short_number(segment_bytes),
        short_number(calls.bytes_per_call)
    );
    let text = if share < COPY_SHARE_MIN {
        "mapping pages (TCP_ZEROCOPY_RECEIVE) would not pay: the copy is the smaller part"
    } else if segment_bytes < PAGE_BYTES {
        "mapping pages (TCP_ZEROCOPY_RECEIVE) would not work as it is: segments carry less than a page; with an MTU of 4148 or \
         8244 and a card that splits headers it may pay"
    } else if calls.bytes_per_call < READ_BYTES_ENOUGH {
        "mapping pages (TCP_ZEROCOPY_RECEIVE) would not pay for reads under 64 KiB: unmapping costs a flush of address caches"
    } else {
        "mapping pages (TCP_ZEROCOPY_RECEIVE) may pay: try 'nocopy bench tcp-receive' between these hosts"
    };
    make_advice("mapped-receive", text.into(), evidence)
}

fn advise_zero_copy_send(figures: &Figures) -> Option<Advice> {
    let calls = figures.calls_of_kind(CallKind::Send).filter(|calls| calls.count >= CALLS_MIN)?;
    if figures.time.samples < SAMPLES_MIN {
        return None;
    }
    let late = figures.copies.others.iter().find(|copy| copy.function == "skb_copy_ubufs");
    if let (Some(late), Some(0.0)) = (late, figures.copies.sent.as_ref().and_then(|sent| sent.per_byte)) {
        return make_advice(
            "zero-copy-send",
            "send by plain calls: what goes without a copy here is copied late, which is slower".into(),
            format!("{} samples in skb_copy_ubufs, none in the copy from the program", late.samples),
        );
    }
    let copied = figures.copies.sent.as_ref().filter(|sent| sent.copying_samples > 0)?;
    let share = figures.category_share(TimeCategory::CopyFromUser);
    let evidence = format!(
        "{} bytes a call; copy from user {:.0} % of the time ({} samples)",
        short_number(calls.bytes_per_call),
        100.0 * share,
        copied.copying_samples
    );
    let text = match (calls.bytes_per_call >= ZERO_COPY_BYTES_MIN, share >= COPY_SHARE_MIN) {
        (true, true) => {
            "MSG_ZEROCOPY may pay, over a real card, with many calls in flight; not to a receiver on this host"
        }
        (false, true) => "MSG_ZEROCOPY would not pay for calls so short: send 10 KB or more at a time first",
        (_, false) => "MSG_ZEROCOPY would not pay: the copy is the smaller part",
    };
    make_advice("zero-copy-send", text.into(), evidence)
}

/// Programs that send single datagrams in quick succession.
fn advise_gso(measured: &WindowMeasurement, figures: &Figures) -> Option<Advice> {
    let calls = figures.calls_of_kind(CallKind::Send).filter(|calls| calls.count >= CALLS_MIN)?;
    let samples = |is_wanted: fn(&SampledStack) -> bool| -> u64 {
        measured.stacks.iter().filter(|stack| is_wanted(stack)).map(|stack| stack.samples).sum()
    };
    let sending = samples(|stack| {
        let is_udp = stack.functions.iter().any(|function| UDP_SENDS.contains(&function.as_str()));
        stack.owner == SampleOwner::Sending && is_udp
    });
    let share = sending as f64 / samples(|stack| stack.owner != SampleOwner::OtherTask).max(1) as f64;
    let per_second = calls.count as f64 / figures.seconds;
    // Threads without network calls do not count, only those that use the processor.
    let running = (figures.time.accounted_seconds / figures.seconds).max(1.0);
    let waits = [CallKind::Receive, CallKind::Poll]
        .map(|kind| figures.calls_of_kind(kind).map_or(0, |calls| calls.count));
    let waits: u64 = waits.iter().sum();
    let is_quick = per_second / running >= DATAGRAMS_PER_SECOND_MIN
        && calls.count as f64 >= DATAGRAMS_PER_WAIT_MIN * waits as f64;
    if !is_quick
        || share < COPY_SHARE_MIN
        || calls.bytes_per_call > DATAGRAM_BYTES_MAX
        || figures.time.samples < SAMPLES_MIN
    {
        return None;
    }
    make_advice(
        "gso",
        "if its datagrams are of one size and go to one destination, hand the kernel up to 64 at once (UDP_SEGMENT); \
         'nocopy run --batch-udp' does it for programs as they are"
            .into(),
        format!(
            "{} datagrams a second, of {} bytes, one a call; {:.0} % of the time in the calls that send them; {waits} \
             receives and polls meanwhile",
            short_number(per_second),
            short_number(calls.bytes_per_call),
            100.0 * share,
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixture::{bulk_receive_measurement, sampled_stack};
    use crate::measured::DroppedPackets;

    fn advice_for(measured: &WindowMeasurement) -> Vec<Advice> {
        all_advice(measured, &Figures::from_measurement(measured))
    }

    fn advice_named(measured: &WindowMeasurement, name: &str) -> Option<Advice> {
        advice_for(measured).into_iter().find(|piece| piece.name == name)
    }

    #[test]
    fn an_empty_window_has_no_advice() {
        assert_eq!(advice_for(&WindowMeasurement::default()), []);
    }

    #[test]
    fn every_advice_has_evidence() {
        let mut measured = bulk_receive_measurement();
        measured.tcp.receive_buffer_fixed = true;
        measured.sends = measured.receives.clone();
        for piece in advice_for(&measured) {
            assert!(piece.evidence.contains(|c: char| c.is_ascii_digit()), "{piece:?}");
        }
    }

    #[test]
    fn a_larger_buffer_is_advised_if_bytes_stay_queued() {
        let mut measured = bulk_receive_measurement();
        assert_eq!(advice_named(&measured, "read-buffer"), None, "64 KiB a call are enough");
        measured.receives.count *= 64;
        measured.receives.depth_count *= 64;
        measured.receives.depth_sum_bytes = measured.receives.depth_count * 100_000;
        let advice = advice_named(&measured, "read-buffer").unwrap();
        assert!(advice.text.ends_with("128 KiB"), "{advice:?}");
        measured.receives.depth_sum_bytes = measured.receives.depth_count * 500;
        assert_eq!(advice_named(&measured, "read-buffer"), None, "there was no more to read");
    }

    #[test]
    fn a_low_water_mark_is_advised_for_small_wakeups() {
        let mut measured = bulk_receive_measurement();
        measured.receives.count = measured.receives.bytes / 2_000;
        measured.receives.waited_bytes = measured.receives.bytes;
        measured.receives.queued_bytes = 0;
        assert_eq!(advice_named(&measured, "low-water-mark"), None, "wake-ups cost little");
        measured.stacks.push(sampled_stack(SampleOwner::Receiving, "__schedule schedule tcp_recvmsg", 400));
        assert!(advice_named(&measured, "low-water-mark").unwrap().evidence.starts_with("100 %"));
    }

    #[test]
    fn gro_is_advised_if_segments_are_not_joined() {
        let mut measured = bulk_receive_measurement();
        assert_eq!(advice_named(&measured, "gro"), None);
        measured.tcp.packets_in = measured.tcp.segments_in;
        assert!(advice_named(&measured, "gro").unwrap().evidence.starts_with("1.00 segments"));
        measured.tcp.segments_in *= 20;
        measured.tcp.packets_in *= 20;
        assert_eq!(advice_named(&measured, "gro"), None, "small messages are not to be joined");
    }

    #[test]
    fn a_larger_receive_buffer_is_advised_for_small_windows_and_drops() {
        let mut measured = bulk_receive_measurement();
        measured.tcp.window_sum_bytes = measured.tcp.window_count * 1_000;
        assert_eq!(advice_named(&measured, "receive-buffer"), None, "the kernel may still raise it");
        measured.tcp.receive_buffer_fixed = true;
        assert!(advice_named(&measured, "receive-buffer").is_some());
        let dropped = |of_target| DroppedPackets { reason: "SOCKET_RCVBUFF".into(), packets: 7, of_target };
        measured.drops = vec![dropped(false)];
        assert_eq!(advice_named(&measured, "dropped"), None, "somebody else's");
        measured.drops.push(dropped(true));
        assert!(advice_named(&measured, "dropped").unwrap().evidence.starts_with("7 packets"));
    }

    #[test]
    fn another_core_is_advised_under_softirq_load() {
        let mut measured = bulk_receive_measurement();
        assert_eq!(advice_named(&measured, "one-core"), None, "they run elsewhere");
        let on_top = "tcp_v4_rcv ip_rcv net_rx_action handle_softirqs _copy_to_iter tcp_recvmsg";
        measured.stacks.push(sampled_stack(SampleOwner::Receiving, on_top, 1_200));
        assert!(advice_named(&measured, "one-core").is_some());
        measured.tasks.system /= 4;
        measured.tasks.user /= 4;
        assert_eq!(advice_named(&measured, "one-core"), None, "the core has time for both");
    }

    #[test]
    fn mapping_pages_is_advised_only_for_segments_of_whole_pages() {
        let mut measured = bulk_receive_measurement();
        let text_of = |measured: &WindowMeasurement| advice_named(measured, "mapped-receive").unwrap().text;
        assert!(text_of(&measured).contains("segments carry less than a page"));
        measured.tcp.segments_in = measured.receives.bytes / 8_192;
        assert!(text_of(&measured).contains("may pay"));
        measured.receives.count *= 8;
        assert!(text_of(&measured).contains("under 64 KiB"));
        measured.stacks.push(sampled_stack(SampleOwner::Elsewhere, "", 100_000));
        assert!(text_of(&measured).contains("smaller part"));
    }

    #[test]
    fn zero_copy_sending_is_advised_only_for_long_calls() {
        let mut measured = bulk_receive_measurement();
        measured.sends = measured.receives.clone();
        measured.stacks.push(sampled_stack(SampleOwner::Sending, "_copy_from_iter tcp_sendmsg", 1_000));
        let text_of = |measured: &WindowMeasurement| advice_named(measured, "zero-copy-send").unwrap().text;
        assert!(text_of(&measured).contains("may pay"));
        measured.sends.count *= 100;
        assert!(text_of(&measured).contains("calls so short"));
        measured.stacks.pop();
        measured.stacks.push(sampled_stack(SampleOwner::Sending, "tcp_sendmsg_locked tcp_sendmsg", 100));
        measured.stacks.push(sampled_stack(
            SampleOwner::Sending,
            "skb_copy_ubufs __netif_receive_skb_core handle_softirqs",
            100,
        ));
        assert!(text_of(&measured).contains("plain calls"));
    }

    /// A thread that sends 300,000 datagrams of 1,400 bytes within a second, one a call.
    fn fast_single_datagrams() -> WindowMeasurement {
        let mut measured = bulk_receive_measurement();
        let bytes = 300_000 * 1_400;
        (measured.sends.count, measured.sends.bytes, measured.sends.socket_bytes) = (300_000, bytes, bytes);
        measured.receives = crate::measured::CallCounts::default();
        measured.stacks = vec![
            sampled_stack(
                SampleOwner::Sending,
                "__dev_queue_xmit ip_finish_output2 udp_send_skb udp_sendmsg __sys_sendto",
                1_500,
            ),
            sampled_stack(SampleOwner::Elsewhere, "", 300),
        ];
        measured
    }

    #[test]
    fn gso_is_advised_for_fast_single_datagrams() {
        let mut measured = fast_single_datagrams();
        measured.tasks.threads = 40; // of which one sends
        let advice = advice_named(&measured, "gso").unwrap();
        assert!(
            advice.text.contains("UDP_SEGMENT") && advice.text.contains("nocopy run --batch-udp"),
            "{advice:?}"
        );
        assert!(advice.evidence.contains("of 1400 bytes, one a call; 83 % of the time"), "{advice:?}");
        assert!(advice.evidence.ends_with("0 receives and polls meanwhile"), "{advice:?}");
    }

    #[test]
    fn gso_is_not_advised_for_datagrams_that_cannot_be_joined() {
        let none = |change: fn(&mut WindowMeasurement), why: &str| {
            let mut measured = fast_single_datagrams();
            change(&mut measured);
            assert_eq!(advice_named(&measured, "gso"), None, "{why}");
        };
        none(|measured| measured.sends.count = 15_000, "rare");
        none(|measured| measured.polls.count = 300_000, "a wait after each");
        none(|measured| measured.sends.bytes *= 40, "already many in a call");
        none(
            |measured| {
                measured.stacks[0] =
                    sampled_stack(SampleOwner::Sending, "tcp_sendmsg_locked tcp_sendmsg", 1_500)
            },
            "TCP",
        );
        none(|measured| measured.stacks[1].samples = 30_000, "sending is the smaller part");
        none(|measured| measured.tasks.system = Duration::from_secs(20), "rare in each of 20 busy threads");
    }
}
