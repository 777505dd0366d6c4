/* Calls that the library of 'run --batch-udp' stands before and does not batch. Each is made while a burst is under way, and everything that it
 * returns and writes is printed: PROGRAM PORT same-thread|other-thread. With `same-thread` the calling thread queues datagrams before each
 * call, with `other-thread` another thread sends all the time. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { UNTOUCHED = 4711, AREA_BYTES = 4096, LATE_US = 1500, SHORT_US = 1500, FOREVER_S = 60 };

/* An address that is not mapped, and a number, which the compiler does not know. */
static void *volatile BAD = (void *)8;
static volatile int NEGATIVE = -1;

static int burst_socket, is_other_thread;
static long sent;
static struct sockaddr_in burst_to;
static volatile int is_over;
static volatile int handled;

/* All memory that calls write to. */
static unsigned char area[AREA_BYTES] __attribute__((aligned(16)));

/* Not all programs use everything. */
#define UNUSED __attribute__((unused))

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

static void send_some(int count) {
    char data[200] = {0};
    for (; count--; sent++)
        if (sendto(burst_socket, data, sizeof data, 0, (void *)&burst_to, sizeof burst_to) != sizeof data) fail("burst");
}

/* A pause that no library sees. */
static void pause_us(long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_nanosleep), "D"(&time), "S"(0L) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_nanosleep;
    register long x0 __asm__("x0") = (long)&time;
    register long x1 __asm__("x1") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
#endif
}

static long write_unseen(int fd, const void *data, long bytes) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_write), "D"((long)fd), "S"(data), "d"(bytes) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = SYS_write;
    register long x0 __asm__("x0") = fd;
    register long x1 __asm__("x1") = (long)data;
    register long x2 __asm__("x2") = bytes;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

static void *send_continuously(void *nothing) {
    while (!is_over) {
        send_some(50);
        pause_us(150);
    }
    return nothing;
}

static void on_signal(int number) {
    (void)number;
    handled++;
}

static void handle(int number, int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(number, &action, NULL);
}

/* SIGALRM again and again, so that one comes during a call. */
static void interrupt_often(int is_on) {
    struct itimerval often = {{0, is_on ? 2000 : 0}, {0, is_on ? 2000 : 0}};
    setitimer(ITIMER_REAL, &often, NULL);
}

/* Writes some bytes later, from another thread. */
static pthread_t late_thread;
static int late_fd = -1, late_bytes;

static void *write_late(void *nothing) {
    pause_us(LATE_US);
    write_unseen(late_fd, "6789012345", late_bytes);
    return nothing;
}

UNUSED static void begin_late(int fd, int bytes) {
    late_fd = fd;
    late_bytes = bytes;
    if (pthread_create(&late_thread, NULL, write_late, NULL)) fail("pthread_create");
}

UNUSED static void end_late(void) {
    if (late_fd < 0) return;
    pthread_join(late_thread, NULL);
    late_fd = -1;
}

/* The last step before each call. */
static void queue(void) {
    memset(area, 0xaa, sizeof area);
    if (!is_other_thread) send_some(3);
    errno = UNTOUCHED;
}

static unsigned hash(const void *data, size_t bytes) {
    unsigned sum = 2166136261U;
    for (const unsigned char *at = data; bytes--; at++) sum = (sum ^ *at) * 16777619U;
    return sum;
}

/* What a call has returned, `errno`, and the area. */
static void report(const char *object, const char *call, long detail, long result) {
    int error = errno;
    printf("%s %s %lx: %ld, errno %d, area %x\n", object, call, detail, result, error, hash(area, sizeof area));
}

static void begin(int count, char **words) {
    if (count != 3) _exit(98);
    setvbuf(stdout, NULL, _IOFBF, 1 << 22);
    is_other_thread = !strcmp(words[2], "other-thread");
    /* Descriptors have the same numbers each time. */
    close_range(STDERR_FILENO + 1, ~0U, 0);
    burst_to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    burst_to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    burst_socket = socket(AF_INET, SOCK_DGRAM, 0);
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigaddset(&alarm, SIGUSR1);
    sigaddset(&alarm, SIGCONT);
    pthread_sigmask(SIG_BLOCK, &alarm, &before);
    pthread_t thread;
    if (is_other_thread && pthread_create(&thread, NULL, send_continuously, NULL)) fail("pthread_create");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    handle(SIGALRM, 0);
    signal(SIGPIPE, SIG_IGN);
    /* A call that never returns fails the test. */
    struct sigevent kills = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec at_last = {.it_value.tv_sec = 4 * FOREVER_S};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &kills, &timer) || timer_settime(timer, 0, &at_last, NULL)) fail("timer");
}

static int end(void) {
    is_over = 1;
    printf("%ld\n", sent);
    fflush(stdout);
    return 0;
}

/* Sockets and pipes, two each: the first is used, and the other end is in `peer`. */
static int peer = -1;

static void nonblocking(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* How long a socket waits for data. */
static void patient(int fd, long us) {
    struct timeval time = {us / 1000000, us % 1000000};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time)) fail("SO_RCVTIMEO");
}

static int pair(int family, int kind) {
    int two[2];
    if (family == AF_UNIX) {
        if (socketpair(AF_UNIX, kind, 0, two)) fail("socketpair");
    } else {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof own;
        int first = socket(AF_INET, kind, 0);
        if (bind(first, (void *)&own, bytes) || getsockname(first, (void *)&own, &bytes)) fail("bind");
        two[1] = socket(AF_INET, kind, 0);
        if (kind == SOCK_STREAM && listen(first, 1)) fail("listen");
        if (connect(two[1], (void *)&own, bytes)) fail("connect");
        two[0] = kind == SOCK_STREAM ? accept(first, NULL, NULL) : first;
        int room = 8 << 20;
        if (kind == SOCK_DGRAM && setsockopt(first, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room)) fail("room");
        if (kind == SOCK_STREAM) close(first);
    }
    patient(two[0], SHORT_US);
    peer = two[1];
    return two[0];
}

static int pipe_with(const char *data) {
    int two[2];
    if (pipe(two)) fail("pipe");
    if (*data) write_unseen(two[1], data, strlen(data));
    peer = two[1];
    return two[0];
}

static void close_peer(void) {
    if (peer >= 0) close(peer);
    peer = -1;
}

/* Waits, by calls that no library sees, until a descriptor has one of these events. */
static void await(int fd, int events) {
    struct pollfd entry = {fd, events, 0};
    for (int i = 0; i < FOREVER_S * 1000; i++) {
        struct timespec at_once = {0, 0};
        if (syscall(SYS_ppoll, &entry, 1, &at_once, NULL, 8) > 0 && (!events || entry.revents & events)) return;
        pause_us(1000);
    }
    fail("no event");
}

/* A connection that the peer has reset. */
static int reset_stream(void) {
    int fd = pair(AF_INET, SOCK_STREAM);
    struct linger at_once = {1, 0};
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_peer();
    await(fd, POLLERR);
    return fd;
}

/* A socket whose datagram to a port without a receiver was refused. */
UNUSED static int refused_socket(int has_queue) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (has_queue && setsockopt(fd, IPPROTO_IP, IP_RECVERR, &one, sizeof one)) fail("IP_RECVERR");
    if (connect(fd, (void *)&nobody, sizeof nobody)) fail("connect");
    patient(fd, SHORT_US);
    struct pollfd entry = {fd, 0, 0};
    struct timespec at_once = {0, 0};
    do { /* the kernel limits how often it reports them */
        write_unseen(fd, "x", 1);
        syscall(SYS_ppoll, &entry, 1, &at_once, NULL, 8);
    } while (!(entry.revents & POLLERR));
    return fd;
}
