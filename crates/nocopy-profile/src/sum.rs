//! Adds several windows.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::measured::{
    CallCounts, CopiedBytes, DroppedPackets, ProgramOverhead, SampleOwner, SampledStack, SamplingCounts,
    TaskTimes, TcpCounters, WindowMeasurement,
};

impl AddAssign for WindowMeasurement {
    /// Counts and times are added; for maxima the larger one is kept; the sampling periods must be equal.
    fn add_assign(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.tasks += other.tasks;
        self.sampling += other.sampling;
        add_stacks(&mut self.stacks, other.stacks);
        self.receives += other.receives;
        self.sends += other.sends;
        self.polls += other.polls;
        self.copied += other.copied;
        self.tcp += other.tcp;
        self.delivered_packets += other.delivered_packets;
        self.machine_packets += other.machine_packets;
        add_drops(&mut self.drops, other.drops);
        self.overhead += other.overhead;
        for absent in other.absent {
            if !self.absent.iter().any(|known| known.what == absent.what) {
                self.absent.push(absent);
            }
        }
    }
}

fn add_stacks(sum: &mut Vec<SampledStack>, more: Vec<SampledStack>) {
    let mut counts: BTreeMap<(SampleOwner, Vec<String>), u64> = BTreeMap::new();
    for SampledStack { owner, functions, samples } in sum.drain(..).chain(more) {
        *counts.entry((owner, functions)).or_default() += samples;
    }
    sum.extend(counts.into_iter().map(|((owner, functions), samples)| SampledStack {
        owner,
        functions,
        samples,
    }));
}

fn add_drops(sum: &mut Vec<DroppedPackets>, more: Vec<DroppedPackets>) {
    for drops in more {
        let is_same =
            |known: &&mut DroppedPackets| known.reason == drops.reason && known.of_target == drops.of_target;
        match sum.iter_mut().find(is_same) {
            Some(known) => known.packets += drops.packets,
            None => sum.push(drops),
        }
    }
}

impl AddAssign for TaskTimes {
    fn add_assign(&mut self, other: Self) {
        let Self { threads, user, system, switches } = other;
        self.threads = self.threads.max(threads);
        self.user += user;
        self.system += system;
        self.switches += switches;
    }
}

impl AddAssign for SamplingCounts {
    fn add_assign(&mut self, other: Self) {
        let Self { period, taken, ticks, ticks_due, without_stack } = other;
        self.period = period;
        self.taken += taken;
        self.ticks += ticks;
        self.ticks_due += ticks_due;
        self.without_stack += without_stack;
    }
}

impl AddAssign for CallCounts {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.socket_bytes += other.socket_bytes;
        self.inside += other.inside;
        self.sleeping += other.sleeping;
        self.runnable += other.runnable;
        self.depth_sum_bytes += other.depth_sum_bytes;
        self.depth_max_bytes = self.depth_max_bytes.max(other.depth_max_bytes);
        self.depth_sum_packets += other.depth_sum_packets;
        self.depth_max_packets = self.depth_max_packets.max(other.depth_max_packets);
        self.depth_count += other.depth_count;
        self.queued_bytes += other.queued_bytes;
        self.waited_bytes += other.waited_bytes;
    }
}

impl AddAssign for CopiedBytes {
    fn add_assign(&mut self, other: Self) {
        let Self { to_user_bytes, udp_bytes, mapped_bytes, peeked_bytes, discarded_bytes } = other;
        self.to_user_bytes += to_user_bytes;
        self.udp_bytes += udp_bytes;
        self.mapped_bytes += mapped_bytes;
        self.peeked_bytes += peeked_bytes;
        self.discarded_bytes += discarded_bytes;
    }
}

impl AddAssign for TcpCounters {
    fn add_assign(&mut self, other: Self) {
        self.sockets += other.sockets;
        self.segments_in += other.segments_in;
        self.packets_in += other.packets_in;
        self.packets_in_backlog += other.packets_in_backlog;
        self.segments_out += other.segments_out;
        self.data_segments_out += other.data_segments_out;
        self.segments_retransmitted += other.segments_retransmitted;
        self.window_sum_bytes += other.window_sum_bytes;
        self.window_count += other.window_count;
        self.receive_buffer_bytes = self.receive_buffer_bytes.max(other.receive_buffer_bytes);
        self.receive_buffer_fixed |= other.receive_buffer_fixed;
        self.lost_sockets += other.lost_sockets;
    }
}

impl AddAssign for ProgramOverhead {
    fn add_assign(&mut self, other: Self) {
        let Self { programs, program_runs, lost_events } = other;
        self.programs += programs;
        self.program_runs += program_runs;
        self.lost_events += lost_events;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::fixture::bulk_receive_measurement;

    /// Twice the same is the same: shares, means, ratios, and costs per byte.
    #[test]
    fn a_sum_of_equal_windows_has_their_figures() {
        let one = Figures::from_measurement(&bulk_receive_measurement());
        let mut sum = WindowMeasurement::default();
        sum += bulk_receive_measurement();
        sum += bulk_receive_measurement();
        let both = Figures::from_measurement(&sum);
        assert_eq!(both.received_bytes, 2 * one.received_bytes);
        assert_eq!(both.threads, one.threads);
        let depths = both.queue.as_ref().map(|queue| (queue.depth_mean_bytes, queue.depth_mean_packets));
        assert_eq!(depths, Some((40_000.0, 2.5)));
        assert_eq!(
            both.tcp.as_ref().unwrap().segments_per_packet,
            one.tcp.as_ref().unwrap().segments_per_packet
        );
        assert_eq!(sum.stacks.len(), bulk_receive_measurement().stacks.len());
        for (both, one) in both.time.categories.iter().zip(&one.time.categories) {
            assert_eq!((both.category, both.samples), (one.category, 2 * one.samples));
            assert!((both.us_per_mb.unwrap() - one.us_per_mb.unwrap()).abs() < 1e-9);
        }
    }

    #[test]
    fn drops_are_kept_apart_by_reason_and_owner() {
        let drops = |reason: &str, of_target| DroppedPackets { reason: reason.into(), packets: 2, of_target };
        let mut sum = vec![drops("A", true)];
        add_drops(&mut sum, vec![drops("A", true), drops("A", false), drops("B", true)]);
        assert_eq!(sum.iter().map(|drops| drops.packets).collect::<Vec<_>>(), [4, 2, 2]);
    }
}
