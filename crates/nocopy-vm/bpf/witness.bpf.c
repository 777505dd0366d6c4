// Counts by kprobes what `nocopy profile` counts by tracepoints, to hold the one against the other. Only for one process, but for packets,
// which belong to none: a test has no others.
//
// Built into witness.bpf.o by `cargo xtask bpf`. x86-64 only: its registers.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;

// Of struct pt_regs, which is the context: what a function returned, and its fourth argument.
#define AX 10
#define CX 11

const volatile u32 process;

struct count {
	u64 calls;
	u64 bytes;
};

// Numbered as in crates/nocopy-vm/src/guest/witness.rs.
enum { RECEIVED, SENT, COPIED, PACKETS, COUNTS };
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[COUNTS];
	u32 *key;
	struct count *value;
} counts SEC(".maps");

static __attribute__((always_inline)) int book(u32 key, int bytes)
{
	struct count *count = bpf_map_lookup_elem(&counts, &key);
	if (count) {
		count->calls += 1;
		count->bytes += bytes > 0 ? bytes : 0;
	}
	return 0;
}

static __attribute__((always_inline)) int is_watched(void)
{
	return bpf_get_current_pid_tgid() >> 32 == process;
}

SEC("kretprobe/tcp_recvmsg") int tcp_recvmsg(u64 *registers)
{
	return is_watched() ? book(RECEIVED, registers[AX]) : 0;
}

SEC("kretprobe/tcp_sendmsg") int tcp_sendmsg(u64 *registers)
{
	return is_watched() ? book(SENT, registers[AX]) : 0;
}

SEC("kprobe/skb_copy_datagram_iter") int skb_copy_datagram_iter(u64 *registers)
{
	return is_watched() ? book(COPIED, registers[CX]) : 0;
}

SEC("kprobe/tcp_rcv_established") int tcp_rcv_established(u64 *registers)
{
	return book(PACKETS, 0);
}

// One of the licences with which the kernel lets a program call every helper, and the one that has MIT, as this project has.
char licence[] SEC("license") = "Dual MIT/GPL";
