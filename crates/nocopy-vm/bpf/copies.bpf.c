// Counts the bytes that the kernel copies, at the functions through which packet data passes on its way between a
// program and a card: those that are not inlined. A function is one line below: its number in
// crates/nocopy-vm/src/guest/meter.rs, the way it copies, and where its length stands among its arguments.
//
// Built into copies.bpf.o by `cargo xtask bpf`. No headers: of the kernel's, only the three fields below are needed, and
// where they lie is found out when the programs are loaded.

typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_func_ret)(void *context, u64 *value) = (void *)184;

struct account {
	u64 calls;
	u64 bytes;
};

// Two for each function: sent, received.
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[32];
	u32 *key;
	struct account *value;
} accounts SEC(".maps");

struct sk_buff {
	// Of the program that sends it; a packet that is being received belongs to none yet.
	void *sk;
	u32 len;
	// Of which so many are not in the linear part.
	u32 data_len;
} __attribute__((preserve_access_index));

enum way { SENT = 1, RECEIVED = 2 };

// Whether this processor is cutting a long packet. UDP takes the packet away from its program meanwhile; interrupts are let in, but
// they copy no packets.
struct {
	int (*type)[BPF_MAP_TYPE_PERCPU_ARRAY];
	int (*max_entries)[1];
	u32 *key;
	u64 *value;
} cutting SEC(".maps");

static __attribute__((always_inline)) u64 *is_cutting(void)
{
	u32 key = 0;
	return bpf_map_lookup_elem(&cutting, &key);
}

static __attribute__((always_inline)) void book(u32 key, u64 bytes)
{
	struct account *account = bpf_map_lookup_elem(&accounts, &key);
	if (account) {
		account->calls += 1;
		account->bytes += bytes;
	}
}

static __attribute__((always_inline)) int count(u32 function, enum way ways, u64 bytes)
{
	if (ways & SENT)
		book(2 * function, bytes);
	if (ways & RECEIVED)
		book(2 * function + 1, bytes);
	return 0;
}

// For functions that are told how many bytes to copy.
#define COPIES(function, number, ways, length) \
	SEC("fentry/" #function) int function(u64 *arguments) \
	{ \
		return count(number, ways, (u32)arguments[length]); \
	}

// For functions that copy a part of their first argument, a socket buffer.
#define COPIES_SKB(function, number, length) \
	SEC("fentry/" #function) int function(u64 *arguments) \
	{ \
		struct sk_buff *skb = (struct sk_buff *)arguments[0]; \
		u64 *cuts = is_cutting(); \
		return count(number, skb->sk || (cuts && *cuts) ? SENT : RECEIVED, length); \
	}

// Received packets into the area of an AF_XDP socket.
COPIES(__xsk_rcv, 0, RECEIVED, 2)
// Packets of an AF_XDP socket into socket buffers (and little else stores into one).
COPIES(skb_store_bits, 1, SENT, 3)
// What a program receives through a socket, but for UDP's unfragmented datagrams: their copy is inlined, and the function
// it ends in cannot be watched.
COPIES(__skb_datagram_iter, 2, RECEIVED, 3)
// What a program sends through a socket: of an internet protocol, of the packet family.
COPIES(ip_generic_getfrag, 3, SENT, 3)
COPIES(skb_copy_datagram_from_iter, 4, SENT, 3)
// The same by TCP, whose copy is inlined down to functions that cannot be watched: what its sendmsg takes and does not take by reference
// it copies. It may sleep there.
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[4096];
	u64 *key;
	u64 *value;
} by_reference SEC(".maps");

SEC("fentry/tcp_sendmsg_locked") int tcp_sendmsg_locked(u64 *arguments)
{
	u64 thread = bpf_get_current_pid_tgid(), none = 0;
	bpf_map_update_elem(&by_reference, &thread, &none, 0);
	return 0;
}

static __attribute__((always_inline)) int took_by_reference(void *arguments)
{
	u64 thread = bpf_get_current_pid_tgid(), taken = 0;
	u64 *bytes = bpf_map_lookup_elem(&by_reference, &thread);
	if (bytes && !bpf_get_func_ret(arguments, &taken) && (int)taken > 0)
		*bytes += (int)taken;
	return 0;
}

SEC("fexit/skb_zerocopy_iter_stream") int skb_zerocopy_iter_stream_end(u64 *arguments)
{
	return took_by_reference(arguments);
}

SEC("fexit/skb_splice_from_iter") int skb_splice_from_iter_end(u64 *arguments)
{
	return took_by_reference(arguments);
}

SEC("fexit/tcp_sendmsg_locked") int tcp_sendmsg_locked_end(u64 *arguments)
{
	u64 thread = bpf_get_current_pid_tgid(), taken = 0;
	u64 *bytes = bpf_map_lookup_elem(&by_reference, &thread);
	if (bytes && !bpf_get_func_ret(arguments, &taken) && (int)taken > 0 && (int)taken != *bytes)
		count(12, SENT, (int)taken - *bytes);
	bpf_map_delete_elem(&by_reference, &thread);
	return 0;
}

// Memory that a card cannot reach. Which way is not asked: there is to be none.
COPIES(swiotlb_bounce, 5, SENT | RECEIVED, 2)
// From one socket buffer to another, or within one.
COPIES_SKB(skb_copy_bits, 6, (u32)arguments[3])
COPIES_SKB(pskb_expand_head, 7, skb->len - skb->data_len)
COPIES_SKB(__pskb_copy_fclone, 8, skb->len - skb->data_len)
// The same, adding up a checksum that no card will.
COPIES_SKB(skb_copy_and_csum_bits, 10, (u32)arguments[3])

// A long packet cut by the kernel. Its headers were pulled off, so what is left in its linear part is payload, and copied; the rest is
// shared. For a card that cannot gather all of it is copied, by the functions above.
#define NETIF_F_SG 1
SEC("fentry/skb_segment") int skb_segment(u64 *arguments)
{
	struct sk_buff *skb = (struct sk_buff *)arguments[0];
	u64 *cuts = is_cutting();
	if (cuts)
		*cuts = 1;
	return count(11, SENT, arguments[1] & NETIF_F_SG ? skb->len - skb->data_len : 0);
}

SEC("fexit/skb_segment") int skb_segment_end(u64 *arguments)
{
	u64 *cuts = is_cutting();
	if (cuts)
		*cuts = 0;
	return 0;
}

// A program's memory, before anybody who may keep it gets the packet. Whose it was is forgotten by then, but only programs that send
// have such memory.
SEC("fentry/skb_copy_ubufs") int skb_copy_ubufs(u64 *arguments)
{
	struct sk_buff *skb = (struct sk_buff *)arguments[0];
	return count(9, SENT, skb->data_len);
}

// One of the licences with which the kernel lets a program call every helper, and the one that has MIT, as this project has.
char licence[] SEC("license") = "Dual MIT/GPL";
