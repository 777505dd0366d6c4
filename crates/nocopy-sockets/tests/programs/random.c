/* A random program from a seed: random PORT SEED. It sends to 127.0.0.1:PORT by several sockets, processes and threads, one after the other, does what
 * programs do in between, and prints what each call returned. The same seed does the same. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
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
static struct sockaddr_in to;
static char data[70000];
static unsigned number;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(state >> 33) % below;
}

static void say(const char *what, long result) {
    printf("%s %ld %d\n", what, result, result < 0 ? errno : 0);
}

static int open_socket(void) {
    int s = socket(AF_INET, SOCK_DGRAM | (draw(2) ? SOCK_NONBLOCK : 0), 0);
    if (draw(2) && connect(s, (void *)&to, sizeof to)) perror("connect");
    return s;
}

static int is_connected(int s) {
    struct sockaddr_in peer;
    socklen_t bytes = sizeof peer;
    return !getpeername(s, (void *)&peer, &bytes);
}

static long send_one(int s, int connected, size_t bytes, unsigned by) {
    if (bytes >= sizeof number) memcpy(data, &number, sizeof number);
    number++;
    struct iovec parts[2] = {{data, bytes / 3}, {data + bytes / 3, bytes - bytes / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (!connected) {
        message.msg_name = &to;
        message.msg_namelen = sizeof to;
    }
    switch (by) {
    case 0: return sendto(s, data, bytes, 0, connected ? NULL : (void *)&to, connected ? 0 : sizeof to);
    case 1: return sendmsg(s, &message, MSG_NOSIGNAL);
    case 2: return connected ? send(s, data, bytes, 0) : sendto(s, data, bytes, 0, (void *)&to, sizeof to);
    case 3: return connected ? write(s, data, bytes) : sendmsg(s, &message, 0);
    default: return connected ? writev(s, parts, 2) : sendmsg(s, &message, MSG_CONFIRM);
    }
}

static void send_run(int s) {
    static const size_t sizes[] = {4, 100, 100, 1400, 1400, 1400, 9000, 33000, 0, 65507, 65508};
    size_t bytes = sizes[draw(sizeof sizes / sizeof *sizes)];
    unsigned by = draw(5), count = 1 + draw(bytes > 5000 ? 5 : 90);
    int connected = is_connected(s);
    long sum = 0, failed = 0, last = 0;
    while (count--) {
        long sent = send_one(s, connected, bytes, by);
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
    say("echo sent", got);
    char buffer[100];
    for (got = 0; got < count; got++)
        if ((draw(2) ? recv(own, buffer, sizeof buffer, 0) : read(own, buffer, sizeof buffer)) != 50) break;
    say("echo received", got);
    say("echo nothing", recv(own, buffer, sizeof buffer, MSG_DONTWAIT));
    close(own);
}

static void step(void) {
    int *s = &sockets[draw(SOCKETS)];
    switch (draw(20)) {
    case 0: {
        struct pollfd entry = {*s, POLLIN | POLLOUT, 0};
        long found = poll(&entry, 1, 0);
        say("poll", found * 1000 + entry.revents);
        break;
    }
    case 1: {
        char buffer[10];
        say("recv", recv(*s, buffer, sizeof buffer, MSG_DONTWAIT));
        break;
    }
    case 2: {
        close(*s);
        *s = open_socket();
        break;
    }
    case 3: say("dup2", dup2(sockets[draw(SOCKETS)], *s) == *s); break;
    case 4: {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            send_run(*s);
            fflush(stdout);
            _exit(7);
        }
        int status = 0;
        waitpid(child, &status, 0);
        say("child", status);
        number += 1000;
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
        say("getsockopt", getsockopt(*s, SOL_SOCKET, SO_ERROR, &error, &bytes) * 1000 + error);
        break;
    }
    case 8: say("connect", connect(*s, (void *)&to, sizeof to)); break;
    case 9: say("bad", sendto(-1, data, 10, 0, (void *)&to, sizeof to)); break;
    case 10: say("flag", sendto(*s, data, 10, MSG_OOB, (void *)&to, sizeof to)); break;
    case 11: {
        struct sockaddr_in short_one = to;
        say("address", sendto(*s, data, 10, 0, (void *)&short_one, 4));
        break;
    }
    case 12: echo(); break;
    case 13: {
        int size = 200000 + (int)draw(100000);
        say("setsockopt", setsockopt(*s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
        break;
    }
    default: send_run(*s);
    }
}

int main(int count, char **words) {
    if (count != 3) return 98;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
