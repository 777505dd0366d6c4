//! The sums of the BPF programs, in the layout of bpf/profile.bpf.c: every field is a 64-bit word.

use std::collections::HashSet;
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap};
use aya::programs::{ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Ebpf, Pod};

use super::calls;
use super::drop_reason::DropReasonNames;
use super::load::READER;
use crate::measured::{
    CallCounts, CopiedBytes, DroppedPackets, SampleOwner, SampledStack, SamplingCounts, TcpCounters,
};
use crate::symbols::KernelSymbols;
use crate::tasks::{ThreadCpuUsage, Threads};

/// `struct calls`.
type CallSums = [u64; 19];
/// `struct account`.
type AccountWords = [u64; ACCOUNT_WORDS];
const ACCOUNT_WORDS: usize = 17;
/// `struct closed`: the sum of accounts, and their number.
type ClosedAccountWords = [u64; ACCOUNT_WORDS + 1];
/// `struct thread`.
pub(super) type ThreadWords = [u64; 17];
/// `struct used`.
type CpuUsageWords = [u64; 4];

/// `ARRIVALS_BITS`.
const ARRIVALS_SLOTS: u32 = 1 << 6;
/// Entries of the map.
const ACCOUNTS_MAX: usize = 16_384;

const IPPROTO_TCP: u64 = 6;

/// `struct stack`: owner and whether it is lost, and the addresses.
type StackWords = [u64; 63];

/// The counters of the programs, to be read.
pub(super) struct BpfSums<'a>(pub &'a Ebpf);

pub(super) struct CallKindSums {
    pub calls: CallCounts,
    pub copied: CopiedBytes,
    pub udp_packets: u64,
}

impl BpfSums<'_> {
    fn bpf_map(&self, name: &str) -> &Map {
        self.0.map(name).expect("the programs have it")
    }

    /// A value of all processors, summed word by word.
    fn sum_over_processors<const N: usize>(&self, name: &str, index: u32) -> Result<[u64; N], MapError>
    where
        [u64; N]: Pod,
    {
        let map = PerCpuArray::<&MapData, [u64; N]>::try_from(self.bpf_map(name))?;
        let values = map.get(&index, 0)?;
        // An address among the words cannot be added up, and two sums exceed 64 bits, so additions wrap.
        let sum = |word: usize| values.iter().fold(0_u64, |sum, value| sum.wrapping_add(value[word]));
        Ok(std::array::from_fn(sum))
    }

    /// The largest value of a word over all processors.
    fn largest_over_processors<const N: usize>(
        &self,
        name: &str,
        index: u32,
        word: usize,
    ) -> Result<u64, MapError>
    where
        [u64; N]: Pod,
    {
        let map = PerCpuArray::<&MapData, [u64; N]>::try_from(self.bpf_map(name))?;
        Ok(map.get(&index, 0)?.iter().map(|value| value[word]).max().unwrap_or(0))
    }

    pub(super) fn call_sums(&self, kind: u8) -> Result<CallKindSums, MapError> {
        const TOTALS: &str = "totals";
        let words: CallSums = self.sum_over_processors(TOTALS, kind.into())?;
        let largest =
            |word| self.largest_over_processors::<{ size_of::<CallSums>() / 8 }>(TOTALS, kind.into(), word);
        let [count, bytes, socket_bytes, inside, sleeping, runnable, ..] = words;
        let [
            ..,
            depth_sum_bytes,
            _,
            depth_sum_packets,
            _,
            depth_count,
            queued_bytes,
            waited_bytes,
            to_user_bytes,
            udp_bytes,
            mapped_bytes,
            peeked_bytes,
            discarded_bytes,
            udp_packets,
        ] = words;
        let calls = CallCounts {
            count,
            bytes,
            socket_bytes,
            inside: Duration::from_nanos(inside),
            sleeping: Duration::from_nanos(sleeping),
            runnable: Duration::from_nanos(runnable),
            depth_sum_bytes,
            depth_max_bytes: largest(7)?,
            depth_sum_packets,
            depth_max_packets: largest(9)?,
            depth_count,
            queued_bytes,
            waited_bytes,
        };
        let copied = CopiedBytes { to_user_bytes, udp_bytes, mapped_bytes, peeked_bytes, discarded_bytes };
        Ok(CallKindSums { calls, copied, udp_packets })
    }

    pub(super) fn thread_states(&self) -> Result<Vec<(u32, ThreadWords)>, MapError> {
        let map = HashMap::<&MapData, u32, ThreadWords>::try_from(self.bpf_map("threads"))?;
        map.iter().collect()
    }

    pub(super) fn target_processes(&self) -> Result<Vec<u32>, MapError> {
        let map = HashMap::<&MapData, u32, u64>::try_from(self.bpf_map("targets"))?;
        map.keys().collect()
    }

    /// Processor time of threads that have ended.
    pub(super) fn ended_threads(&self) -> Result<Threads, MapError> {
        let map = HashMap::<&MapData, u32, CpuUsageWords>::try_from(self.bpf_map("ended"))?;
        let used = |[runtime, user_ticks, system_ticks, runs]: CpuUsageWords| ThreadCpuUsage {
            runtime: Duration::from_nanos(runtime),
            user_ticks,
            system_ticks,
            runs,
        };
        map.iter().map(|entry| entry.map(|(id, words)| (id, used(words)))).collect()
    }

    pub(super) fn tcp_counters(&self) -> Result<TcpCounters, MapError> {
        let map = HashMap::<&MapData, u64, AccountWords>::try_from(self.bpf_map("accounts"))?;
        let mut tcp = TcpCounters::default();
        for account in map.iter() {
            add_open_socket(&mut tcp, &account?.1);
        }
        let open = u64::from(tcp.sockets);
        let closed: ClosedAccountWords = self.sum_over_processors("closed_accounts", 0)?;
        let sum: &AccountWords = closed.first_chunk().expect("it begins with one");
        let receive_buffer =
            self.largest_over_processors::<{ ACCOUNT_WORDS + 1 }>("closed_accounts", 0, 13)?;
        add_socket_counters(&mut tcp, sum, closed[ACCOUNT_WORDS], receive_buffer);
        for slot in 0..ARRIVALS_SLOTS {
            let [_, _, packets, in_backlog, window_sum_bytes] = self.sum_over_processors("arrivals", slot)?;
            tcp.packets_in += packets;
            tcp.packets_in_backlog += in_backlog;
            tcp.window_sum_bytes += window_sum_bytes;
            tcp.window_count += packets;
        }
        let [adopted] = self.sum_over_processors("adopted", 0)?;
        tcp.lost_sockets = adopted.saturating_sub(open + closed[ACCOUNT_WORDS]);
        Ok(tcp)
    }

    /// Reads the present counters of all sockets, or returns why that is impossible.
    pub(super) fn refresh_socket_counters(&self) -> Result<Option<ProgramError>, MapError> {
        let map = HashMap::<&MapData, u64, AccountWords>::try_from(self.bpf_map("accounts"))?;
        let reader = self.0.program(READER).expect("it is there");
        let reader: &RawTracePoint = reader.try_into().expect("it is of that kind");
        // Sockets are opened and closed meanwhile; whenever one is closed, the kernel's iteration restarts.
        let addresses: Result<HashSet<u64>, _> = map.keys().take(2 * ACCOUNTS_MAX).collect();
        for address in addresses? {
            let mut options = RawTracePointRunOptions::new();
            options.args[0] = address;
            match reader.test_run(options) {
                Ok(_) => {}
                Err(ProgramError::NotLoaded) => return Ok(None), // which was reported
                Err(error) => return Ok(Some(error)),
            }
        }
        Ok(None)
    }

    pub(super) fn lost_events(&self) -> Result<u64, MapError> {
        self.sum_over_processors::<1>("lost", 0).map(|[count]| count)
    }

    pub(super) fn dropped_packets(&self, names: &DropReasonNames) -> Result<Vec<DroppedPackets>, MapError> {
        let map = PerCpuHashMap::<&MapData, u64, u64>::try_from(self.bpf_map("drops"))?;
        let drops = map.iter().map(|entry| {
            let (key, counts) = entry?;
            let [reason, of_target] = split_u64(key);
            let packets = counts.iter().sum();
            Ok(DroppedPackets { reason: names.reason_name(reason), packets, of_target: of_target != 0 })
        });
        drops.collect()
    }

    pub(super) fn sampled_stacks(
        &self,
        symbols: &KernelSymbols,
        period: Duration,
    ) -> Result<(SamplingCounts, Vec<SampledStack>), MapError> {
        let map = PerCpuHashMap::<&MapData, StackWords, u64>::try_from(self.bpf_map("samples"))?;
        let [ticks] = self.sum_over_processors("ticks", 0)?;
        let mut sampling = SamplingCounts { period, ticks, ..SamplingCounts::default() };
        let mut stacks = Vec::new();
        for entry in map.iter() {
            let ([key, addresses @ ..], counts) = entry?;
            let samples = counts.iter().sum();
            let [owner, is_lost] = split_u64(key);
            sampling.taken += samples;
            if is_lost != 0 {
                sampling.without_stack += samples;
                continue;
            }
            let functions =
                symbols.stack_functions(addresses.into_iter().take_while(|address| *address != 0));
            stacks.push(SampledStack { owner: owner_from_number(owner), functions, samples });
        }
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
        Ok((sampling, stacks))
    }
}

/// Adds a socket that is still open; counters of closed sockets are in their sum.
fn add_open_socket(tcp: &mut TcpCounters, account: &AccountWords) {
    let [protocol, first @ .., _, _, _, _, _, _, is_closed, is_ours] = account;
    if *is_ours == 0 || *is_closed != 0 || *protocol != IPPROTO_TCP {
        return;
    }
    let mut since = *account;
    for (word, first) in first[..4].iter().enumerate() {
        // The kernel's counter has 32 bits, and may have wrapped.
        since[5 + word] = u64::from((since[5 + word] as u32).wrapping_sub(*first as u32));
    }
    add_socket_counters(tcp, &since, 1, since[13]);
}

/// Adds an account, with differences instead of the last counters.
fn add_socket_counters(tcp: &mut TcpCounters, account: &AccountWords, sockets: u64, receive_buffer: u64) {
    let [_, _, _, _, _, segments_in, segments_out, data_segments_out, segments_retransmitted, ..] = *account;
    let [.., packets_in, in_backlog, window_sum, window_count, _, fixed, _, _] = *account;
    tcp.sockets += u32::try_from(sockets).unwrap_or(u32::MAX);
    tcp.segments_in += segments_in;
    tcp.packets_in += packets_in;
    tcp.packets_in_backlog += in_backlog;
    tcp.segments_out += segments_out;
    tcp.data_segments_out += data_segments_out;
    tcp.segments_retransmitted += segments_retransmitted;
    tcp.window_sum_bytes += window_sum;
    tcp.window_count += window_count;
    tcp.receive_buffer_bytes = tcp.receive_buffer_bytes.max(receive_buffer);
    tcp.receive_buffer_fixed |= fixed != 0;
}

fn split_u64(key: u64) -> [u32; 2] {
    [key as u32, (key >> 32) as u32]
}

/// `enum owner`.
fn owner_from_number(number: u32) -> SampleOwner {
    [SampleOwner::Receiving, SampleOwner::Sending, SampleOwner::Elsewhere]
        .get(number as usize)
        .copied()
        .unwrap_or(SampleOwner::OtherTask)
}

/// Starts or ends counting, in all programs at once.
pub(super) fn set_window_open(programs: &mut Ebpf, is_open: bool) -> Result<(), MapError> {
    let map = programs.map_mut(".bss").expect("the programs have it");
    let mut window = [0; 9];
    window[0] = u64::from(is_open);
    Array::<_, [u64; 9]>::try_from(map)?.set(0, window, 0)
}

/// Names processes whose calls count.
pub(super) fn add_target_processes(programs: &mut Ebpf, processes: &[u32]) -> Result<(), MapError> {
    let map = programs.map_mut("targets").expect("the programs have it");
    let mut map = HashMap::<_, u32, u64>::try_from(map)?;
    processes.iter().try_for_each(|process| map.insert(process, 1, 0))
}

/// A thread that is inside a call when the window opens.
pub(super) struct ThreadInsideCall {
    pub id: u32,
    pub kind: u8,
    /// Time that the thread was runnable but not running, since its start.
    pub run_delay: Duration,
}

/// Notes threads that are already inside a call, sleeping since `now_ns` on a socket that is not known yet.
pub(super) fn add_threads_inside_calls(
    programs: &mut Ebpf,
    threads: &[ThreadInsideCall],
    now_ns: u64,
) -> Result<(), MapError> {
    let map = programs.map_mut("threads").expect("the programs have it");
    let mut map = HashMap::<_, u32, ThreadWords>::try_from(map)?;
    threads.iter().try_for_each(|ThreadInsideCall { id, kind, run_delay }| {
        let run_delay_ns = u64::try_from(run_delay.as_nanos()).unwrap_or(u64::MAX);
        let thread = [u64::from(*kind), now_ns, 0, 0, 0, 0, 0, run_delay_ns, now_ns, 0, 0, 0, 0, 1, 0, 0, 0];
        map.insert(id, thread, 0)
    })
}

pub(super) fn is_inside_call(thread: &ThreadWords) -> bool {
    thread[0] != 0
}

/// The part before `now_ns` of a call that has not returned: its kind, and the times inside, sleeping and
/// runnable, given how long the thread has been runnable since its start; `None` if it is over, or if its
/// socket is not known to be the target's.
pub(super) fn unfinished_call_times(
    thread: &ThreadWords,
    now_ns: u64,
    run_delay: Duration,
) -> Option<(u8, [Duration; 3])> {
    let [kind, start_ns, socket, _, _, _, off_sum_ns, run_delay_ns, off_ns, ..] = *thread;
    let kind = u8::try_from(kind & calls::KIND).expect("four bits");
    if kind == 0 || (socket == 0 && kind != calls::POLL) {
        return None;
    }
    let since = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
    let off = Duration::from_nanos(off_sum_ns) + if off_ns == 0 { Duration::ZERO } else { since(off_ns) };
    let runnable = run_delay.saturating_sub(Duration::from_nanos(run_delay_ns)).min(off);
    Some((kind, [since(start_ns), off - runnable, runnable]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_call_counts_up_to_now() {
        let thread = |off_ns| [1, 100, 7, 0, 0, 0, 11, 50, off_ns, 0, 0, 0, 0, 0, 0, 0, 0];
        let at = |off_ns, runnable_ns| {
            let found = unfinished_call_times(&thread(off_ns), 1000, Duration::from_nanos(runnable_ns));
            found.unwrap().1.map(|time| time.as_nanos())
        };
        assert_eq!(at(0, 56), [900, 5, 6], "on a processor");
        assert_eq!(at(400, 56), [900, 605, 6], "off it");
        assert_eq!(at(0, 90), [900, 0, 11], "no longer than it was off");
        assert_eq!(at(0, 0), [900, 11, 0], "a kernel that does not tell");
        assert_eq!(unfinished_call_times(&[0; 17], 1000, Duration::ZERO), None);
        let pipe = [1, 100, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(unfinished_call_times(&pipe, 1000, Duration::ZERO), None, "perhaps a pipe");
    }

    #[test]
    fn connection_counters_start_at_the_first_call() {
        let mut tcp = TcpCounters::default();
        add_open_socket(&mut tcp, &[6, 10, 20, 30, 1, 15, 28, 39, 3, 50, 9, 600, 3, 4096, 1, 0, 1]);
        add_open_socket(&mut tcp, &[17, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 4096, 0, 0, 1]);
        // Not the target's.
        add_open_socket(&mut tcp, &[6, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9999, 0, 0, 0]);
        let segments = [tcp.segments_in, tcp.segments_out, tcp.data_segments_out, tcp.segments_retransmitted];
        assert_eq!((tcp.sockets, segments), (1, [5, 8, 9, 2]));
        assert_eq!((tcp.packets_in, tcp.packets_in_backlog, tcp.window_sum_bytes), (50, 9, 600));
        assert!(tcp.receive_buffer_fixed && tcp.receive_buffer_bytes == 4096);
    }
}
