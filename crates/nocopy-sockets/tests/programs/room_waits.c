/* Threads that leave calls that send, in every way that C permits, while the call waits for the room of its socket; see tap.h. Then there is room: what
 * the socket had taken arrives in order, and another socket sends as always: room_waits WAY. */
#include "sleeping_thread.h"
#include "tap.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

enum { BYTES = 1000, HEADERS = 14 + 28, COUNT = 40, OTHERS = 1 << 20, SIGNALS = 20, PATIENCE_S = 120 };

enum { SEND, SENDTO, SENDMSG, SENDMMSG, WRITE, WRITEV, FUNCTIONS };
static const char *const NAMES[] = {"send", "sendto", "sendmsg", "sendmmsg", "write", "writev"};

struct job {
    int function, socket;
    struct sockaddr_in to;
    _Atomic unsigned taken;
    _Atomic int is_over;
    _Atomic pid_t thread;
    sigjmp_buf back;
};

static const char *way;
static struct job *running;
static _Atomic int handled;
static unsigned arrived, arrived_of_other;

static void end(const char *why, const char *name) {
    fprintf(stderr, "%s: %s\n", name, why);
    _exit(3);
}

/* Takes packets off the device, by raw reads that no library sees: those of each socket come in order. */
static void take(int tap) {
    char packet[65536];
    for (long got; (got = syscall(SYS_read, tap, packet, sizeof packet)) >= 0;) {
        if (got != BYTES + HEADERS || packet[14 + 9] != 17) continue;
        unsigned number;
        memcpy(&number, packet + HEADERS, sizeof number);
        if (number != (number < OTHERS ? arrived++ : OTHERS + arrived_of_other++)) end("not in order", way);
    }
}

static void fill(char *data, unsigned number) {
    memset(data, 0, BYTES);
    memcpy(data, &number, sizeof number);
}

/* The number of datagrams that were sent. */
static long call(struct job *job) {
    char data[BYTES], more[BYTES];
    int s = job->socket;
    fill(data, job->taken);
    fill(more, job->taken + 1);
    struct iovec part = {data, BYTES}, next = {more, BYTES};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr both[2] = {{header, 0}, {{.msg_iov = &next, .msg_iovlen = 1}, 0}};
    switch (job->function) {
    case SEND: return send(s, data, BYTES, 0) / BYTES;
    case SENDTO: return sendto(s, data, BYTES, 0, (void *)&job->to, sizeof job->to) / BYTES;
    case SENDMSG: return sendmsg(s, &header, 0) / BYTES;
    case SENDMMSG: return sendmmsg(s, both, 2, 0);
    case WRITE: return write(s, data, BYTES) / BYTES;
    default: return writev(s, &part, 1) / BYTES;
    }
}

static void *work(void *given) {
    struct job *job = given;
    if (!strcmp(way, "cancel asynchronously")) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    job->thread = (pid_t)syscall(SYS_gettid);
    if (sigsetjmp(job->back, 1)) return "jumped";
    while (!job->is_over) {
        errno = 0;
        long sent = call(job);
        if (errno) return errno == EINTR ? "interrupted" : strerror(errno);
        job->taken += sent;
    }
    return "over";
}

static void on_signal(int number) {
    (void)number;
    handled++;
    if (!strcmp(way, "jump")) siglongjmp(running->back, 1);
    if (!strcmp(way, "exit")) pthread_exit("exit");
}

static int is_joined(pthread_t thread, void **result, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    if (!seconds) until.tv_nsec = 0;
    return !pthread_timedjoin_np(thread, result, &until);
}

/* Signals that do not end the call. */
static void interrupt_in_vain(pthread_t thread) {
    for (int i = 0; i < SIGNALS; i++) {
        int before = handled;
        pthread_kill(thread, SIGUSR1);
        while (handled == before) usleep(1000);
    }
}

/* One signal does not do if it comes before the call waits. */
static void *leave(pthread_t thread) {
    void *result = NULL;
    if (!strncmp(way, "cancel", 6)) {
        pthread_cancel(thread);
        if (!is_joined(thread, &result, PATIENCE_S)) end("is not cancelled while it waits", way);
        return result == PTHREAD_CANCELED ? "cancelled" : result;
    }
    for (int tries = 0; !is_joined(thread, &result, 0); tries++) {
        if (tries == PATIENCE_S * 100) end("the call does not end", way);
        pthread_kill(thread, SIGUSR1);
        usleep(10000);
    }
    return result;
}

static void send_others(int tap, struct sockaddr_in to) {
    struct job job = {.function = SENDTO, .socket = socket(AF_INET, SOCK_DGRAM, 0), .to = to, .taken = OTHERS};
    arrived_of_other = 0;
    for (int i = 0; i < COUNT; i++) job.taken += call(&job);
    close(job.socket);
    for (int looks = 0; arrived_of_other < COUNT; looks++) {
        if (looks == PATIENCE_S * 1000) end("the other socket's datagrams do not arrive", way);
        take(tap);
        usleep(1000);
    }
}

static void leave_call(int tap, int function) {
    struct job job = {.function = function, .socket = socket(AF_INET, SOCK_DGRAM, 0)};
    job.to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(9)};
    job.to.sin_addr.s_addr = htonl(0x0a4e0002 + function); /* each has a peer of its own */
    int smallest = 1;
    setsockopt(job.socket, SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
    if (function != SENDTO && connect(job.socket, (void *)&job.to, sizeof job.to)) fail("connect");
    running = &job, arrived = 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, &job)) fail("pthread_create");
    wait_until_asleep(&job.thread, &job.taken); /* and no call of it has returned */
    void *result = NULL;
    int goes_on = !strcmp(way, "restart");
    if (goes_on) interrupt_in_vain(thread); else result = leave(thread);
    job.is_over = 1; /* with this call */
    int other = socket(AF_INET, SOCK_DGRAM, 0);
    add_neighbour(other, job.to.sin_addr);
    close(other);
    for (int looks = 0; goes_on && !is_joined(thread, &result, 0); looks++) {
        if (looks == PATIENCE_S * 100) end("the call does not go on", NAMES[function]);
        take(tap);
        usleep(10000);
    }
    for (int looks = 0; arrived < job.taken; looks++) {
        if (looks == PATIENCE_S * 1000) end("what was taken does not arrive", NAMES[function]);
        take(tap);
        usleep(1000);
    }
    printf("%s: %s\n", NAMES[function], (char *)result);
    send_others(tap, job.to);
    /* The datagrams of a call that was left may have been sent. */
    if (arrived > job.taken + 2) end("more arrived than were sent", NAMES[function]);
    close(job.socket);
}

int main(int count, char **words) {
    if (count != 2) return 2;
    way = words[1];
    int tap = open_tap();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = strcmp(way, "restart") ? 0 : SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    for (int function = 0; function < FUNCTIONS; function++) leave_call(tap, function);
    return 0;
}
