/* Sends numbered datagrams to 127.0.0.1 and does something in between, or afterwards: sender PORT COUNT BYTES WHAT. A datagram of one byte
 * is a mark, sent by another socket: the receiver sees what came before it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <pthread.h>
#include <unistd.h>

static int s;
static struct sockaddr_in to;
static char data[65536];
static long next;
static size_t bytes;

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

static void fill(char *where) {
    memset(where, (char)next, bytes);
    long number = next++;
    memcpy(where, &number, sizeof number);
}

static void send_one(void) {
    fill(data);
    if (sendto(s, data, bytes, 0, (void *)&to, sizeof to) != (ssize_t)bytes) fail("sendto");
}

static void send_many(long count) {
    while (count--) send_one();
}

/* The next mark, by a way that is not the socket's. */
static void mark_by(int fd) {
    char mark = 'm';
    if (sendto(fd, &mark, 1, 0, (void *)&to, sizeof to) != 1) fail("mark");
}

/* A system call that no library sees. */
static long raw(long number, long first, long second, long third) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

static void on_alarm(int number) {
    (void)number;
    send_one();
}

static void *sender_thread(void *nothing) {
    (void)nothing;
    send_many(20);
    return NULL;
}

static volatile int is_child_ready, is_burst_queued;

/* Queues a burst while the other thread's child, which shares this memory, has closed its own descriptor of the socket. */
static void *send_during_vfork(void *count) {
    while (!is_child_ready);
    send_many((long)count);
    is_burst_queued = 1;
    return NULL;
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *send_in_turns(void *count) {
    for (long i = 0; i < (long)count; i++) {
        pthread_mutex_lock(&turn);
        send_many(3);
        pthread_mutex_unlock(&turn);
    }
    return NULL;
}

static void connected(void) {
    if (connect(s, (void *)&to, sizeof to)) fail("connect");
}

static void by_every_call(long count) {
    connected();
    for (long i = 0; i < count; i++) {
        fill(data);
        struct iovec parts[2] = {{data, bytes / 2}, {data + bytes / 2, bytes - bytes / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = 0;
        switch (i / 50 % 5) {
        case 0: sent = send(s, data, bytes, 0); break;
        case 1: sent = write(s, data, bytes); break;
        case 2: sent = writev(s, parts, 2); break;
        case 3: sent = sendmsg(s, &message, MSG_NOSIGNAL); break;
        case 4: sent = sendto(s, data, bytes, MSG_DONTWAIT, NULL, 0); break;
        }
        if (sent != (ssize_t)bytes) fail("a call");
    }
    static char many[16][2048];
    struct mmsghdr messages[16] = {0};
    struct iovec parts[16];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 16; i++) {
            fill(many[i]);
            parts[i] = (struct iovec){many[i], bytes};
            messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
            messages[i].msg_len = 0;
        }
        if (sendmmsg(s, messages, 16, 0) != 16) fail("sendmmsg");
        for (int i = 0; i < 16; i++)
            if (messages[i].msg_len != bytes) fail("msg_len");
    }
}

int main(int count, char **words) {
    if (count != 5) return 98;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    long number = atol(words[2]);
    bytes = atol(words[3]);
    const char *what = words[4];
    s = socket(AF_INET, SOCK_DGRAM, 0);
    int other = socket(AF_INET, SOCK_DGRAM, 0);
    if (s < 0 || other < 0) fail("socket");
    if (!strcmp(what, "calls")) {
        by_every_call(number);
        return 0;
    }
    if (!strcmp(what, "raw-file")) {
        /* The number becomes a file's behind a burst, unseen, and what was written to the socket is written to the file. */
        int file = memfd_create("file", 0);
        connected();
        for (long i = 0; i < number; i++)
            if (write(s, data, bytes) != (ssize_t)bytes) fail("write");
        if (raw(SYS_dup3, file, s, 0) != s) fail("dup3");
        for (long i = 0; i < number; i++)
            if (write(s, data, bytes) != (ssize_t)bytes) fail("write");
        if (lseek(s, 0, SEEK_END) != (off_t)(number * bytes)) fail("the file's length");
        return 0;
    }
    if (!strcmp(what, "many")) {
        for (long i = 0; i < number; i++) {
            send_one();
            close(s);
            s = socket(AF_INET, SOCK_DGRAM, 0);
        }
        return 0;
    }
    if (!strcmp(what, "turns")) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, send_in_turns, (void *)number);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        return 0;
    }
    if (!strcmp(what, "handler")) {
        struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &action, NULL);
        struct itimerval often = {{0, 60}, {0, 60}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &often, NULL);
        for (long i = 0; i < number; i++) {
            char own[2048];
            memset(own, 0x55, bytes);
            long number = 1000000 + i; /* those of the handler are smaller */
            memcpy(own, &number, sizeof number);
            if (sendto(s, own, bytes, 0, (void *)&to, sizeof to) != (ssize_t)bytes) fail("sendto");
        }
        setitimer(ITIMER_REAL, &never, NULL);
        printf("%ld by the handler\n", next);
        return 0;
    }
    send_many(number);
    if (!strcmp(what, "exit")) exit(3);
    if (!strcmp(what, "_exit")) _exit(4);
    if (!strcmp(what, "return")) return 5;
    if (!strcmp(what, "abort")) abort();
    if (!strcmp(what, "raise")) raise(SIGTERM);
    if (!strcmp(what, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(what, "exec")) {
        execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL);
        fail("exec");
    }
    if (!strcmp(what, "vfork")) {
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        mark_by(other);
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("vfork");
    }
    if (!strcmp(what, "spawn")) {
        pid_t child;
        char *const words[] = {"sh", "-c", "exit 0", NULL};
        int status;
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ)) fail("posix_spawn");
        if (waitpid(child, &status, 0) != child || status) fail("spawn");
        mark_by(other);
    }
    if (!strcmp(what, "fork")) {
        pid_t child = fork();
        if (!child) {
            send_many(number);
            exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("fork");
        next += number;
        send_many(number);
    }
    if (!strcmp(what, "thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, sender_thread, NULL)) fail("pthread_create");
        pthread_join(thread, NULL);
        mark_by(other);
    }
    if (!strcmp(what, "other")) {
        for (int i = 0; i < 5; i++) {
            mark_by(other);
            send_many(number);
        }
    }
    if (!strcmp(what, "close")) {
        close(s);
        mark_by(other);
        s = socket(AF_INET, SOCK_DGRAM, 0);
        send_many(number);
    }
    if (!strcmp(what, "dup")) {
        int twin = dup(s);
        mark_by(twin);
        send_many(number);
        dup2(other, s);
        mark_by(twin);
        send_many(number);
    }
    if (!strcmp(what, "raw-close")) {
        /* Closed and opened without any call that a library could see. */
        if (raw(SYS_close, s, 0, 0)) fail("close");
        if (dup2(other, s) != s) fail("dup2");
        mark_by(other);
        send_many(number);
    }
    if (!strcmp(what, "raw-replace")) {
        if (raw(SYS_dup3, other, s, 0) != s) fail("dup3");
        send_many(4 * number);
    }
    if (!strcmp(what, "raw-replace-after-full")) {
        /* The number is such that the last burst is full. After a time in which the library asks nothing of the kernel, the socket is another one,
         * and then another socket's burst begins. */
        usleep(1000);
        if (raw(SYS_dup3, other, s, 0) != s) fail("dup3");
        int first = s;
        s = socket(AF_INET, SOCK_DGRAM, 0);
        send_many(4); /* three go alone */
        s = first;
        send_many(number);
    }
    if (!strcmp(what, "vfork-and-thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, send_during_vfork, (void *)number)) fail("pthread_create");
        pid_t child = vfork();
        if (!child) {
            raw(SYS_close, s, 0, 0);
            is_child_ready = 1;
            while (!is_burst_queued);
            close(other);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("vfork");
        pthread_join(thread, NULL);
    }
    if (!strcmp(what, "vfork-closing")) {
        /* The child closes its descriptors before it would run another program, in every way; the parent keeps its own. */
        for (volatile int way = 0; way < 4; way++) {
            pid_t child = vfork();
            if (!child) {
                if (way == 0) close(s);
                if (way == 1) dup2(other, s);
                if (way == 2) close_range(s, ~0U, 0);
                if (way == 3) syscall(SYS_close, s);
                _exit(0);
            }
            int status;
            if (waitpid(child, &status, 0) != child || status) fail("vfork");
            send_many(number);
        }
    }
    if (!strcmp(what, "vfork-sending")) {
        /* The burst of a child that never continues, and then one of the parent, which nothing ends but the deadline. */
        int receiver = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), own = socket(AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in address = to;
        socklen_t length = sizeof address;
        address.sin_port = 0;
        if (bind(receiver, (void *)&address, length) || getsockname(receiver, (void *)&address, &length)) fail("bind");
        if (connect(own, (void *)&address, length)) fail("connect");
        usleep(50000); /* until the thread of the burst before is gone */
        pid_t child = vfork();
        if (!child) {
            for (int i = 0; i < 10; i++) send(own, data, bytes, 0);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("vfork");
        for (int i = 0; i < 10; i++) send(own, data, bytes, 0);
        struct timespec pause = {0, 1000000};
        for (long got = 0, looks = 0; got < 20; looks++) {
            if (looks == 60000) fail("the deadline's burst");
            while (raw(SYS_read, receiver, (long)data, sizeof data) >= 0) got++;
            raw(SYS_nanosleep, (long)&pause, 0, 0);
        }
    }
    if (!strcmp(what, "_Fork")) {
        pid_t child = _Fork();
        if (!child) {
            mark_by(other);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) fail("_Fork");
        send_many(number);
    }
    if (!strcmp(what, "waits")) {
        struct pollfd room = {s, POLLOUT, 0};
        int epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, s, &event)) fail("epoll_ctl");
        for (int i = 0; i < 30; i++) {
            fd_set writable;
            FD_ZERO(&writable);
            FD_SET(s, &writable);
            int found = 0;
            switch (i % 5) {
            case 0: found = poll(&room, 1, 1000); break;
            case 1: found = select(s + 1, NULL, &writable, NULL, NULL); break;
            case 2: found = epoll_wait(epoll, &event, 1, -1); break;
            case 3: found = 1 + (recv(s, data, sizeof data, MSG_DONTWAIT) != -1 || errno != EAGAIN); break;
            case 4: found = 1 + (usleep(1) != 0); break;
            }
            if (found != 1) fail("a wait");
            send_many(number);
        }
    }
    return 0;
}
