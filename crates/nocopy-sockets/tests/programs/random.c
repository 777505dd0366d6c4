/* A random program from a seed: random PORT SEED. It sends to PORT of 127.0.0.1 and ::1 by several sockets, processes and threads, one after the other, does
 * what programs do in between, and prints what each call returned. The same seed does the same. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOCKETS = 3, STEPS = 120 };

static unsigned long state;
static int sockets[SOCKETS];
static int port;
static char data[70000];
static unsigned number;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(state >> 33) % below;
}

static void report(const char *what, long result) {
    printf("%s %ld %d\n", what, result, result < 0 ? errno : 0);
}

/* Where to: 127.0.0.1 or ::1, or the former as IPv6 sockets name it. */
struct target {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address;
    socklen_t bytes;
};

static struct target four(void) {
    struct target to = {.bytes = sizeof to.address.four};
    to.address.four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    to.address.four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static struct target six(int is_mapped) {
    struct target to = {.bytes = sizeof to.address.six};
    to.address.six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (is_mapped && inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.address.six.sin6_addr) != 1) abort();
    return to;
}

static int family_of(int s) {
    int family = AF_INET;
    socklen_t bytes = sizeof family;
    getsockopt(s, SOL_SOCKET, SO_DOMAIN, &family, &bytes);
    return family;
}

static struct target target_of(int s) {
    return family_of(s) == AF_INET6 ? six(draw(2)) : four();
}

static int open_socket(void) {
    int s = socket(draw(3) ? AF_INET : AF_INET6, SOCK_DGRAM | (draw(2) ? SOCK_NONBLOCK : 0), 0);
    struct target to = target_of(s);
    if (draw(2) && connect(s, &to.address.any, to.bytes)) perror("connect");
    return s;
}

static int is_connected(int s) {
    struct sockaddr_in6 peer;
    socklen_t bytes = sizeof peer;
    return !getpeername(s, (void *)&peer, &bytes);
}

static long send_one(int s, struct target *to, size_t bytes, unsigned by) {
    int connected = !to;
    if (bytes >= sizeof number) memcpy(data, &number, sizeof number);
    number++;
    struct iovec parts[2] = {{data, bytes / 3}, {data + bytes / 3, bytes - bytes / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (!connected) {
        message.msg_name = &to->address;
        message.msg_namelen = to->bytes;
    }
    switch (by) {
    case 0: return sendto(s, data, bytes, 0, connected ? NULL : &to->address.any, connected ? 0 : to->bytes);
    case 1: return sendmsg(s, &message, MSG_NOSIGNAL);
    case 2: return connected ? send(s, data, bytes, 0) : sendto(s, data, bytes, 0, &to->address.any, to->bytes);
    case 3: return connected ? write(s, data, bytes) : sendmsg(s, &message, 0);
    default: return connected ? writev(s, parts, 2) : sendmsg(s, &message, MSG_CONFIRM);
    }
}

static void send_run(int s) {
    static const size_t sizes[] = {4, 100, 100, 1400, 1400, 1400, 9000, 33000, 0, 65507, 65508};
    size_t bytes = sizes[draw(sizeof sizes / sizeof *sizes)];
    unsigned by = draw(5), count = 1 + draw(bytes > 5000 ? 5 : 90);
    struct target to = target_of(s);
    struct target *named = is_connected(s) ? NULL : &to;
    long sum = 0, failed = 0, last = 0;
    while (count--) {
        long sent = send_one(s, named, bytes, by);
        sum += sent > 0 ? sent : 0;
        failed += sent < 0;
        last = sent;
    }
    int error = errno;
    printf("run %zu %ld %ld %d\n", bytes, sum, failed, last < 0 ? error : 0);
}

static void *in_thread(void *s) {
    send_run(*(int *)s);
    return NULL;
}

static void echo(void) {
    int own = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    bind(own, (void *)&address, bytes);
    getsockname(own, (void *)&address, &bytes);
    int count = 1 + (int)draw(40), got = 0;
    for (int i = 0; i < count; i++) got += sendto(own, data, 50, 0, (void *)&address, sizeof address) == 50;
    report("echo sent", got);
    char buffer[100];
    for (got = 0; got < count; got++)
        if ((draw(2) ? recv(own, buffer, sizeof buffer, 0) : read(own, buffer, sizeof buffer)) != 50) break;
    report("echo received", got);
    report("echo nothing", recv(own, buffer, sizeof buffer, MSG_DONTWAIT));
    close(own);
}

static void child_is_seen(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    report("child", status);
    number += 1000;
}

static void end_child(void) {
    fflush(stdout);
    _exit(7);
}

/* A descriptor comes back by a message, and goes to a child. */
static void pass(int s) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) return;
    fflush(stdout);
    int to_child = draw(2);
    pid_t child = to_child ? fork() : -1;
    char byte = 'x', room[CMSG_SPACE(sizeof s)] __attribute__((aligned(8))) = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (child) {
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        *control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof s), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(control), &s, sizeof s);
        send_run(s);
        report("passed", sendmsg(pair[0], &message, 0));
    }
    if (child <= 0) {
        alarm(60);
        int got = -1;
        report("got", recvmsg(pair[1], &message, 0));
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        if (control) memcpy(&got, CMSG_DATA(control), sizeof got);
        send_run(got);
        close(got);
        send_run(s);
        alarm(0);
    }
    if (!child) end_child();
    close(pair[0]);
    close(pair[1]);
    if (to_child) child_is_seen(child);
}

static int for_handler;

static void on_signal(int signal) {
    (void)signal;
    struct target to = target_of(for_handler);
    struct target *named = is_connected(for_handler) ? NULL : &to;
    for (int i = 0; i < 5; i++) send_one(for_handler, named, 100, 0);
}

static void wait_for_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int signal = 0;
    report("sigwait", sigwait(&set, &signal) * 1000 + signal);
}

static void *after_signal(void *s) {
    wait_for_signal();
    send_run(*(int *)s);
    return NULL;
}

/* Signals to a child and to a thread, which then send, and to itself. */
static void kills(int s) {
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, &before);
    fflush(stdout);
    switch (draw(3)) {
    case 0: {
        pid_t child = fork();
        if (!child) {
            alarm(60);
            wait_for_signal();
            send_run(s);
            end_child();
        }
        send_run(s);
        report("kill", kill(child, SIGUSR1));
        child_is_seen(child);
        break;
    }
    case 1: {
        pthread_t thread;
        pthread_create(&thread, NULL, after_signal, &s);
        send_run(s);
        int killed = pthread_kill(thread, SIGUSR1);
        pthread_join(thread, NULL);
        report("pthread_kill", killed);
        break;
    }
    default:
        for_handler = s;
        signal(SIGUSR2, on_signal);
        send_run(s);
        report("own", draw(2) ? kill(getpid(), SIGUSR2) : raise(SIGUSR2));
        send_run(s);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static sem_t turns[2];

static void *in_turns(void *first) {
    for (int i = 0; i < 6; i++) {
        sem_wait(&turns[!first]);
        send_run(sockets[draw(SOCKETS)]);
        sem_post(&turns[!!first]);
    }
    return NULL;
}

/* Two threads that send in turns, by whichever socket. */
static void threads(void) {
    sem_init(&turns[0], 0, 1);
    sem_init(&turns[1], 0, 0);
    pthread_t two[2];
    pthread_create(&two[0], NULL, in_turns, &two);
    pthread_create(&two[1], NULL, in_turns, NULL);
    pthread_join(two[0], NULL);
    pthread_join(two[1], NULL);
}

/* Another network, in which the old socket sends as before and a new one cannot; and, in a child, another user namespace, which only a process
 * with one thread may have. */
static void moves(int s) {
    send_run(s);
    if (draw(2)) {
        int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        long moved = unshare(CLONE_NEWNET);
        report("unshare", moved);
        send_run(s);
        int other = open_socket();
        send_run(other);
        close(other);
        if (!moved) report("setns", setns(here, CLONE_NEWNET));
        close(here);
        send_run(s);
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        send_run(s);
        report("unshare", unshare(CLONE_NEWUSER));
        send_run(s);
        end_child();
    }
    child_is_seen(child);
}

static void step(void) {
    int *s = &sockets[draw(SOCKETS)];
    switch (draw(26)) {
    case 0: {
        struct pollfd entry = {*s, POLLIN | POLLOUT, 0};
        long found = poll(&entry, 1, 0);
        report("poll", found * 1000 + entry.revents);
        break;
    }
    case 1: {
        char buffer[10];
        report("recv", recv(*s, buffer, sizeof buffer, MSG_DONTWAIT));
        break;
    }
    case 2: {
        close(*s);
        *s = open_socket();
        break;
    }
    case 3: report("dup2", dup2(sockets[draw(SOCKETS)], *s) == *s); break;
    case 4: {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            send_run(*s);
            end_child();
        }
        child_is_seen(child);
        break;
    }
    case 5: {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, s);
        pthread_join(thread, NULL);
        break;
    }
    case 6: usleep(draw(200)); break;
    case 7: {
        int error = 1;
        socklen_t bytes = sizeof error;
        report("getsockopt", getsockopt(*s, SOL_SOCKET, SO_ERROR, &error, &bytes) * 1000 + error);
        break;
    }
    case 8: {
        struct target to = target_of(*s);
        report("connect", connect(*s, &to.address.any, to.bytes));
        break;
    }
    case 9:
    case 10:
    case 11: {
        struct target to = four();
        switch (draw(4)) {
        case 0: report("bad", sendto(-1, data, 10, 0, &to.address.any, to.bytes)); break;
        case 1: report("flag", sendto(*s, data, 10, MSG_OOB, &to.address.any, to.bytes)); break;
        case 2: report("address", sendto(*s, data, 10, 0, &to.address.any, 4)); break;
        default: {
            struct target own = target_of(*s);
            struct target *named = is_connected(*s) ? NULL : &own;
            report("more", sendto(*s, data, 10, MSG_MORE, named ? &own.address.any : NULL, named ? own.bytes : 0));
            report("rest", send_one(*s, named, 100, 0));
        }
        }
        break;
    }
    case 12: echo(); break;
    case 13: {
        int size = 200000 + (int)draw(100000);
        report("setsockopt", setsockopt(*s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
        break;
    }
    case 14: pass(*s); break;
    case 15: kills(*s); break;
    case 16: threads(); break;
    case 17: moves(*s); break;
    case 18:
        fflush(stdout);
        report("system", system("exit 3"));
        break;
    default: send_run(*s);
    }
}

int main(int count, char **words) {
    if (count != 3) return 98;
    port = atoi(words[1]);
    state = strtoul(words[2], NULL, 10);
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    for (int i = 0; i < SOCKETS; i++) sockets[i] = open_socket();
    for (int i = 0; i < STEPS; i++) step();
    fflush(stdout);
    switch (draw(5)) {
    case 0: _exit(9);
    case 1: raise(SIGTERM); break;
    case 2: execl("/bin/sh", "sh", "-c", "exit 8", (char *)NULL); break;
    case 3: kill(getpid(), SIGKILL); break;
    }
    return 6;
}
