// Where the time and the copies of a target's network calls go: counts at tracepoints, samples of the processor clock. Everything is
// added up here; user space reads sums (crates/nocopy-profile/src/instrument). What a program costs is paid at every call of every
// process or every packet, so each asks first whether it is concerned.
//
// Built into profile.bpf.o by `cargo xtask bpf`. No headers: of the kernel's, only the fields below are needed, and where they lie is
// found out when the programs are loaded. For x86-64 and arm64: which of the two it is shows by the names of its registers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline))
#define KERNEL __attribute__((preserve_access_index))
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_get_stack)(void *context, void *to, u32 bytes, u64 flags) = (void *)67;
static long (*bpf_probe_read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
static struct tcp_sock *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)137;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;

// Fields of the kernel.
struct pt_regs;
struct pt_regs___x86 {
	unsigned long di, si, dx, orig_ax;
} KERNEL;
struct pt_regs___arm64 {
	u64 regs[31];
	u64 orig_x0;
	int syscallno;
} KERNEL;
struct thread_info___x86 {
	u32 status;
} KERNEL;
struct thread_info___arm64 {
	unsigned long flags;
	u64 preempt_count;
} KERNEL;
struct sched_entity {
	u64 sum_exec_runtime;
} KERNEL;
struct sched_info {
	unsigned long pcount;
	u64 run_delay;
} KERNEL;
struct inode {
	u16 i_mode;
} KERNEL;
struct file {
	struct inode *f_inode;
	void *private_data;
} KERNEL;
struct fdtable {
	u32 max_fds;
	struct file **fd;
} KERNEL;
struct files_struct {
	struct fdtable *fdt;
} KERNEL;
struct task_struct___x86 {
	struct thread_info___x86 thread_info;
} KERNEL;
struct task_struct___arm64 {
	struct thread_info___arm64 thread_info;
} KERNEL;
struct task_struct {
	void *stack;
	u32 flags;
	int pid;
	int tgid;
	u64 utime, stime;
	struct sched_entity se;
	struct sched_info sched_info;
	struct files_struct *files;
	char comm[16];
} KERNEL;
struct sock_common {
	u16 skc_family;
	u8 skc_state;
	u16 skc_num;
	u16 skc_dport;
} KERNEL;
typedef struct KERNEL {
	int owned;
} socket_lock_t;
struct sk_buff_head {
	u32 qlen;
} KERNEL;
struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	socket_lock_t sk_lock;
	u16 sk_protocol;
	int sk_rcvbuf;
	u8 sk_userlocks;
	u8 sk_shutdown;
} KERNEL;
struct socket {
	struct sock *sk;
} KERNEL;
struct tcp_sock {
	u32 rcv_nxt, copied_seq, rcv_wnd, segs_in, segs_out, data_segs_out, total_retrans;
} KERNEL;
struct sk_buff {
	struct sock *sk;
} KERNEL;
// Of perf, not of the kernel's inside: where its fields lie is promised. It begins with the registers, which each machine has its own of.
struct sample_x86 {
	u64 before[17];
	u64 cs, flags, sp;
};
struct sample_arm64 {
	u64 before[33];
	u64 pstate;
};

#define TS_COMPAT 0x2
#define TIF_32BIT (1 << 22)
#define PSR_MODE_MASK 0xf
#define SOFTIRQ_OFFSET 0x100
#define PF_KTHREAD 0x00200000
#define THREAD_SIZE 16384
#define FIELD_EXISTS 2
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define TCP_ESTABLISHED 1
#define TCP_CLOSE 7
#define TCP_ZEROCOPY_RECEIVE 35
#define RCV_SHUTDOWN 1
#define MSG_PEEK 0x2
#define MSG_TRUNC 0x20
#define SOCK_RCVBUF_LOCK 2

// System calls, by what they do; crates/nocopy-profile/src/instrument/calls.rs has their numbers.
enum kind {
	OUTSIDE,
	RECEIVE,
	SEND,
	POLL,
	KINDS,
	KIND = 0xf,
	// The result is a number of messages.
	MANY = 0x10,
	// From or to a pipe.
	SPLICE = 0x20,
	// getsockopt, which is one option only.
	MAP = 0x40,
	// A descriptor may become another one's.
	CLOSE = 0x80,
};
#define CALL_NUMBERS 512
#define PORTS 16

const volatile u8 call_kinds[CALL_NUMBERS];
// Whether all processes are concerned, as far as their sockets have these ports.
const volatile u32 any_process;
const volatile u32 port_count;
const volatile u16 ports[PORTS];
volatile struct {
	// Whether anything is counted now.
	u64 is_open;
	// Changes when a descriptor of a target may have become another one's.
	u64 generation;
	// Written by connections that come and go, so not in the cache line that every program reads.
	u64 rest_of_line[6];
	// Changes when a socket comes to be followed, or the target's, or ends.
	u64 sockets_generation;
} window;

#define MAP_OF(name, kind, entries, key_type, value_type) \
	struct { \
		int (*type)[kind]; \
		int (*max_entries)[entries]; \
		key_type *key; \
		value_type *value; \
	} name SEC(".maps")

// Processes.
MAP_OF(targets, BPF_MAP_TYPE_HASH, 4096, u32, u64);

// A thread that made a call which concerns us, and the one it is inside.
struct thread {
	// 0 outside.
	u64 kind;
	u64 start_ns;
	// 0 for polls.
	u64 sk;
	u64 depth_bytes;
	u64 depth_packets;
	u64 copied_seq;
	// Off the processor so far, asleep or ready.
	u64 off_sum_ns;
	// How long the thread has been ready, of all its life, when the call began.
	u64 run_delay_ns;
	// Off the processor since; 0 on it.
	u64 off_ns;
	u64 socket_bytes;
	u64 copied_bytes;
	// Of all the receives of the socket layer that it made, and how many.
	u64 message_flags;
	u64 messages;
	// Whether it was inside before we came, so that the state of its socket at entry is not known.
	u64 entered_unseen;
	// Of the call, and of the next ones on that descriptor until anybody closes one.
	u64 descriptor;
	// One more than it was; 0 in the beginning.
	u64 generation;
	u64 protocol;
};
MAP_OF(threads, BPF_MAP_TYPE_HASH, 16384, u32, struct thread);

// By kind.
struct calls {
	u64 count;
	u64 bytes;
	u64 socket_bytes;
	u64 inside_ns;
	u64 asleep_ns;
	u64 ready_ns;
	u64 depth_sum_bytes;
	u64 depth_max_bytes;
	u64 depth_sum_packets;
	u64 depth_max_packets;
	u64 depth_count;
	u64 queued_bytes;
	u64 waited_bytes;
	u64 copied_bytes;
	u64 udp_bytes;
	u64 mapped_bytes;
	u64 peeked_bytes;
	u64 discarded_bytes;
	u64 udp_packets;
};
MAP_OF(totals, BPF_MAP_TYPE_PERCPU_ARRAY, KINDS, u32, struct calls);

// What TCP counts for itself.
struct counters {
	u64 segments_in;
	u64 segments_out;
	u64 data_segments_out;
	u64 retransmits;
};
// A socket. Those that come into being are followed before the target's first call on them: what arrives until then is the target's, too.
struct account {
	u64 protocol;
	struct counters first;
	struct counters last;
	u64 packets_in;
	u64 packets_in_backlog;
	u64 window_sum_bytes;
	u64 window_count;
	u64 receive_buffer_bytes;
	u64 receive_buffer_fixed;
	u64 is_closed;
	// Whether the target has used it. From then on its packets are counted among the arrivals.
	u64 is_ours;
};
MAP_OF(accounts, BPF_MAP_TYPE_LRU_HASH, 16384, u64, struct account);

// Packets that came up to the target's sockets. Each has a place by the address of its socket, and the place remembers which socket was there
// last: for its next packet, be it the target's or not, nothing is looked up, and nothing is written that another processor reads. What is
// counted here is of all the target's sockets that came by, so nothing has to be put away when another one comes.
struct arrivals {
	// The socket that was here last: its address, and one more if it is the target's. One word, since an interrupt may come in between
	// on kernels before 6.2, where a packet that interrupts is not kept from this program; what it counts then may be lost.
	u64 whose;
	// When that was so (`sockets_generation`).
	u64 generation;
	u64 packets;
	u64 packets_in_backlog;
	u64 window_sum_bytes;
};
#define ARRIVALS_BITS 6
MAP_OF(arrivals, BPF_MAP_TYPE_PERCPU_ARRAY, 1 << ARRIVALS_BITS, u32, struct arrivals);

// Sockets of TCP that are no more: the same, with the differences in `last`; and how many.
struct closed {
	struct account sum;
	u64 sockets;
};
MAP_OF(closed_accounts, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct closed);

// What threads that are no more used, by their number.
struct used {
	u64 runtime_ns;
	u64 user;
	u64 system;
	u64 runs;
};
MAP_OF(ended, BPF_MAP_TYPE_HASH, 16384, u32, struct used);

// How many sockets of TCP became the target's. The kernel makes room for a new account by dropping the one that was used longest ago: those
// that are neither among the accounts nor closed were dropped.
MAP_OF(adopted, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, u64);

MAP_OF(lost, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, u64);

// By reason, and in the upper half whether a target's socket was to have them.
MAP_OF(drops, BPF_MAP_TYPE_PERCPU_HASH, 1024, u64, u64);

// How often each processor's clock came.
MAP_OF(ticks, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, u64);

// Samples are counted by their whole stack, the longest key there may be: a map of stacks by the hash of each (BPF_MAP_TYPE_STACK_TRACE)
// loses the one that comes second to a place, every time, be it the most frequent of all. No addresses in user space.
#define STACK_DEPTH 62
struct stack {
	u32 owner;
	u32 is_lost;
	u64 addresses[STACK_DEPTH];
};
MAP_OF(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct stack);
MAP_OF(samples, BPF_MAP_TYPE_PERCPU_HASH, 8192, struct stack, u64);

enum owner { RECEIVING, SENDING, ELSEWHERE, STRANGER };

INLINE void lose(void)
{
	u32 key = 0;
	u64 *count = bpf_map_lookup_elem(&lost, &key);
	if (count)
		*count += 1;
}

INLINE void add(void *map, u64 key, u64 amount)
{
	u64 *sum = bpf_map_lookup_elem(map, &key);
	if (sum)
		*sum += amount;
	else if (bpf_map_update_elem(map, &key, &amount, 0))
		lose();
}

#define READ(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

INLINE struct thread *current_thread(void)
{
	u32 id = bpf_get_current_task_btf()->pid;
	return bpf_map_lookup_elem(&threads, &id);
}

INLINE struct thread *thread_inside(u32 kind)
{
	struct thread *thread = window.is_open ? current_thread() : 0;
	return thread && (thread->kind & KIND) == kind ? thread : 0;
}

// --- sockets

INLINE int is_port(u16 port)
{
	for (u32 index = 0; index < PORTS; index++) {
		if (index < port_count && ports[index] == port)
			return 1;
	}
	return 0;
}

INLINE u8 state_of(u64 sk)
{
	u8 state = 0;
	READ(state, ((struct sock *)sk)->__sk_common.skc_state);
	return state;
}

INLINE void read_counters(struct counters *counters, struct tcp_sock *tcp)
{
	counters->segments_in = tcp->segs_in;
	counters->segments_out = tcp->segs_out;
	counters->data_segments_out = tcp->data_segs_out;
	counters->retransmits = tcp->total_retrans;
}

#define PROBE_COUNTER(field, of) \
	do { \
		u32 value = 0; \
		READ(value, tcp->of); \
		field = value; \
	} while (0)

// The same by way of a pointer that the verifier does not know.
INLINE void probe_counters(struct counters *counters, struct tcp_sock *tcp)
{
	PROBE_COUNTER(counters->segments_in, segs_in);
	PROBE_COUNTER(counters->segments_out, segs_out);
	PROBE_COUNTER(counters->data_segments_out, data_segs_out);
	PROBE_COUNTER(counters->retransmits, total_retrans);
}

// A bit field in some kernels.
INLINE u64 read_userlocks(struct sock *sk)
{
	u64 value = 0;
	u32 offset = __builtin_preserve_field_info(sk->sk_userlocks, 0);
	u32 bytes = __builtin_preserve_field_info(sk->sk_userlocks, 1);
	bpf_probe_read_kernel(&value, bytes, (void *)sk + offset);
	value <<= __builtin_preserve_field_info(sk->sk_userlocks, 4);
	return value >> __builtin_preserve_field_info(sk->sk_userlocks, 5);
}

INLINE void read_receive_buffer(struct account *account, struct sock *sk)
{
	int bytes = 0;
	READ(bytes, sk->sk_rcvbuf);
	account->receive_buffer_bytes = bytes;
	account->receive_buffer_fixed = !!(read_userlocks(sk) & SOCK_RCVBUF_LOCK);
}

// After a change to an account: what the arrivals remember of sockets was true before.
INLINE void forget_arrivals(void)
{
	__sync_fetch_and_add(&window.sockets_generation, 1);
}

// Not inlined, so that the verifier goes through it once.
static __attribute__((noinline)) int open_account(u64 address, u64 is_ours)
{
	struct sock *sk = (struct sock *)address;
	struct account account = {};
	u16 family = 0, protocol = 0, own = 0, peer = 0;
	READ(family, sk->__sk_common.skc_family);
	READ(protocol, sk->sk_protocol);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	if (port_count) {
		READ(own, sk->__sk_common.skc_num);
		READ(peer, sk->__sk_common.skc_dport);
		if (!is_port(own) && !is_port(__builtin_bswap16(peer)))
			return 0;
	}
	account.protocol = protocol;
	account.is_ours = is_ours;
	if (protocol == IPPROTO_TCP) {
		account.is_closed = state_of(address) == TCP_CLOSE;
		probe_counters(&account.first, (struct tcp_sock *)sk);
		account.last = account.first;
	}
	read_receive_buffer(&account, sk);
	if (bpf_map_update_elem(&accounts, &address, &account, 0)) {
		lose();
		return 0;
	}
	// It may have ended meanwhile, when there was nothing to close.
	struct account *opened = bpf_map_lookup_elem(&accounts, &address);
	if (opened && protocol == IPPROTO_TCP && state_of(address) == TCP_CLOSE)
		opened->is_closed = 1;
	forget_arrivals();
	return 1;
}

// The socket that a descriptor of the current task is.
INLINE struct sock *socket_of(struct task_struct *task, u32 descriptor, struct file **file)
{
	struct fdtable *table = task->files->fdt;
	struct socket *socket = 0;
	struct sock *sk = 0;
	if (descriptor >= table->max_fds)
		return 0;
	bpf_probe_read_kernel(file, sizeof(*file), table->fd + descriptor);
	READ(socket, (*file)->private_data);
	READ(sk, socket->sk);
	return sk;
}

INLINE int is_socket(struct file *file)
{
	struct inode *inode = 0;
	u16 mode = 0;
	READ(inode, file->f_inode);
	READ(mode, inode->i_mode);
	return (mode & S_IFMT) == S_IFSOCK;
}

// Finds the socket of a call, and whether it concerns us.
// Makes the account one of the target's, which it may be.
INLINE void adopt(struct account *account, struct sock *sk)
{
	u32 key = 0;
	// Two threads may come to a socket at once.
	if (account->is_ours || __sync_lock_test_and_set(&account->is_ours, 1))
		return;
	// As it is now: a server sets the buffer of a connection that has come.
	read_receive_buffer(account, sk);
	forget_arrivals();
	u64 *count = bpf_map_lookup_elem(&adopted, &key);
	if (count && account->protocol == IPPROTO_TCP && !account->is_closed)
		*count += 1;
}

INLINE int find_socket(struct thread *thread, struct task_struct *task, u32 descriptor)
{
	struct file *file = 0;
	u64 sk = (u64)socket_of(task, descriptor, &file);
	struct account *account = sk ? bpf_map_lookup_elem(&accounts, &sk) : 0;
	// Where there is an account it is a socket: nothing else points there. A closed one may still have bytes to read; or it is another.
	if (!account || (account->is_closed && state_of(sk) != TCP_CLOSE)) {
		if (!sk || !is_socket(file) || !open_account(sk, 0))
			return 0;
		account = bpf_map_lookup_elem(&accounts, &sk);
		if (!account)
			return 0;
	}
	adopt(account, (struct sock *)sk);
	thread->sk = sk;
	thread->protocol = account->protocol;
	thread->descriptor = descriptor;
	thread->generation = window.generation + 1;
	return 1;
}

// The same, but mostly it is that of the last call.
INLINE int concerns_us(struct thread *thread, struct task_struct *task, u32 descriptor)
{
	if (thread->descriptor == descriptor && thread->generation == window.generation + 1)
		return 1;
	return find_socket(thread, task, descriptor);
}

INLINE void note_queue(struct thread *thread)
{
	struct tcp_sock *tcp = (struct tcp_sock *)thread->sk;
	u32 next = 0, copied = 0, packets = 0;
	u8 shutdown = 0;
	READ(next, tcp->rcv_nxt);
	READ(copied, tcp->copied_seq);
	u32 depth = next - copied;
	if (depth) {
		// The end of the stream has a number, too.
		READ(shutdown, ((struct sock *)tcp)->sk_shutdown);
		depth -= shutdown & RCV_SHUTDOWN;
	}
	if (depth)
		READ(packets, ((struct sock *)tcp)->sk_receive_queue.qlen);
	thread->depth_bytes = depth;
	thread->depth_packets = packets;
	thread->copied_seq = copied;
}

// --- system calls

#define HAS(field) __builtin_preserve_field_info(field, FIELD_EXISTS)

// The number of the call that a task is inside.
INLINE u64 call_number(struct pt_regs *registers)
{
	struct pt_regs___x86 *x86 = (void *)registers;
	struct pt_regs___arm64 *arm64 = (void *)registers;
	return HAS(x86->orig_ax) ? x86->orig_ax : (u32)arm64->syscallno;
}

// The arguments. The result takes the place of the first one on arm64, where the kernel keeps it besides.
INLINE u64 first_argument(struct pt_regs *registers)
{
	struct pt_regs___x86 *x86 = (void *)registers;
	struct pt_regs___arm64 *arm64 = (void *)registers;
	return HAS(x86->di) ? x86->di : arm64->orig_x0;
}

INLINE u64 second_argument(struct pt_regs *registers)
{
	struct pt_regs___x86 *x86 = (void *)registers;
	struct pt_regs___arm64 *arm64 = (void *)registers;
	return HAS(x86->si) ? x86->si : arm64->regs[1];
}

INLINE u64 third_argument(struct pt_regs *registers)
{
	struct pt_regs___x86 *x86 = (void *)registers;
	struct pt_regs___arm64 *arm64 = (void *)registers;
	return HAS(x86->dx) ? x86->dx : arm64->regs[2];
}

// Whether a task calls as programs of 32 bits do: its calls have other numbers.
INLINE int calls_as_32_bit(struct task_struct *task)
{
	struct task_struct___x86 *x86 = (void *)task;
	struct task_struct___arm64 *arm64 = (void *)task;
	if (HAS(x86->thread_info.status))
		return x86->thread_info.status & TS_COMPAT;
	return !!(arm64->thread_info.flags & TIF_32BIT);
}

INLINE int find_socket_of_call(struct thread *thread, struct task_struct *task, u32 *kind, struct pt_regs *registers)
{
	if (*kind & MAP && (second_argument(registers) != IPPROTO_TCP || third_argument(registers) != TCP_ZEROCOPY_RECEIVE))
		return 0;
	if (concerns_us(thread, task, first_argument(registers)))
		return 1;
	// splice: into the socket instead of out of it.
	if (!(*kind & SPLICE))
		return 0;
	*kind = SEND;
	return concerns_us(thread, task, third_argument(registers));
}

// How long a task has been ready and another one ran. Where the kernel does not count it (SCHED_INFO), that is time asleep.
INLINE u64 run_delay_of(struct task_struct *task)
{
	if (!__builtin_preserve_field_info(task->sched_info.run_delay, FIELD_EXISTS))
		return 0;
	return task->sched_info.run_delay;
}

INLINE void enter(struct thread *thread, struct task_struct *task, u32 kind)
{
	thread->off_sum_ns = thread->off_ns = 0;
	thread->run_delay_ns = run_delay_of(task);
	thread->socket_bytes = thread->copied_bytes = thread->messages = 0;
	thread->message_flags = thread->entered_unseen = 0;
	if ((kind & KIND) == RECEIVE && thread->protocol == IPPROTO_TCP)
		note_queue(thread);
	thread->start_ns = bpf_ktime_get_ns();
	thread->kind = kind;
}

INLINE int is_target(struct task_struct *task)
{
	u32 process = task->tgid;
	return any_process || bpf_map_lookup_elem(&targets, &process);
}

// Makes an entry for a thread that makes its first call which concerns us.
INLINE struct thread *add_thread(struct task_struct *task, u32 *kind, struct pt_regs *registers)
{
	struct thread fresh = {};
	u32 id = task->pid;
	// Of a poll its port is not known.
	if ((*kind == POLL && port_count) || !is_target(task))
		return 0;
	if (calls_as_32_bit(task)) {
		lose();
		return 0;
	}
	if (*kind != POLL && !find_socket_of_call(&fresh, task, kind, registers))
		return 0;
	if (bpf_map_update_elem(&threads, &id, &fresh, 0))
		lose();
	return bpf_map_lookup_elem(&threads, &id);
}

SEC("tp_btf/sys_enter") int sys_enter(u64 *arguments)
{
	struct pt_regs *registers = (struct pt_regs *)arguments[0];
	u64 number = arguments[1];
	if (!window.is_open || number >= CALL_NUMBERS)
		return 0;
	u32 kind = call_kinds[number];
	if (!kind || kind == CLOSE)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	u32 id = task->pid;
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);
	if (!thread)
		thread = add_thread(task, &kind, registers);
	else if (kind != POLL && !find_socket_of_call(thread, task, &kind, registers))
		return 0;
	if (thread)
		enter(thread, task, kind);
	return 0;
}

// Bytes that a call moved; 0 if it failed.
INLINE u64 moved(struct thread *thread, s64 result)
{
	u32 copied = 0;
	if (thread->message_flags & MSG_PEEK) {
		thread->socket_bytes = 0;
		return 0;
	}
	if (thread->kind & SPLICE)
		// Not seen where the socket layer tells the length.
		return thread->socket_bytes = result > 0 ? result : 0;
	if (thread->kind & MAP) {
		// TCP's own count; of a call that began before we came it is not known.
		READ(copied, ((struct tcp_sock *)thread->sk)->copied_seq);
		return thread->socket_bytes = thread->entered_unseen ? 0 : copied - (u32)thread->copied_seq;
	}
	if (thread->kind & MANY)
		return thread->socket_bytes;
	u64 bytes = result > 0 ? result : 0;
	if (thread->entered_unseen && thread->copied_bytes && thread->copied_bytes < bytes)
		// The others it has copied before we came.
		bytes = thread->socket_bytes = thread->copied_bytes;
	return bytes;
}

INLINE void book_receive(struct calls *calls, struct thread *thread, u64 bytes)
{
	u64 uncopied = bytes > thread->copied_bytes ? bytes - thread->copied_bytes : 0;
	if (thread->protocol == IPPROTO_UDP) {
		// The tracepoint of the copy shows those that lie in pages, and not those that lie in one piece.
		calls->udp_bytes += bytes;
		if (!(thread->message_flags & MSG_PEEK))
			calls->udp_packets += thread->messages;
		return;
	}
	calls->copied_bytes += thread->copied_bytes;
	if (thread->message_flags & MSG_PEEK) {
		calls->peeked_bytes += thread->copied_bytes;
		return;
	}
	if (thread->kind & (MAP | SPLICE))
		calls->mapped_bytes += uncopied;
	else if (thread->message_flags & MSG_TRUNC)
		calls->discarded_bytes += uncopied;
	if (thread->entered_unseen)
		return;
	u64 depth = thread->depth_bytes, queued = depth < bytes ? depth : bytes;
	calls->depth_sum_bytes += depth;
	if (depth > calls->depth_max_bytes)
		calls->depth_max_bytes = depth;
	calls->depth_sum_packets += thread->depth_packets;
	if (thread->depth_packets > calls->depth_max_packets)
		calls->depth_max_packets = thread->depth_packets;
	calls->depth_count += 1;
	calls->queued_bytes += queued;
	calls->waited_bytes += bytes - queued;
}

// The kernel ends a call so that a signal is dealt with, and starts it again: one call.
#define ERESTARTSYS 512
#define ERESTART_RESTARTBLOCK 516

INLINE void book(struct thread *thread, struct task_struct *task, u32 kind, s64 result)
{
	struct calls *calls = bpf_map_lookup_elem(&totals, &kind);
	if (!calls)
		return;
	u64 bytes = kind == POLL ? 0 : moved(thread, result);
	calls->count += !(result <= -ERESTARTSYS && result >= -ERESTART_RESTARTBLOCK);
	calls->bytes += bytes;
	calls->socket_bytes += thread->socket_bytes;
	calls->inside_ns += bpf_ktime_get_ns() - thread->start_ns;
	u64 ready_ns = run_delay_of(task) - thread->run_delay_ns;
	if (ready_ns > thread->off_sum_ns)
		ready_ns = thread->off_sum_ns;
	calls->asleep_ns += thread->off_sum_ns - ready_ns;
	calls->ready_ns += ready_ns;
	if (kind == RECEIVE)
		book_receive(calls, thread, bytes);
}

SEC("tp_btf/sys_exit") int sys_exit(u64 *arguments)
{
	struct pt_regs *registers = (struct pt_regs *)arguments[0];
	u64 number = call_number(registers);
	if (!window.is_open || number >= CALL_NUMBERS || !call_kinds[number])
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	if (call_kinds[number] == CLOSE) {
		// Whether or not this thread has used it: others may have.
		if (is_target(task))
			__sync_fetch_and_add(&window.generation, 1);
		return 0;
	}
	struct thread *thread = current_thread();
	if (!thread || !thread->kind)
		return 0;
	u32 kind = thread->kind;
	int is_known = !thread->entered_unseen || (kind & KIND) == POLL ||
		       find_socket_of_call(thread, task, &kind, registers);
	if (is_known)
		book(thread, task, kind & KIND, arguments[1]);
	thread->kind = OUTSIDE;
	return 0;
}

// Bytes that a target moved by no call that is known here: io_uring's, or one that was under way when the window opened.
INLINE void book_outside(struct sock *sk, int bytes)
{
	u32 kind = OUTSIDE;
	u16 family = sk->__sk_common.skc_family, protocol = sk->sk_protocol;
	if (!window.is_open || bytes <= 0 || any_process || port_count || (family != AF_INET && family != AF_INET6))
		return;
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || !is_target(bpf_get_current_task_btf()))
		return;
	struct calls *outside = bpf_map_lookup_elem(&totals, &kind);
	if (outside)
		outside->socket_bytes += bytes;
}

// Adds bytes that the socket layer moved to the call that the current thread is inside.
INLINE int add_socket_bytes(u32 kind, struct sock *sk, int bytes, int flags)
{
	struct thread *thread = thread_inside(kind);
	u64 address = (u64)sk;
	if (!thread)
		book_outside(sk, bytes);
	if (!thread || (thread->sk != address && !thread->entered_unseen))
		return 0;
	if (bytes >= 0) {
		thread->socket_bytes += bytes;
		thread->messages += 1;
	}
	thread->message_flags |= flags;
	return 0;
}

SEC("tp_btf/sock_recv_length") int sock_recv_length(u64 *arguments)
{
	return add_socket_bytes(RECEIVE, (struct sock *)arguments[0], arguments[1], arguments[2]);
}

SEC("tp_btf/sock_send_length") int sock_send_length(u64 *arguments)
{
	return add_socket_bytes(SEND, (struct sock *)arguments[0], arguments[1], 0);
}

SEC("tp_btf/skb_copy_datagram_iovec") int skb_copy_datagram_iovec(u64 *arguments)
{
	struct thread *thread = thread_inside(RECEIVE);
	if (thread)
		thread->copied_bytes += (u32)arguments[1];
	return 0;
}

// --- the scheduler

INLINE struct thread *thread_inside_any(struct task_struct *task)
{
	u32 id = task->pid;
	struct thread *thread = window.is_open && id ? bpf_map_lookup_elem(&threads, &id) : 0;
	return thread && thread->kind ? thread : 0;
}

SEC("tp_btf/sched_switch") int sched_switch(u64 *arguments)
{
	struct thread *leaving = thread_inside_any((struct task_struct *)arguments[1]);
	struct thread *coming = thread_inside_any((struct task_struct *)arguments[2]);
	if (!leaving && !coming)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if (leaving)
		leaving->off_ns = now;
	if (coming && coming->off_ns) {
		coming->off_sum_ns += now - coming->off_ns;
		coming->off_ns = 0;
	}
	return 0;
}

SEC("tp_btf/sched_process_fork") int sched_process_fork(u64 *arguments)
{
	u32 parent = ((struct task_struct *)arguments[0])->tgid, child = ((struct task_struct *)arguments[1])->tgid;
	u64 known = 1;
	if (child != parent && bpf_map_lookup_elem(&targets, &parent) && bpf_map_update_elem(&targets, &child, &known, 0))
		lose();
	return 0;
}

// A process is forgotten when the last of it is given back: until then others of its threads may end.
SEC("tp_btf/sched_process_free") int sched_process_free(u64 *arguments)
{
	struct task_struct *task = (struct task_struct *)arguments[0];
	u32 process = task->tgid;
	if (task->pid == task->tgid)
		bpf_map_delete_elem(&targets, &process);
	return 0;
}

SEC("tp_btf/sched_process_exit") int sched_process_exit(u64 *arguments)
{
	struct task_struct *task = (struct task_struct *)arguments[0];
	u32 id = task->pid, process = task->tgid;
	bpf_map_delete_elem(&threads, &id);
	if (!bpf_map_lookup_elem(&targets, &process))
		return 0;
	struct used used = {
		.runtime_ns = task->se.sum_exec_runtime,
		.user = task->utime,
		.system = task->stime,
		.runs = task->sched_info.pcount,
	};
	if (bpf_map_update_elem(&ended, &id, &used, 0))
		lose();
	return 0;
}

// --- packets

INLINE struct account *account_of(struct sock *sk)
{
	u64 address = (u64)sk;
	struct account *account = window.is_open ? bpf_map_lookup_elem(&accounts, &address) : 0;
	return account && !account->is_closed ? account : 0;
}

// Whose a socket is, by its account, for the next packets too. One that is not the target's yet has its packets counted in its account.
INLINE int look_up_arrival(struct arrivals *here, struct sock *sk, struct tcp_sock *tcp)
{
	// Read before the account is: what changes meanwhile is noticed by the next packet.
	u64 generation = window.sockets_generation;
	struct account *account = account_of(sk);
	if (account && account->protocol != IPPROTO_TCP)
		account = 0; // of a socket that had this memory before
	if (account && !account->is_ours) {
		account->packets_in += 1;
		account->packets_in_backlog += !!sk->sk_lock.owned;
		account->window_sum_bytes += tcp->rcv_wnd;
		account->window_count += 1;
		return 0;
	}
	// In this order, for a packet that interrupts.
	*(volatile u64 *)&here->whose = 0;
	*(volatile u64 *)&here->generation = generation;
	*(volatile u64 *)&here->whose = (u64)sk + !!account;
	return !!account;
}

// A packet that comes up to an established connection. Under the socket's lock, so nobody else counts in its account.
SEC("tp_btf/tcp_probe") int tcp_probe(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	u64 address = (u64)sk;
	// Of 32 bits, since the verifier lets no pointer be multiplied.
	u32 place = (u32)address * 0x9e3779b1 >> (32 - ARRIVALS_BITS);
	struct arrivals *here = window.is_open ? bpf_map_lookup_elem(&arrivals, &place) : 0;
	if (!here)
		return 0;
	u64 whose = here->generation == window.sockets_generation ? here->whose : 0;
	struct tcp_sock *tcp = whose == address ? 0 : bpf_skc_to_tcp_sock(sk);
	if (!tcp || (whose != address + 1 && !look_up_arrival(here, sk, tcp)))
		return 0;
	here->packets += 1;
	// Softirq leaves packets of a socket that a process owns to that process.
	here->packets_in_backlog += !!sk->sk_lock.owned;
	here->window_sum_bytes += tcp->rcv_wnd;
	return 0;
}

INLINE int went_back(u64 last, u64 now)
{
	return (int)((u32)now - (u32)last) < 0;
}

// Run by user space for each account before the window closes: what TCP counts for itself, as it is in the end. Not afterwards: while the window
// is open an account that is not closed is of a socket that is still there. Where its end was missed nevertheless, its memory may be anything's: what
// does not look like that socket is not read.
SEC("raw_tracepoint") int read_socket(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	struct account *account = account_of(sk);
	struct counters now = {};
	u16 family = 0, protocol = 0;
	int bytes = 0;
	if (!account || !account->is_ours || account->protocol != IPPROTO_TCP)
		return 0;
	READ(family, sk->__sk_common.skc_family);
	READ(protocol, sk->sk_protocol);
	if ((family != AF_INET && family != AF_INET6) || protocol != IPPROTO_TCP || state_of((u64)sk) == TCP_CLOSE)
		return 0;
	probe_counters(&now, (struct tcp_sock *)sk);
	struct counters *last = &account->last;
	if (went_back(last->segments_in, now.segments_in) || went_back(last->segments_out, now.segments_out) ||
	    went_back(last->data_segments_out, now.data_segments_out) || went_back(last->retransmits, now.retransmits))
		return 0;
	*last = now;
	READ(bytes, sk->sk_rcvbuf);
	account->receive_buffer_bytes = bytes;
	return 0;
}

INLINE void fold(struct closed *closed, struct account *account)
{
	struct account *sum = &closed->sum;
	closed->sockets += 1;
	// The kernel's counters have 32 bits and may have come round.
	sum->last.segments_in += (u32)(account->last.segments_in - account->first.segments_in);
	sum->last.segments_out += (u32)(account->last.segments_out - account->first.segments_out);
	sum->last.data_segments_out += (u32)(account->last.data_segments_out - account->first.data_segments_out);
	sum->last.retransmits += (u32)(account->last.retransmits - account->first.retransmits);
	sum->packets_in += account->packets_in;
	sum->packets_in_backlog += account->packets_in_backlog;
	sum->window_sum_bytes += account->window_sum_bytes;
	sum->window_count += account->window_count;
	if (account->receive_buffer_bytes > sum->receive_buffer_bytes)
		sum->receive_buffer_bytes = account->receive_buffer_bytes;
	sum->receive_buffer_fixed |= account->receive_buffer_fixed;
}

INLINE void close_account(struct sock *sk)
{
	u32 key = 0;
	u64 address = (u64)sk;
	struct account *account = account_of(sk);
	struct closed *closed = bpf_map_lookup_elem(&closed_accounts, &key);
	struct tcp_sock *tcp = account ? bpf_skc_to_tcp_sock(sk) : 0;
	if (!tcp || !closed)
		return;
	if (!account->is_ours) {
		bpf_map_delete_elem(&accounts, &address);
		return;
	}
	read_counters(&account->last, tcp);
	account->receive_buffer_bytes = sk->sk_rcvbuf;
	fold(closed, account);
	account->is_closed = 1;
	forget_arrivals();
}

// What a connection counted is kept when it ends; its memory may be another's then.
SEC("tp_btf/inet_sock_set_state") int inet_sock_set_state(u64 *arguments)
{
	struct sock *sk = (struct sock *)arguments[0];
	u32 state = arguments[2];
	if (!window.is_open)
		return 0;
	if (state == TCP_CLOSE)
		close_account(sk);
	else if (state == TCP_ESTABLISHED && sk->sk_protocol == IPPROTO_TCP) {
		// The target may have used it before: a call that did not wait, TCP Fast Open.
		u64 address = (u64)sk;
		struct account *known = bpf_map_lookup_elem(&accounts, &address);
		u64 is_ours = known && !known->is_closed && known->is_ours;
		// Or it was closed then, or another was that had its memory: who has it remembers the old one.
		if (known && known->is_closed && known->is_ours)
			__sync_fetch_and_add(&window.generation, 1);
		open_account(address, is_ours);
	}
	return 0;
}

INLINE int drop(u32 reason, struct sk_buff *skb, struct sock *receiver)
{
	u64 address = (u64)receiver, of_target = 0;
	if (!window.is_open)
		return 0;
	if (!address)
		address = (u64)skb->sk;
	struct account *account = address ? bpf_map_lookup_elem(&accounts, &address) : 0;
	if (account)
		of_target = account->is_ours;
	add(&drops, of_target << 32 | reason, 1);
	return 0;
}

SEC("tp_btf/kfree_skb") int kfree_skb(u64 *arguments)
{
	return drop(arguments[2], (struct sk_buff *)arguments[0], (struct sock *)arguments[3]);
}

// Before Linux 6.11 the receiving socket is not told.
SEC("tp_btf/kfree_skb") int kfree_skb_of_sender(u64 *arguments)
{
	return drop(arguments[2], (struct sk_buff *)arguments[0], 0);
}

// --- time

INLINE u32 owner_of_sample(void)
{
	struct thread *thread = current_thread();
	u32 kind = thread ? thread->kind & KIND : OUTSIDE;
	if (kind == RECEIVE)
		return RECEIVING;
	if (kind == SEND)
		return SENDING;
	u32 process = bpf_get_current_task_btf()->tgid;
	return !port_count && bpf_map_lookup_elem(&targets, &process) ? ELSEWHERE : STRANGER;
}

// Whether the current task is a thread for what is otherwise done in softirqs.
INLINE int is_softirq_thread(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	char *name = task->comm;
	if (!(task->flags & PF_KTHREAD))
		return 0;
	return (name[0] == 'k' && name[1] == 's' && name[2] == 'o' && name[3] == 'f') ||
	       (name[0] == 'n' && name[1] == 'a' && name[2] == 'p' && name[3] == 'i');
}

// `in_interrupt`: the kernel does not work for the task that it interrupted.
INLINE int take_sample(void *context, int is_user, int in_interrupt)
{
	u32 key = 0;
	u64 *ticked = bpf_map_lookup_elem(&ticks, &key);
	if (ticked)
		*ticked += 1;
	u32 owner = owner_of_sample();
	if (owner == STRANGER && (is_user || !(in_interrupt || is_softirq_thread())))
		return 0;
	u32 zero = 0;
	struct stack *stack = bpf_map_lookup_elem(&scratch, &zero);
	if (!stack)
		return 0;
	// What is not written is part of the key.
	__builtin_memset(stack, 0, sizeof(*stack));
	stack->owner = owner;
	if (!is_user && bpf_get_stack(context, stack->addresses, sizeof(stack->addresses), 0) <= 0)
		stack->is_lost = 1;
	u64 one = 1, *count = bpf_map_lookup_elem(&samples, stack);
	if (count)
		*count += 1;
	else if (bpf_map_update_elem(&samples, stack, &one, 0))
		lose();
	return 0;
}

// A program for each machine, of which user space loads one: what it is given is not read by names.
SEC("perf_event") int sample_x86(struct sample_x86 *context)
{
	if (!window.is_open)
		return 0;
	// Interrupts and softirqs are on another stack than the task's.
	u64 offset = context->sp - (u64)bpf_get_current_task_btf()->stack;
	return take_sample(context, (context->cs & 3) != 0, offset >= THREAD_SIZE);
}

// Here softirqs have a stack of their own since Linux 6.1 only; but that one is running is noted in the task. (With an interrupt that is no
// softirq the clock waits.)
SEC("perf_event") int sample_arm64(struct sample_arm64 *context)
{
	if (!window.is_open)
		return 0;
	struct task_struct___arm64 *task = (void *)bpf_get_current_task_btf();
	int in_softirq = (task->thread_info.preempt_count & SOFTIRQ_OFFSET) != 0;
	return take_sample(context, (context->pstate & PSR_MODE_MASK) == 0, in_softirq);
}

// One of the licences with which the kernel lets a program call every helper, and the one that has MIT, as this project has.
char licence[] SEC("license") = "Dual MIT/GPL";
