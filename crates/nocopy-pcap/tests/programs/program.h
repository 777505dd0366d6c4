// What the programs share: the parts of libpcap's interface that they call, and a way to ask the test for traffic.
#pragma once
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct pcap pcap_t;
typedef struct pcap_dumper pcap_dumper_t;
struct pcap_pkthdr { struct timeval ts; uint32_t caplen, len; };
struct pcap_stat { unsigned ps_recv, ps_drop, ps_ifdrop; };
struct bpf_insn { uint16_t code; uint8_t jt, jf; uint32_t k; };
struct bpf_program { unsigned bf_len; struct bpf_insn *bf_insns; };
typedef void (*pcap_handler)(unsigned char *, const struct pcap_pkthdr *, const unsigned char *);

pcap_t *pcap_create(const char *, char *);
pcap_t *pcap_open_live(const char *, int, int, int, char *);
pcap_t *pcap_open_dead(int, int);
pcap_t *pcap_open_offline(const char *, char *);
int pcap_set_snaplen(pcap_t *, int);
int pcap_set_promisc(pcap_t *, int);
int pcap_set_timeout(pcap_t *, int);
int pcap_set_rfmon(pcap_t *, int);
int pcap_can_set_rfmon(pcap_t *);
int pcap_set_immediate_mode(pcap_t *, int);
int pcap_set_buffer_size(pcap_t *, int);
int pcap_set_tstamp_type(pcap_t *, int);
int pcap_set_tstamp_precision(pcap_t *, int);
int pcap_get_tstamp_precision(pcap_t *);
int pcap_list_tstamp_types(pcap_t *, int **);
void pcap_free_tstamp_types(int *);
int pcap_set_protocol_linux(pcap_t *, int);
int pcap_activate(pcap_t *);
void pcap_close(pcap_t *);
int pcap_loop(pcap_t *, int, pcap_handler, unsigned char *);
int pcap_dispatch(pcap_t *, int, pcap_handler, unsigned char *);
const unsigned char *pcap_next(pcap_t *, struct pcap_pkthdr *);
int pcap_next_ex(pcap_t *, struct pcap_pkthdr **, const unsigned char **);
void pcap_breakloop(pcap_t *);
int pcap_stats(pcap_t *, struct pcap_stat *);
int pcap_setfilter(pcap_t *, struct bpf_program *);
int pcap_setdirection(pcap_t *, int);
int pcap_getnonblock(pcap_t *, char *);
int pcap_setnonblock(pcap_t *, int, char *);
int pcap_inject(pcap_t *, const void *, size_t);
int pcap_sendpacket(pcap_t *, const unsigned char *, int);
const char *pcap_statustostr(int);
char *pcap_geterr(pcap_t *);
int pcap_compile(pcap_t *, struct bpf_program *, const char *, int, uint32_t);
void pcap_freecode(struct bpf_program *);
int pcap_datalink(pcap_t *);
int pcap_datalink_ext(pcap_t *);
int pcap_list_datalinks(pcap_t *, int **);
int pcap_set_datalink(pcap_t *, int);
void pcap_free_datalinks(int *);
int pcap_snapshot(pcap_t *);
int pcap_is_swapped(pcap_t *);
int pcap_major_version(pcap_t *);
int pcap_minor_version(pcap_t *);
int pcap_bufsize(pcap_t *);
FILE *pcap_file(pcap_t *);
int pcap_fileno(pcap_t *);
int pcap_get_selectable_fd(pcap_t *);
const struct timeval *pcap_get_required_select_timeout(pcap_t *);
pcap_dumper_t *pcap_dump_open(pcap_t *, const char *);
void pcap_dump(unsigned char *, const struct pcap_pkthdr *, const unsigned char *);
void pcap_dump_close(pcap_dumper_t *);
const char *pcap_lib_version(void);
extern char pcap_version[];

// Asks the test for something, and waits until it is done: "send COUNT", "udp COUNT PORT", "vlan COUNT PORT", "receive COUNT",
// "down", "up", "delete".
static inline const char *request(const char *text) {
    static char answer[256];
    printf("? %s\n", text);
    fflush(stdout);
    if (!fgets(answer, sizeof answer, stdin)) exit(9);
    answer[strcspn(answer, "\n")] = 0;
    return answer;
}

// Whether a thread of this process sleeps in a call that waits for descriptors, as the kernel tells it: "NUMBER ARGUMENTS…", or "running".
// After a stop of the process, poll(2) with a timeout goes on as restart_syscall(2).
static inline int is_polling(pid_t thread) {
    static const long calls[] = {
#ifdef SYS_poll
        SYS_poll,
#endif
#ifdef SYS_epoll_wait
        SYS_epoll_wait,
#endif
#ifdef SYS_restart_syscall
        SYS_restart_syscall,
#endif
        SYS_ppoll, SYS_epoll_pwait};
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)thread);
    FILE *file = fopen(path, "r");
    if (!file) { printf("no /proc/PID/syscall: %s\n", strerror(errno)); exit(4); }
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (line[0] >= '0' && line[0] <= '9' && atol(line) == calls[i]) return 1;
    return 0;
}

// Waits until the first thread sleeps in a call of the library: what another one does then, it does to a sleeper.
static inline void wait_until_polling(void) {
    for (int tries = 0; !is_polling(getpid()); tries++) {
        if (tries == 60000) { printf("it never slept\n"); exit(4); }
        usleep(1000);
    }
}

// Reports what a call returned; and the text that goes with it, if it is an error.
static inline int report(pcap_t *p, const char *what, int result) {
    printf("%s: %d%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? pcap_geterr(p) : "");
    fflush(stdout);
    return result;
}

// What was seen of packets: everything but their times.
struct seen { unsigned packets, stop_after; unsigned long bytes, wire; uint32_t sum; int has_odd_time; pcap_t *handle; };

static inline void count_packet(struct seen *seen, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    seen->packets++;
    seen->bytes += header->caplen;
    seen->wire += header->len;
    for (uint32_t i = 0; i < header->caplen; i++) seen->sum = seen->sum * 31 + bytes[i];
    long age = time(NULL) - header->ts.tv_sec;
    if (age < -5 || age > 300) seen->has_odd_time = 1;
}

static inline void on_packet(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    if (seen->stop_after && seen->packets == seen->stop_after) pcap_breakloop(seen->handle);
}

static inline void report_packets(const char *what, const struct seen *seen) {
    printf("%s: %u packets, %lu bytes of %lu, sum %08x, times %s\n", what, seen->packets, seen->bytes, seen->wire, seen->sum,
           seen->has_odd_time ? "odd" : "good");
    fflush(stdout);
}

// Set by programs whose captures can all take packets, where they are to.
static int must_take;

// That the library under test captures, and not the system's behind it: libpcap's descriptors survive an exec.
static inline void check_library(pcap_t *p) {
    int is_ours = fcntl(pcap_fileno(p), F_GETFD) & FD_CLOEXEC;
    if (!is_ours != !getenv("LD_PRELOAD")) { printf("the other library captures\n"); exit(7); }
    if (!must_take) return;
    // A capture that takes packets has one descriptor for all queues.
    char name[64], kind[64] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", pcap_fileno(p));
    if (readlink(name, kind, sizeof kind - 1) < 0 || !strstr(kind, "eventpoll")) { printf("it captures passively\n"); exit(5); }
}

// Descriptors that the process has open.
static inline int descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

// Packet sockets in its network namespace.
static inline int sockets(void) {
    FILE *file = fopen("/proc/net/packet", "r");
    int lines = 0;
    for (int byte; (byte = getc(file)) != EOF;) lines += byte == '\n';
    fclose(file);
    return lines - 1;
}

// What hangs is ended.
__attribute__((constructor)) static void limit(void) { alarm(300); }

// A handle that is activated with a timeout of 10 ms, in promiscuous mode. Its buffer holds a block for each 10 ms that the test
// takes to send something on a busy machine.
static inline pcap_t *opened(const char *device) {
    char text[256] = "";
    pcap_t *p = pcap_create(device, text);
    pcap_set_snaplen(p, 65535);
    pcap_set_promisc(p, 1);
    pcap_set_timeout(p, 10);
    pcap_set_buffer_size(p, 16 << 20);
    if (pcap_activate(p)) { printf("cannot open: %s\n", pcap_geterr(p)); exit(8); }
    check_library(p);
    return p;
}

// Compiles and sets a filter.
static inline void filter(pcap_t *p, const char *expression) {
    struct bpf_program program;
    if (report(p, expression, pcap_compile(p, &program, expression, 1, 0xffffffff)) == 0) {
        report(p, "setfilter", pcap_setfilter(p, &program));
        pcap_freecode(&program);
    }
}
