/* A preloaded library that notes the datagrams which a program sends, for the nightly suite `senders`. It changes nothing. Each process that
 * sends has a file of its own in the directory NOCOPY_WATCH: a head of 64 bytes, then an event for each datagram (runs.rs reads them). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_MAX = 200000 };
enum { SEND = 1, SENDTO, SENDMSG, SENDMMSG, WRITE, WRITEV };
/* Control data, or bursts that the program makes itself (UDP_SEGMENT). */
enum { CONTROL = 1, OWN_BURSTS = 2 };

struct event {
    uint64_t start_ns, end_ns;
    uint64_t destination; /* 0: the socket is connected */
    uint32_t waits_before, waits_after; /* how often the thread has waited so far, when the call began and ended */
    int32_t descriptor;
    uint32_t thread, bytes;
    uint16_t call, flags;
};

struct file {
    _Atomic uint64_t count; /* also of those that did not fit */
    char program[56];
    struct event events[EVENTS_MAX];
};

static struct file *file;
static _Atomic pid_t owner;
static atomic_flag opening = ATOMIC_FLAG_INIT;

static struct file *own_file(void) {
    pid_t process = getpid();
    if (atomic_load(&owner) == process) return file;
    if (atomic_flag_test_and_set(&opening)) return NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const char *directory = getenv("NOCOPY_WATCH");
    char path[4096];
    snprintf(path, sizeof path, "%s/%d-%ld%09ld", directory ? directory : "", process, now.tv_sec, now.tv_nsec);
    file = NULL;
    int descriptor = directory ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (descriptor >= 0) {
        if (!ftruncate(descriptor, sizeof *file)) {
            void *memory = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
            if (memory != MAP_FAILED) file = memory;
        }
        close(descriptor);
    }
    if (file) prctl(PR_GET_NAME, file->program);
    atomic_store(&owner, process);
    atomic_flag_clear(&opening);
    return file;
}

static int number_option(int descriptor, int level, int name) {
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(descriptor, level, name, &value, &bytes) ? -1 : value;
}

static int is_udp(int descriptor) {
    int error = errno;
    int is = number_option(descriptor, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP;
    errno = error;
    return is;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint32_t waits(void) {
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : (uint32_t)usage.ru_nvcsw;
}

/* FNV-1a of the address; never 0. */
static uint64_t destination_of(const void *address, socklen_t bytes) {
    uint64_t hash = 14695981039346656037u;
    if (!address) return 0;
    for (socklen_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)address)[i]) * 1099511628211u;
    return hash | 1;
}

static struct event begin(int descriptor, int call) {
    struct event event = {.descriptor = descriptor, .call = (uint16_t)call, .waits_before = waits()};
    event.start_ns = now_ns();
    return event;
}

/* Notes one datagram, if it was sent. */
static void end(struct event event, const void *address, socklen_t address_bytes, int has_control, ssize_t sent) {
    int error = errno;
    event.end_ns = now_ns();
    struct file *own = sent >= 0 ? own_file() : NULL;
    if (own) {
        event.waits_after = waits();
        event.thread = (uint32_t)syscall(SYS_gettid);
        event.destination = destination_of(address, address_bytes);
        event.bytes = (uint32_t)sent;
        if (has_control) event.flags |= CONTROL;
        if (number_option(event.descriptor, SOL_UDP, UDP_SEGMENT) > 0) event.flags |= OWN_BURSTS;
        uint64_t at = atomic_fetch_add(&own->count, 1);
        if (at < EVENTS_MAX) own->events[at] = event;
    }
    errno = error;
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t send(int descriptor, const void *data, size_t bytes, int flags) {
    NEXT(send);
    if (!is_udp(descriptor)) return next(descriptor, data, bytes, flags);
    struct event event = begin(descriptor, SEND);
    ssize_t sent = next(descriptor, data, bytes, flags);
    end(event, NULL, 0, 0, sent);
    return sent;
}

ssize_t sendto(int descriptor, const void *data, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes) {
    NEXT(sendto);
    if (!is_udp(descriptor)) return next(descriptor, data, bytes, flags, to, to_bytes);
    struct event event = begin(descriptor, SENDTO);
    ssize_t sent = next(descriptor, data, bytes, flags, to, to_bytes);
    end(event, to, to_bytes, 0, sent);
    return sent;
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    NEXT(sendmsg);
    if (!is_udp(descriptor)) return next(descriptor, message, flags);
    struct event event = begin(descriptor, SENDMSG);
    ssize_t sent = next(descriptor, message, flags);
    end(event, message->msg_name, message->msg_namelen, message->msg_controllen > 0, sent);
    return sent;
}

int sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags) {
    NEXT(sendmmsg);
    if (!is_udp(descriptor)) return next(descriptor, messages, count, flags);
    struct event event = begin(descriptor, SENDMMSG);
    int sent = next(descriptor, messages, count, flags);
    for (int i = 0; i < sent; i++) {
        struct msghdr *message = &messages[i].msg_hdr;
        end(event, message->msg_name, message->msg_namelen, message->msg_controllen > 0, messages[i].msg_len);
    }
    return sent;
}

ssize_t write(int descriptor, const void *data, size_t bytes) {
    NEXT(write);
    if (!is_udp(descriptor)) return next(descriptor, data, bytes);
    struct event event = begin(descriptor, WRITE);
    ssize_t sent = next(descriptor, data, bytes);
    end(event, NULL, 0, 0, sent);
    return sent;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    NEXT(writev);
    if (!is_udp(descriptor)) return next(descriptor, parts, count);
    struct event event = begin(descriptor, WRITEV);
    ssize_t sent = next(descriptor, parts, count);
    end(event, NULL, 0, 0, sent);
    return sent;
}
