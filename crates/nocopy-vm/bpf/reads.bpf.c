// Counts what one process's system calls return that read into its memory, and what it splices, at the tracepoint of each call's exit.
// Not at the one of all calls: the kernel lets a thread be put aside there, and passes the program over for the next one.
//
// Built into reads.bpf.o by `cargo xtask bpf`. x86-64 only: its numbers of calls.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;

// What the tracepoints tell, as their formats in tracefs say.
struct call_end {
	u64 common;
	int number;
	long long returned;
};

const volatile u32 process;

struct count {
	u64 calls;
	u64 bytes;
};

// Numbered as in crates/nocopy-vm/src/guest/reads.rs.
enum { READ, PREAD, READV, PREADV, PREADV2, SPLICE, COUNTS };
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[COUNTS];
	u32 *key;
	struct count *value;
} counts SEC(".maps");

static __attribute__((always_inline)) u32 kind_of(int call)
{
	switch (call) {
	case 0:
		return READ;
	case 17:
		return PREAD;
	case 19:
		return READV;
	case 295:
		return PREADV;
	case 327:
		return PREADV2;
	case 275:
		return SPLICE;
	default:
		return COUNTS;
	}
}

SEC("tracepoint") int call_ends(struct call_end *end)
{
	if (bpf_get_current_pid_tgid() >> 32 != process)
		return 0;
	u32 key = kind_of(end->number);
	struct count *count = bpf_map_lookup_elem(&counts, &key);
	if (count) {
		count->calls += 1;
		count->bytes += end->returned > 0 ? end->returned : 0;
	}
	return 0;
}

// One of the licences with which the kernel lets a program call every helper, and the one that has MIT, as this project has.
char licence[] SEC("license") = "Dual MIT/GPL";
