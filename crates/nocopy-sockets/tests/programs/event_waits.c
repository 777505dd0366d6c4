/* Threads that leave calls that wait, in every way that C permits, after they have begun a burst; then another socket sends as always: event_waits WAY. */
#include "sleeping_thread.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 100, BEFORE = 10, COUNT = 40, PATIENCE_S = 120 };

enum { RECV, RECVFROM, RECVMSG, READ, READV, POLL, PPOLL, EPOLL_WAIT, EPOLL_PWAIT, SELECT, NANOSLEEP, PAUSE, ACCEPT, FUNCTIONS };
static const char *const NAMES[] = {"recv", "recvfrom", "recvmsg", "read", "readv", "poll", "ppoll", "epoll_wait", "epoll_pwait", "select", "nanosleep",
    "pause", "accept"};

static const char *way;
static int function, receiver, idle, listener, epoll;
static struct sockaddr_in to;
static _Atomic unsigned next;
static unsigned arrived;
static _Atomic pid_t waiter;
static sigjmp_buf back;
static volatile sig_atomic_t signalled;

static void end(const char *why) {
    fprintf(stderr, "%s, %s: %s\n", way, NAMES[function], why);
    _exit(3);
}

static void send_some(int count) {
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    char data[BYTES] = {0};
    while (count--) {
        unsigned number = next;
        memcpy(data, &number, sizeof number);
        if (sendto(s, data, BYTES, 0, (void *)&to, sizeof to) != BYTES) end("sendto");
        next++;
    }
}

static long call(void) {
    char data[BYTES];
    struct iovec part = {data, BYTES};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    struct pollfd waits = {idle, POLLIN, 0};
    struct epoll_event event;
    struct timespec time = {1000, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(idle, &set);
    switch (function) {
    case RECV: return recv(idle, data, BYTES, 0);
    case RECVFROM: return recvfrom(idle, data, BYTES, 0, NULL, NULL);
    case RECVMSG: return recvmsg(idle, &header, 0);
    case READ: return read(idle, data, BYTES);
    case READV: return readv(idle, &part, 1);
    case POLL: return poll(&waits, 1, -1);
    case PPOLL: return ppoll(&waits, 1, NULL, NULL);
    case EPOLL_WAIT: return epoll_wait(epoll, &event, 1, -1);
    case EPOLL_PWAIT: return epoll_pwait(epoll, &event, 1, -1, NULL);
    case SELECT: return select(idle + 1, &set, NULL, NULL, NULL);
    case NANOSLEEP: return nanosleep(&time, NULL);
    case PAUSE: return pause();
    default: return accept(listener, NULL, NULL);
    }
}

static void *work(void *nothing) {
    if (!strcmp(way, "cancel asynchronously")) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    send_some(BEFORE);
    waiter = (pid_t)syscall(SYS_gettid);
    send_some(BEFORE); /* this burst ends by the call that waits */
    if (sigsetjmp(back, 1)) return "jumped";
    /* A process that is stopped and goes on ends some of the calls, too: see signal(7). */
    do {
        errno = 0;
        call();
    } while (errno == EINTR && !signalled);
    return errno == EINTR ? "interrupted" : nothing;
}

static void on_signal(int number) {
    (void)number;
    signalled = 1;
    if (!strcmp(way, "jump")) siglongjmp(back, 1);
    if (!strcmp(way, "exit")) pthread_exit("exit");
}

/* What has arrived, by calls that no library sees; all in order. */
static void take(unsigned least) {
    char data[BYTES];
    for (int looks = 0; arrived < least; looks++) {
        if (looks == PATIENCE_S * 1000) end("what was sent does not arrive");
        while (syscall(SYS_read, receiver, data, BYTES) == BYTES)
            if (memcmp(data, &arrived, sizeof arrived)) end("not in order"); else arrived++;
        usleep(1000);
    }
}

int main(int count, char **words) {
    if (count != 2) return 2;
    way = words[1];
    to = (struct sockaddr_in){.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof to;
    receiver = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    idle = socket(AF_INET, SOCK_DGRAM, 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (bind(idle, (void *)&to, length) || bind(listener, (void *)&to, length) || listen(listener, 1)) end("bind");
    if (bind(receiver, (void *)&to, length) || getsockname(receiver, (void *)&to, &length)) end("bind");
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, idle, &event)) end("epoll");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    for (function = 0; function < FUNCTIONS; function++) {
        waiter = 0;
        signalled = 0;
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL)) end("pthread_create");
        wait_until_asleep(&waiter, &next);
        take(next);
        if (!strncmp(way, "cancel", 6)) pthread_cancel(thread); else pthread_kill(thread, SIGUSR1);
        void *result = NULL;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        if (pthread_timedjoin_np(thread, &result, &until)) end("the call does not end");
        printf("%s: %s\n", NAMES[function], result == PTHREAD_CANCELED ? "cancelled" : (char *)result);
        send_some(COUNT);
        take(next);
    }
    return 0;
}
