//! Roles of the kernel's functions on a packet's path.
//!
//! Only functions that decide a category are listed; functions that they call (allocators, locks, copies of
//! bytes) count as their caller. Names of Linux 5.19 to 7.x; the compiler's variants (`.isra.0`, `.part.0`,
//! `.constprop.0`, `.cold`) count as the function itself.

use std::collections::HashMap;
use std::sync::LazyLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FunctionRole {
    Softirq,
    /// A thread that does a softirq's work for one card.
    PollThread,
    /// Begins the handling of a device's interrupt.
    DeviceInterrupt,
    /// The beginning of the handling of an interrupt by a timer or another processor.
    OtherInterrupt,
    /// Begins the handling of a page fault.
    Fault,
    Driver,
    Receive,
    Send,
    /// Runs because a timer of TCP expired.
    Timer(TcpTimer),
    CopyToUser,
    CopyFromUser,
    /// The path of a socket call to the protocol.
    Call,
    /// Waiting for several sockets.
    Poll,
    /// The path of any call into the kernel.
    Entry,
    Scheduler,
    Measuring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TcpTimer {
    /// The timer of retransmissions, loss probes and window probes.
    Retransmit,
    DelayedAck,
    /// Also the timer that ends connections.
    Keepalive,
}

/// The functions of each role, separated by spaces.
const FUNCTIONS: [(FunctionRole, &str); 18] = [
    (FunctionRole::Softirq, "handle_softirqs __do_softirq"),
    (FunctionRole::PollThread, "napi_threaded_poll napi_threaded_poll_loop"),
    (
        FunctionRole::DeviceInterrupt,
        "common_interrupt asm_common_interrupt gic_handle_irq el1_interrupt el0_interrupt",
    ),
    (FunctionRole::Fault, "exc_page_fault asm_exc_page_fault do_page_fault do_mem_abort"),
    (FunctionRole::Measuring, "perf_swevent_hrtimer __perf_event_overflow trace_call_bpf"),
    (
        FunctionRole::Scheduler,
        "schedule __schedule __cond_resched finish_task_switch try_to_wake_up default_wake_function \
         autoremove_wake_function woken_wake_function receiver_wake_function wake_up_q ep_poll_callback \
         sock_def_readable sock_def_write_space sk_stream_write_space",
    ),
    (
        FunctionRole::Driver,
        "net_rx_action net_tx_action __napi_poll process_backlog gro_receive_skb gro_normal_list \
         gro_flush_normal dev_hard_start_xmit netdev_start_xmit veth_xmit loopback_xmit",
    ),
    (
        FunctionRole::Receive,
        "__netif_receive_skb __netif_receive_skb_core __netif_receive_skb_one_core \
         __netif_receive_skb_list_core __netif_receive_skb_list_ptype netif_receive_skb \
         netif_receive_skb_internal netif_receive_skb_list netif_receive_skb_list_internal ip_rcv ip_rcv_core \
         ip_rcv_finish ip_rcv_finish_core ip_list_rcv ip_list_rcv_finish ip_sublist_rcv ip_sublist_rcv_finish \
         ip_local_deliver ip_local_deliver_finish ip_protocol_deliver_rcu ipv6_rcv ipv6_list_rcv ip6_rcv_core \
         ip6_rcv_finish ip6_input ip6_input_finish ip6_protocol_deliver_rcu",
    ),
    (
        FunctionRole::Receive,
        "tcp_v4_rcv tcp_v6_rcv tcp_v4_do_rcv tcp_v6_do_rcv tcp_v4_early_demux tcp_rcv_established \
         tcp_rcv_state_process tcp_data_queue tcp_queue_rcv tcp_ack tcp_clean_rtx_queue tcp_add_backlog \
         tcp_check_space tcp_cleanup_rbuf __tcp_cleanup_rbuf tcp_rcv_space_adjust tcp_recvmsg \
         tcp_recvmsg_locked tcp_splice_read tcp_read_sock tcp_zerocopy_receive sk_wait_data inet_recvmsg \
         inet6_recvmsg udp_rcv udpv6_rcv __udp4_lib_rcv __udp6_lib_rcv udp_unicast_rcv_skb udp_queue_rcv_skb \
         udp_queue_rcv_one_skb __udp_enqueue_schedule_skb packet_recvmsg udp_recvmsg udpv6_recvmsg \
         __skb_recv_udp skb_consume_udp",
    ),
    (
        FunctionRole::Send,
        "tcp_sendmsg tcp_sendmsg_locked tcp_push tcp_push_one __tcp_push_pending_frames tcp_write_xmit \
         tcp_xmit_retransmit_queue tcp_retransmit_skb __tcp_retransmit_skb tcp_transmit_skb \
         __tcp_transmit_skb tcp_send_ack __tcp_send_ack __tcp_ack_snd_check tcp_send_delayed_ack \
         tcp_tasklet_func tcp_tsq_handler tcp_tsq_workfn tcp_pace_kick tcp_shutdown tcp_wfree tcp_splice_eof \
         inet_sendmsg inet6_sendmsg inet_sendpage tcp_sendpage sk_stream_wait_memory packet_sendmsg \
         xsk_sendmsg udp_sendmsg udpv6_sendmsg udp_send_skb udp_v6_send_skb ip_make_skb ip6_make_skb \
         ip_append_data __ip_append_data ip_queue_xmit __ip_queue_xmit ip6_xmit inet6_csk_xmit ip_send_skb \
         ip_local_out __ip_local_out ip_output ip_finish_output ip_finish_output2 ip6_output \
         ip6_finish_output2 tcp_v4_send_synack __dev_queue_xmit __dev_direct_xmit __dev_xmit_skb \
         sch_direct_xmit __qdisc_run validate_xmit_skb validate_xmit_skb_list",
    ),
    (
        FunctionRole::Timer(TcpTimer::Retransmit),
        "tcp_write_timer tcp_write_timer_handler tcp_retransmit_timer tcp_send_loss_probe \
         tcp_rack_reo_timeout tcp_probe_timer tcp_send_probe0",
    ),
    // The last delays acknowledgements of segments out of order, for a millisecond at most.
    (
        FunctionRole::Timer(TcpTimer::DelayedAck),
        "tcp_delack_timer tcp_delack_timer_handler tcp_compressed_ack_kick",
    ),
    (FunctionRole::Timer(TcpTimer::Keepalive), "tcp_keepalive_timer"),
    (
        FunctionRole::CopyToUser,
        "_copy_to_iter __copy_to_iter copy_page_to_iter simple_copy_to_iter __skb_datagram_iter \
         skb_copy_datagram_iter skb_copy_and_csum_datagram skb_copy_and_csum_datagram_msg \
         csum_and_copy_to_iter",
    ),
    (
        FunctionRole::CopyFromUser,
        "_copy_from_iter _copy_from_iter_nocache _copy_from_iter_full copy_page_from_iter \
         skb_copy_datagram_from_iter skb_do_copy_data_nocache csum_and_copy_from_iter ip_generic_getfrag",
    ),
    (
        FunctionRole::Call,
        "__sys_recvfrom __sys_recvmsg ___sys_recvmsg ____sys_recvmsg __sys_recvmmsg do_recvmmsg sock_recvmsg \
         sock_read_iter sock_splice_read __sys_sendto __sys_sendmsg ___sys_sendmsg ____sys_sendmsg \
         __sys_sendmmsg sock_sendmsg __sock_sendmsg sock_write_iter sockfd_lookup_light copy_msghdr_from_user \
         recvmsg_copy_msghdr sendmsg_copy_msghdr move_addr_to_user move_addr_to_kernel do_sendfile \
         splice_direct_to_actor do_splice splice_to_socket io_submit_sqes io_issue_sqe __io_issue_sqe io_send \
         io_send_zc io_sendmsg io_sendmsg_zc io_recv io_recvmsg",
    ),
    (
        FunctionRole::Poll,
        "sock_poll tcp_poll udp_poll do_poll do_sys_poll do_select core_sys_select do_epoll_wait \
         do_epoll_pwait ep_poll ep_send_events ep_item_poll",
    ),
    (
        FunctionRole::Entry,
        "do_syscall_64 x64_sys_call invoke_syscall do_el0_svc ksys_read ksys_write exit_to_user_mode_loop \
         vfs_read vfs_write vfs_readv vfs_writev do_readv do_writev fput fget __fget_light fdget",
    ),
];

/// Families of functions, by the beginning of their names.
const FAMILIES: [(FunctionRole, &str); 6] = [
    (FunctionRole::Measuring, "__bpf_trace_ bpf_trace_run __traceiter_ perf_trace_ trace_event_raw_event_"),
    (FunctionRole::OtherInterrupt, "asm_sysvec_ sysvec_ asm_exc_nmi"),
    (FunctionRole::Scheduler, "__wake_up ttwu_ pick_next_ schedule_ preempt_schedule"),
    (FunctionRole::Call, "security_socket_"),
    (FunctionRole::Entry, "__x64_sys_ __se_sys_ __arm64_sys_ entry_SYSCALL_ syscall_ el0"),
    (FunctionRole::Driver, "napi_gro_ dev_gro_"),
];

/// [`FUNCTIONS`] by name: a profile asks for every function of every stack.
static ROLES: LazyLock<HashMap<&str, FunctionRole>> = LazyLock::new(|| {
    let all = FUNCTIONS.iter().flat_map(|(role, names)| names.split(' ').map(move |name| (name, *role)));
    all.collect()
});

impl FunctionRole {
    /// Whether the functions that it calls do work unrelated to the interrupted code.
    pub(super) fn begins_context(self) -> bool {
        use FunctionRole::{DeviceInterrupt, Fault, OtherInterrupt, PollThread, Softirq};
        matches!(self, Softirq | PollThread | DeviceInterrupt | OtherInterrupt | Fault)
    }

    pub(super) fn handles_packets(self) -> bool {
        matches!(
            self,
            FunctionRole::Driver | FunctionRole::Receive | FunctionRole::Send | FunctionRole::Timer(_)
        )
    }

    /// The kind of the function with this name; `None` if it is not listed.
    pub(super) fn from_function_name(name: &str) -> Option<Self> {
        let name = name.split('.').next().unwrap_or(name);
        ROLES.get(name).copied().or_else(|| {
            let is_family =
                |beginnings: &str| beginnings.split(' ').any(|beginning| name.starts_with(beginning));
            let family = FAMILIES.iter().find(|(_, beginnings)| is_family(beginnings));
            family.map(|(role, _)| *role)
        })
    }
}
