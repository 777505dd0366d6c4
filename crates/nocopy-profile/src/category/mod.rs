//! The category of a sample, by the names of the functions on its kernel stack.

mod functions;

use serde::{Deserialize, Serialize};

use super::measured::SampleOwner;
use functions::{FunctionRole, TcpTimer};

/// A part of the path of a packet, or of the call that waits for it; in printing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeCategory {
    Interrupt,
    SoftirqDriver,
    SoftirqReceive,
    SoftirqSend,
    RetransmitTimer,
    DelayedAckTimer,
    KeepaliveTimer,
    CallDriver,
    CallReceive,
    CallSend,
    CopyToUser,
    CopyFromUser,
    SystemCall,
    Scheduler,
    PageFault,
    Program,
    Measuring,
    Other,
}

impl TimeCategory {
    pub const ALL: [Self; 18] = [
        Self::Interrupt,
        Self::SoftirqDriver,
        Self::SoftirqReceive,
        Self::SoftirqSend,
        Self::RetransmitTimer,
        Self::DelayedAckTimer,
        Self::KeepaliveTimer,
        Self::CallDriver,
        Self::CallReceive,
        Self::CallSend,
        Self::CopyToUser,
        Self::CopyFromUser,
        Self::SystemCall,
        Self::Scheduler,
        Self::PageFault,
        Self::Program,
        Self::Measuring,
        Self::Other,
    ];

    /// The name in a sentence.
    pub fn long_name(self) -> &'static str {
        self.long_and_short_name()[0]
    }

    /// The name in the head of a column.
    pub fn short_name(self) -> &'static str {
        self.long_and_short_name()[1]
    }

    fn long_and_short_name(self) -> [&'static str; 2] {
        match self {
            Self::Interrupt => ["interrupt", "interrupt"],
            Self::SoftirqDriver => ["softirq: driver, NAPI, GRO", "driver"],
            Self::SoftirqReceive => ["softirq: receive", "softirq rx"],
            Self::SoftirqSend => ["softirq: send (ACKs)", "softirq tx"],
            Self::RetransmitTimer => ["TCP's retransmit timer", "retransmit"],
            Self::DelayedAckTimer => ["TCP's delayed-ACK timer", "delayed ACK"],
            Self::KeepaliveTimer => ["TCP's keepalive timer", "keepalive"],
            Self::CallDriver => ["in the call: driver", "call driver"],
            Self::CallReceive => ["in the call: receive", "call rx"],
            Self::CallSend => ["in the call: send (ACKs)", "call tx"],
            Self::CopyToUser => ["copy to user", "to user"],
            Self::CopyFromUser => ["copy from user", "from user"],
            Self::SystemCall => ["system-call entry", "entry"],
            Self::Scheduler => ["scheduler, wake-ups", "scheduler"],
            Self::PageFault => ["page faults", "fault"],
            Self::Program => ["the program itself", "program"],
            Self::Measuring => ["this measurement", "measuring"],
            Self::Other => ["the rest", "rest"],
        }
    }
}

/// A sample's category, and whether it belongs to a softirq or a device's interrupt, which work for the whole
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleCategory {
    pub category: TimeCategory,
    pub is_machine: bool,
}

impl SampleCategory {
    /// The category of a stack, innermost function first. `None`: work of another process, or unrelated to
    /// networks.
    pub(crate) fn from_stack(owner: SampleOwner, functions: &[impl AsRef<str>]) -> Option<Self> {
        let roles: Vec<_> =
            functions.iter().map(|name| FunctionRole::from_function_name(name.as_ref())).collect();
        // The innermost context decides first: on veth the sender's stack holds the receiver's softirq.
        let context = roles.iter().position(|role| role.is_some_and(FunctionRole::begins_context));
        let (inside, outside) = roles.split_at(context.unwrap_or(roles.len()));
        // A BPF program without a known caller was called by a tracepoint: all other callers have names.
        let is_program = functions.first().is_some_and(|name| name.as_ref().starts_with("bpf_prog_"));
        let found = inside.iter().flatten().next().copied().or(is_program.then_some(FunctionRole::Measuring));
        let found = found.map(|found| attribute_to_timer(found, inside));
        let (category, is_machine) = match outside.first().copied().flatten() {
            // At most a lock that it releases.
            Some(FunctionRole::Softirq) if inside.len() <= 1 && found.is_none() => {
                (TimeCategory::Interrupt, !outside.contains(&Some(FunctionRole::OtherInterrupt)))
            }
            Some(FunctionRole::PollThread) if inside.is_empty() => (TimeCategory::SoftirqDriver, true),
            Some(FunctionRole::Softirq | FunctionRole::PollThread) => {
                (softirq_category(found), inside.iter().flatten().any(|role| role.handles_packets()))
            }
            Some(FunctionRole::DeviceInterrupt) => {
                (interruption_category(found, TimeCategory::Interrupt), true)
            }
            Some(FunctionRole::OtherInterrupt) => {
                (interruption_category(found, TimeCategory::Interrupt), false)
            }
            Some(_) => (interruption_category(found, TimeCategory::PageFault), false),
            None if functions.is_empty() => (TimeCategory::Program, false),
            None => (process_category(owner, found, roles[0]), false),
        };
        (is_machine || owner != SampleOwner::OtherTask).then_some(Self { category, is_machine })
    }
}

/// Counts protocol work caused by an expired TCP timer for the timer. If a timer expires while a call holds
/// the socket, that call runs the timer when it releases the socket (kernel: `tcp_release_cb`).
fn attribute_to_timer(found: FunctionRole, inside: &[Option<FunctionRole>]) -> FunctionRole {
    let timer = inside.iter().flatten().copied().find(|role| matches!(role, FunctionRole::Timer(_)));
    match found {
        FunctionRole::Receive | FunctionRole::Send => timer.unwrap_or(found),
        _ => found,
    }
}

fn timer_category(timer: TcpTimer) -> TimeCategory {
    match timer {
        TcpTimer::Retransmit => TimeCategory::RetransmitTimer,
        TcpTimer::DelayedAck => TimeCategory::DelayedAckTimer,
        TcpTimer::Keepalive => TimeCategory::KeepaliveTimer,
    }
}

fn softirq_category(found: Option<FunctionRole>) -> TimeCategory {
    match found {
        Some(FunctionRole::Driver) => TimeCategory::SoftirqDriver,
        Some(FunctionRole::Receive) => TimeCategory::SoftirqReceive,
        Some(FunctionRole::Send) => TimeCategory::SoftirqSend,
        Some(FunctionRole::Timer(timer)) => timer_category(timer),
        Some(FunctionRole::Scheduler) => TimeCategory::Scheduler,
        Some(FunctionRole::Measuring) => TimeCategory::Measuring,
        _ => TimeCategory::Other,
    }
}

fn interruption_category(found: Option<FunctionRole>, usual: TimeCategory) -> TimeCategory {
    match found {
        Some(FunctionRole::Scheduler) => TimeCategory::Scheduler,
        Some(FunctionRole::Measuring) => TimeCategory::Measuring,
        _ => usual,
    }
}

fn process_category(
    owner: SampleOwner,
    found: Option<FunctionRole>,
    innermost: Option<FunctionRole>,
) -> TimeCategory {
    match found {
        Some(FunctionRole::Driver) => TimeCategory::CallDriver,
        Some(FunctionRole::Receive) => TimeCategory::CallReceive,
        Some(FunctionRole::Send) => TimeCategory::CallSend,
        Some(FunctionRole::Timer(timer)) => timer_category(timer),
        Some(FunctionRole::CopyToUser) => TimeCategory::CopyToUser,
        Some(FunctionRole::CopyFromUser) => TimeCategory::CopyFromUser,
        Some(FunctionRole::Scheduler) => TimeCategory::Scheduler,
        Some(FunctionRole::Measuring) => TimeCategory::Measuring,
        Some(FunctionRole::Poll) => TimeCategory::SystemCall,
        // Work of other calls deeper in the kernel is not the cost of entering it.
        Some(FunctionRole::Call | FunctionRole::Entry)
            if owner != SampleOwner::Elsewhere || found == innermost =>
        {
            TimeCategory::SystemCall
        }
        _ => TimeCategory::Other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Stacks of Linux 6.18 under `perf record -e cpu-clock -a -g` while `nocopy bench` ran its TCP and UDP
    /// workloads, and while timers of many connections expired; a line each: owner, category, `machine` where
    /// it is the machine's work, and the functions, innermost first. Each was judged by eye.
    const REAL: &str = include_str!("stacks.txt");

    fn owner_from_word(word: &str) -> SampleOwner {
        match word {
            "receiving" => SampleOwner::Receiving,
            "sending" => SampleOwner::Sending,
            "elsewhere" => SampleOwner::Elsewhere,
            "other-task" => SampleOwner::OtherTask,
            _ => panic!("{word}"),
        }
    }

    fn recorded_stacks() -> impl Iterator<Item = (SampleOwner, String, Vec<&'static str>)> {
        REAL.lines().map(|line| {
            let (label, stack) = line.split_once(':').unwrap();
            let (owner_name, category) = label.split_once(' ').unwrap();
            let functions = stack.trim().split(';').filter(|name| !name.is_empty()).collect();
            (owner_from_word(owner_name), category.to_owned(), functions)
        })
    }

    fn category_words(spot: Option<SampleCategory>) -> String {
        let Some(SampleCategory { category, is_machine }) = spot else { return "-".into() };
        let name = serde_json::to_value(category).unwrap().as_str().unwrap().to_owned();
        if is_machine { name + " machine" } else { name }
    }

    fn stack_category_words(owner: SampleOwner, stack: &str) -> String {
        category_words(SampleCategory::from_stack(owner, &stack.split(' ').collect::<Vec<_>>()))
    }

    #[test]
    fn recorded_stacks_have_the_categories_judged_by_eye() {
        let mut count = 0;
        for (owner, expected, functions) in recorded_stacks() {
            assert_eq!(
                category_words(SampleCategory::from_stack(owner, &functions)),
                expected,
                "{owner:?} {functions:?}"
            );
            count += 1;
        }
        assert!(count > 70, "{count}");
    }

    #[test]
    fn stacks_of_other_kernels_have_their_category() {
        for (owner, stack, expected) in [
            // 6.1
            (
                SampleOwner::OtherTask,
                "tcp_ack tcp_rcv_established tcp_v4_do_rcv __do_softirq do_softirq.part.0",
                "softirq-receive machine",
            ),
            (SampleOwner::Receiving, "copyout _copy_to_iter __skb_datagram_iter tcp_recvmsg", "copy-to-user"),
            (
                SampleOwner::OtherTask,
                "igb_clean_rx_irq igb_poll __napi_poll net_rx_action __do_softirq",
                "softirq-driver machine",
            ),
            (
                SampleOwner::Receiving,
                "__tcp_cleanup_rbuf.constprop.0 tcp_recvmsg_locked.isra.0",
                "call-receive",
            ),
            (SampleOwner::Receiving, "__fget_light sockfd_lookup_light.cold __sys_recvfrom", "system-call"),
            // 7.x
            (
                SampleOwner::OtherTask,
                "skb_gro_receive gro_receive_skb virtnet_poll __napi_poll handle_softirqs",
                "softirq-driver machine",
            ),
            (
                SampleOwner::OtherTask,
                "virtnet_poll __napi_poll napi_threaded_poll_loop napi_threaded_poll kthread",
                "softirq-driver machine",
            ),
            // The owner decides how ticks, timers and other calls are counted.
            (SampleOwner::OtherTask, "try_to_wake_up process_timeout run_timer_softirq handle_softirqs", "-"),
            (SampleOwner::OtherTask, "rcu_do_batch rcu_core handle_softirqs", "-"),
            (SampleOwner::Elsewhere, "rcu_do_batch rcu_core handle_softirqs", "other"),
            (SampleOwner::Elsewhere, "ext4_file_write_iter vfs_write ksys_write do_syscall_64", "other"),
            (SampleOwner::Elsewhere, "do_syscall_64 entry_SYSCALL_64_after_hwframe", "system-call"),
            (SampleOwner::Elsewhere, "_raw_read_lock ep_poll do_epoll_wait do_syscall_64", "system-call"),
            (
                SampleOwner::Receiving,
                "bpf_prog_1234_enter bpf_trace_run2 __bpf_trace_sys_enter do_syscall_64",
                "measuring",
            ),
            (SampleOwner::Sending, "bpf_prog_ea3287d6e2c25ace_tcp_probe", "measuring"),
            (
                SampleOwner::OtherTask,
                "bpf_prog_1_xdp veth_xdp_rcv veth_poll __napi_poll handle_softirqs",
                "softirq-driver machine",
            ),
        ] {
            assert_eq!(stack_category_words(owner, stack), expected, "{stack}");
        }
    }

    /// On arm64 the functions between an exception and its handler have other names; those on a packet's path
    /// have the same.
    #[test]
    fn stacks_of_arm64_have_their_category() {
        const CALL: &str =
            "__arm64_sys_recvfrom invoke_syscall el0_svc_common do_el0_svc el0_svc el0t_64_sync_handler";
        const SOFTIRQ: &str = "handle_softirqs __do_softirq ____do_softirq call_on_irq_stack do_softirq_own_stack \
                               __irq_exit_rcu irq_exit_rcu el1_interrupt el1h_64_irq_handler el1h_64_irq";
        for (owner, inner, outer, expected) in [
            (
                SampleOwner::Receiving,
                "__arch_copy_to_user _copy_to_iter __skb_datagram_iter tcp_recvmsg_locked",
                CALL,
                "copy-to-user",
            ),
            (
                SampleOwner::Receiving,
                "tcp_recvmsg_locked tcp_recvmsg inet_recvmsg __sys_recvfrom",
                CALL,
                "call-receive",
            ),
            (SampleOwner::Elsewhere, "invoke_syscall", CALL, "system-call"),
            (
                SampleOwner::OtherTask,
                "tcp_v4_rcv ip_rcv __napi_poll net_rx_action",
                SOFTIRQ,
                "softirq-receive machine",
            ),
            (SampleOwner::OtherTask, "tcp_delack_timer call_timer_fn", SOFTIRQ, "delayed-ack-timer machine"),
            (
                SampleOwner::Receiving,
                "gic_handle_irq do_interrupt_handler el1_interrupt",
                CALL,
                "interrupt machine",
            ),
            (
                SampleOwner::Elsewhere,
                "handle_mm_fault do_page_fault do_translation_fault do_mem_abort el0_da",
                "el0t_64_sync_handler el0t_64_sync",
                "page-fault",
            ),
        ] {
            assert_eq!(stack_category_words(owner, &format!("{inner} {outer}")), expected, "{inner}");
        }
    }

    #[test]
    fn timers_of_tcp_are_separate_categories() {
        const SEND: &str = "ip_output __ip_queue_xmit __tcp_transmit_skb";
        const TIMER: &str = "call_timer_fn __run_timers run_timer_softirq handle_softirqs __irq_exit_rcu";
        const RELEASE: &str = "tcp_release_cb release_sock tcp_recvmsg inet_recvmsg sock_recvmsg";
        for (begins, handler, expected) in [
            (
                "tcp_retransmit_skb tcp_retransmit_timer tcp_write_timer_handler",
                "tcp_write_timer",
                "retransmit-timer",
            ),
            (
                "tcp_write_xmit tcp_send_loss_probe tcp_write_timer_handler",
                "tcp_write_timer",
                "retransmit-timer",
            ),
            ("tcp_send_ack tcp_delack_timer_handler", "tcp_delack_timer", "delayed-ack-timer"),
        ] {
            let in_softirq =
                stack_category_words(SampleOwner::OtherTask, &format!("{SEND} {begins} {handler} {TIMER}"));
            assert_eq!(in_softirq, format!("{expected} machine"), "{begins}");
            // Deferred until the call releases the socket.
            assert_eq!(
                stack_category_words(SampleOwner::Receiving, &format!("{SEND} {begins} {RELEASE}")),
                expected,
                "{begins}"
            );
            // Work outside of the protocol keeps its category.
            let driver = format!("veth_xmit dev_hard_start_xmit {SEND} {begins} {handler} {TIMER}");
            assert_eq!(stack_category_words(SampleOwner::OtherTask, &driver), "softirq-driver machine");
        }
        let keepalive = format!("{SEND} tcp_write_wakeup tcp_keepalive_timer {TIMER}");
        assert_eq!(stack_category_words(SampleOwner::OtherTask, &keepalive), "keepalive-timer machine");
        // Delayed acknowledgements, by a timer of another kind.
        let compressed =
            format!("{SEND} tcp_send_ack tcp_compressed_ack_kick hrtimer_run_softirq handle_softirqs");
        assert_eq!(stack_category_words(SampleOwner::OtherTask, &compressed), "delayed-ack-timer machine");
        // The timer was before the softirq, not in it.
        let other = format!(
            "tcp_rcv_established tcp_v4_rcv __napi_poll net_rx_action handle_softirqs {SEND} tcp_delack_timer {TIMER}"
        );
        assert_eq!(stack_category_words(SampleOwner::OtherTask, &other), "softirq-receive machine");
    }

    #[test]
    fn driver_samples_count_as_softirq_or_call_by_their_caller() {
        const XMIT: &str =
            "igb_xmit_frame_ring igb_xmit_frame dev_hard_start_xmit __dev_queue_xmit __tcp_transmit_skb";
        for (owner, outer, expected) in [
            (SampleOwner::Sending, "tcp_write_xmit tcp_sendmsg __sys_sendto do_syscall_64", "call-driver"),
            (
                SampleOwner::Receiving,
                "__tcp_cleanup_rbuf tcp_recvmsg __sys_recvfrom do_syscall_64",
                "call-driver",
            ),
            (
                SampleOwner::Receiving,
                "tcp_rcv_established tcp_v4_rcv net_rx_action handle_softirqs __irq_exit_rcu common_interrupt tcp_recvmsg",
                "softirq-driver machine",
            ),
            (
                SampleOwner::OtherTask,
                "tcp_v4_rcv __napi_poll napi_threaded_poll kthread",
                "softirq-driver machine",
            ),
            (
                SampleOwner::OtherTask,
                "tcp_tsq_handler tcp_tsq_workfn process_one_work worker_thread kthread",
                "-",
            ),
        ] {
            assert_eq!(stack_category_words(owner, &format!("{XMIT} {outer}")), expected, "{outer}");
        }
    }

    #[test]
    fn every_category_has_one_name() {
        let names: std::collections::HashSet<_> =
            TimeCategory::ALL.iter().map(|category| category.long_name()).collect();
        assert_eq!(names.len(), TimeCategory::ALL.len());
        assert!(TimeCategory::ALL.is_sorted());
    }

    proptest! {
        #[test]
        fn the_innermost_context_decides_the_category(index in 0_usize..1000, outer in 0_usize..1000) {
            let all: Vec<_> = recorded_stacks().filter(|(.., functions)| !functions.is_empty()).collect();
            let (owner, _, functions) = &all[index % all.len()];
            prop_assume!(functions.iter().any(|name| {
                FunctionRole::from_function_name(name).is_some_and(FunctionRole::begins_context)
            }));
            let below = &all[outer % all.len()].2;
            let is_timed = |names: &[&str]| {
                let mut roles = names.iter().map(|name| FunctionRole::from_function_name(name));
                roles.any(|role| role == Some(FunctionRole::OtherInterrupt))
            };
            prop_assume!(is_timed(functions) || !is_timed(below));
            let both: Vec<_> = functions.iter().chain(below).collect();
            prop_assert_eq!(
                SampleCategory::from_stack(*owner, &both),
                SampleCategory::from_stack(*owner, functions)
            );
        }

        /// A variant that the compiler made is the function itself.
        #[test]
        fn compiler_suffixes_do_not_change_the_category(
            index in 0_usize..1000,
            suffix in "\\.(isra|constprop|part|cold)(\\.[0-9])?",
        ) {
            let all: Vec<_> = recorded_stacks().collect();
            let (owner, _, functions) = &all[index % all.len()];
            let named: Vec<_> = functions.iter().map(|name| format!("{name}{suffix}")).collect();
            prop_assert_eq!(
                SampleCategory::from_stack(*owner, &named),
                SampleCategory::from_stack(*owner, functions)
            );
        }

        /// No function name causes a panic, and the target's own samples always have a category.
        #[test]
        fn every_sample_of_the_target_has_a_category(functions in prop::collection::vec("[a-z_.]{0,12}", 0..9)) {
            for owner in [SampleOwner::Receiving, SampleOwner::Sending, SampleOwner::Elsewhere] {
                prop_assert!(SampleCategory::from_stack(owner, &functions).is_some());
            }
        }
    }
}
