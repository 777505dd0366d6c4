/* Every call that receives, with its flags, on every kind of descriptor; see calls.h. */
#include "calls.h"
#include <linux/errqueue.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
ssize_t __read(int, void *, size_t);

static char path[] = "/tmp/nocopy-receives-XXXXXX";

static int file(int flags, long position) {
    int fd = open(path, flags);
    if (fd < 0 || lseek(fd, position, SEEK_SET) != position) fail("file");
    return fd;
}

/* Of 8 blocks of which only the first is in memory. */
static int cold_file(void) {
    int fd = file(O_RDWR, 0);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    char byte;
    if (pread(fd, &byte, 1, 0) != 1) fail("pread");
    lseek(fd, 4096 - 50, SEEK_SET);
    return fd;
}

static int terminal(const char *data) {
    int other = posix_openpt(O_RDWR | O_NOCTTY);
    if (other < 0 || grantpt(other) || unlockpt(other)) fail("terminal");
    int fd = open(ptsname(other), O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (*data) write_unseen(other, data, strlen(data));
    if (strchr(data, '\n')) await(fd, POLLIN);
    peer = other;
    return fd;
}

/* With two messages of 5 bytes. */
static int filled(int family, int kind) {
    int fd = pair(family, kind);
    write_unseen(peer, "12345", 5);
    write_unseen(peer, "abcde", 5);
    await(fd, POLLIN);
    return fd;
}

/* With so many bytes, and others that come later. */
static int filled_late(int family, int bytes, int late, int least) {
    int fd = pair(family, SOCK_STREAM);
    patient(fd, FOREVER_S * 1000000L);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least)) fail("SO_RCVLOWAT");
    if (bytes > 0) write_unseen(peer, "1234567890", bytes);
    begin_late(peer, late);
    return fd;
}

static int with_urgent(void) {
    int fd = pair(AF_INET, SOCK_STREAM);
    write_unseen(peer, "123", 3);
    if (send(peer, "!", 1, MSG_OOB) != 1) fail("urgent");
    await(fd, POLLPRI);
    return fd;
}

static int make(const char *what) {
    if (!strcmp(what, "file")) return file(O_RDWR, 0);
    if (!strcmp(what, "file-end")) return file(O_RDWR, 8 * 4096 - 3);
    if (!strcmp(what, "file-after-end")) return file(O_RDWR, 8 * 4096 + 3);
    if (!strcmp(what, "file-cold")) return cold_file();
    if (!strcmp(what, "file-write-only")) return file(O_WRONLY, 0);
    if (!strcmp(what, "file-path")) return open(path, O_PATH);
    if (!strcmp(what, "directory")) return open("/", O_RDONLY | O_DIRECTORY);
    if (!strcmp(what, "proc")) return open("/proc/sys/kernel/ostype", O_RDONLY);
    if (!strcmp(what, "zero")) return open("/dev/zero", O_RDWR);
    if (!strcmp(what, "null")) return open("/dev/null", O_RDWR);
    if (!strcmp(what, "pipe")) return pipe_with("12345");
    if (!strcmp(what, "pipe-late")) {
        int fd = pipe_with("");
        begin_late(peer, 5);
        return fd;
    }
    if (!strcmp(what, "pipe-interrupted") || !strcmp(what, "pipe-restarted")) {
        int fd = pipe_with(""), is_restarted = what[5] == 'r';
        handle(SIGALRM, is_restarted ? SA_RESTART : 0);
        interrupt_often(1);
        if (is_restarted) begin_late(peer, 5);
        return fd;
    }
    if (!strcmp(what, "pipe-writer")) {
        int reader = pipe_with(""), writer = peer;
        peer = reader;
        return writer;
    }
    if (!strcmp(what, "pipe-closed") || !strcmp(what, "pipe-ended")) {
        int fd = pipe_with(what[5] == 'c' ? "12345" : "");
        close_peer();
        return fd;
    }
    if (!strcmp(what, "pipe-empty")) {
        int fd = pipe_with("");
        nonblocking(fd);
        return fd;
    }
    if (!strcmp(what, "terminal")) return terminal("line\n");
    if (!strcmp(what, "terminal-empty")) return terminal("");
    if (!strcmp(what, "terminal-closed")) {
        int fd = terminal("");
        close_peer();
        return fd;
    }
    if (!strcmp(what, "event")) return eventfd(7, 0);
    if (!strcmp(what, "event-none")) return eventfd(0, EFD_NONBLOCK);
    if (!strcmp(what, "timer")) return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (!strcmp(what, "epoll")) return epoll_create1(0);
    if (!strcmp(what, "unix")) return filled(AF_UNIX, SOCK_STREAM);
    if (!strcmp(what, "unix-late")) return filled_late(AF_UNIX, 0, 5, 1);
    if (!strcmp(what, "unix-rest")) return filled_late(AF_UNIX, 5, 5, 1);
    if (!strcmp(what, "unix-least")) return filled_late(AF_UNIX, 0, 10, 8);
    if (!strcmp(what, "unix-empty")) return pair(AF_UNIX, SOCK_STREAM);
    if (!strcmp(what, "unix-interrupted")) {
        int fd = pair(AF_UNIX, SOCK_STREAM);
        patient(fd, FOREVER_S * 1000000L);
        interrupt_often(1);
        return fd;
    }
    if (!strcmp(what, "unix-closed")) {
        int fd = filled(AF_UNIX, SOCK_STREAM);
        close_peer();
        return fd;
    }
    if (!strcmp(what, "unix-unread")) { /* the peer closes with data that it has not read: ECONNRESET */
        int fd = pair(AF_UNIX, SOCK_STREAM);
        write_unseen(fd, "x", 1);
        close_peer();
        return fd;
    }
    if (!strcmp(what, "datagrams")) return filled(AF_UNIX, SOCK_DGRAM);
    if (!strcmp(what, "packets")) return filled(AF_UNIX, SOCK_SEQPACKET);
    if (!strcmp(what, "tcp")) return filled(AF_INET, SOCK_STREAM);
    if (!strcmp(what, "tcp-empty")) return pair(AF_INET, SOCK_STREAM);
    if (!strcmp(what, "tcp-late")) return filled_late(AF_INET, 0, 5, 1);
    if (!strcmp(what, "tcp-rest")) return filled_late(AF_INET, 5, 5, 1);
    if (!strcmp(what, "tcp-least")) return filled_late(AF_INET, 0, 10, 8);
    if (!strcmp(what, "tcp-reset")) return reset_stream();
    if (!strcmp(what, "tcp-closed")) {
        int fd = filled(AF_INET, SOCK_STREAM);
        close_peer();
        await(fd, POLLRDHUP);
        return fd;
    }
    if (!strcmp(what, "tcp-urgent")) return with_urgent();
    if (!strcmp(what, "tcp-unconnected")) return socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(what, "udp")) return filled(AF_INET, SOCK_DGRAM);
    if (!strcmp(what, "udp-empty")) return pair(AF_INET, SOCK_DGRAM);
    if (!strcmp(what, "udp-refused")) return refused_socket(0);
    if (!strcmp(what, "udp-errors")) return refused_socket(1);
    return strcmp(what, "closed") ? 100000 : -1;
}

static const char *const OBJECTS[] = {
    "file", "file-end", "file-after-end", "file-cold", "file-write-only", "file-path", "directory", "proc", "zero", "null", "pipe", "pipe-late",
    "pipe-interrupted", "pipe-restarted", "pipe-writer", "pipe-closed", "pipe-ended", "pipe-empty", "terminal", "terminal-empty", "terminal-closed",
    "event", "event-none", "timer", "epoll", "unix", "unix-late", "unix-rest", "unix-least", "unix-empty", "unix-interrupted", "unix-closed", "unix-unread",
    "datagrams", "packets", "tcp", "tcp-empty", "tcp-late", "tcp-rest", "tcp-least", "tcp-reset", "tcp-closed", "tcp-urgent", "tcp-unconnected", "udp", "udp-empty",
    "udp-refused", "udp-errors", "closed", "no-such"};

static const int FLAGS[] = {0, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_WAITALL, MSG_WAITALL | MSG_DONTWAIT,
    MSG_WAITALL | MSG_PEEK, MSG_OOB, MSG_ERRQUEUE, MSG_CMSG_CLOEXEC, 1 << 25};

static const size_t SIZES[] = {0, 3, 10, 1400};

enum { READS = 4, READVS = 8, FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS, LAST = READS + READVS + 3 * FLAG_COUNT + 11 };

/* Where calls write: data, an address and its length, control data. */
#define DATA (area + 64)
#define ADDRESS ((struct sockaddr *)(area + 2048))
#define CONTROL (area + 2304)

static long readv_by(int fd, int by) {
    struct iovec two[2] = {{DATA, 2}, {DATA + 100, 900}}, gaps[3] = {{DATA, 0}, {DATA, 4}, {NULL, 0}}, many[20];
    struct iovec bad[2] = {{DATA, 2}, {BAD, 10}}, none[2] = {{DATA, 0}, {BAD, 0}}, long_one[1] = {{DATA, -1}};
    for (int i = 0; i < 20; i++) many[i] = (struct iovec){DATA + 8 * i, 1};
    switch (by) {
    case 0: return readv(fd, two, 2);
    case 1: return readv(fd, gaps, 3);
    case 2: return readv(fd, many, 20);
    case 3: return readv(fd, bad, 2);
    case 4: return readv(fd, none, 2);
    case 5: return readv(fd, long_one, 1);
    case 6: return readv(fd, two, NEGATIVE);
    default: return readv(fd, BAD, 2);
    }
}

static struct msghdr header;

/* What a call has returned beside its result. */
static char details[100];

/* How often the process went on after a stop: calls that wait end then, with EINTR or with what they have (signal(7)). */
static volatile int stops;

static void on_continue(int number) {
    (void)number;
    stops++;
}

static long recvmsg_by(int fd, int flags) {
    static struct iovec parts[2];
    parts[0] = (struct iovec){DATA, 4};
    parts[1] = (struct iovec){DATA + 100, 6};
    header = (struct msghdr){ADDRESS, 128, parts, 2, CONTROL, 512, 0};
    long result = recvmsg(fd, &header, flags);
    int error = errno;
    snprintf(details, sizeof details, "name %u, control %zu, flags %x: ", header.msg_namelen, header.msg_controllen, header.msg_flags);
    errno = error;
    return result;
}

static long recvmmsg_by(int fd, unsigned count, int flags) {
    struct iovec parts[2] = {{DATA, 4}, {DATA + 100, 6}};
    struct mmsghdr all[2] = {{{.msg_iov = parts, .msg_iovlen = 1}, 77}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 77}};
    struct timespec time = {0, 500000000};
    long result = recvmmsg(fd, all, count, flags, flags & MSG_WAITFORONE ? &time : NULL);
    int error = errno;
    snprintf(details, sizeof details, "lengths %u %u: ", all[0].msg_len, all[1].msg_len);
    errno = error;
    return result;
}

static long other_by(int fd, int by) {
    socklen_t *bytes = (socklen_t *)area;
    *bytes = by == 2 ? 4 : 128;
    switch (by) {
    case 0: return recv(fd, BAD, 10, MSG_PEEK);
    case 1: return recvfrom(fd, DATA, 10, 0, NULL, NULL);
    case 2: return recvfrom(fd, DATA, 10, 0, ADDRESS, bytes);
    case 3: return recvfrom(fd, DATA, 10, MSG_PEEK, ADDRESS, BAD);
    case 4: return recvmsg(fd, BAD, 0);
    case 5: return recvmmsg_by(fd, 2, MSG_DONTWAIT);
    case 6: return recvmmsg_by(fd, 1, MSG_WAITFORONE);
    case 7: return __read_chk(fd, DATA, 10, 20);
    case 8: return __recv_chk(fd, DATA, 10, 20, 0);
    case 9: return __recvfrom_chk(fd, DATA, 10, 20, MSG_WAITALL, ADDRESS, bytes);
    default: return __read(fd, DATA, 7);
    }
}

/* Whether the result depends on when the rest comes: those that take what is there, or want more than comes. */
static int is_timed(const char *object, int number) {
    int flags = 0, at = number - READS - READVS;
    if (at >= 0 && at < 3 * FLAG_COUNT) flags = FLAGS[at % FLAG_COUNT];
    if (at == 3 * FLAG_COUNT + 5) flags = MSG_DONTWAIT;
    if (at == 3 * FLAG_COUNT + 9) flags = MSG_WAITALL;
    if (strstr(object, "-rest")) return (flags & (MSG_WAITALL | MSG_DONTWAIT)) != MSG_WAITALL;
    if (strstr(object, "-late")) return (flags & (MSG_WAITALL | MSG_DONTWAIT)) != 0;
    return strstr(object, "-least") && flags & MSG_DONTWAIT;
}

static long call(int fd, int number) {
    if (number < READS) return read(fd, DATA, SIZES[number]);
    if ((number -= READS) < READVS) return readv_by(fd, number);
    if ((number -= READVS) < FLAG_COUNT) return recv(fd, DATA, 10, FLAGS[number]);
    if ((number -= FLAG_COUNT) < FLAG_COUNT) {
        *(socklen_t *)area = 128;
        return recvfrom(fd, DATA, number % 2 ? 3 : 0, FLAGS[number], ADDRESS, (socklen_t *)area);
    }
    if ((number -= FLAG_COUNT) < FLAG_COUNT) return recvmsg_by(fd, FLAGS[number]);
    return other_by(fd, number - FLAG_COUNT);
}

/* Ports, and addresses in the area that hold them, are other ones each time. */
static void forget_ports(void) {
    if (ADDRESS->sa_family == AF_INET) ((struct sockaddr_in *)ADDRESS)->sin_port = 0;
}

int main(int count, char **words) {
    begin(count, words);
    struct sigaction goes_on = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    sigaction(SIGCONT, &goes_on, NULL);
    int made = mkstemp(path);
    char block[4096];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 8; i++)
        if (write(made, block, sizeof block) != sizeof block) fail("write");
    for (size_t object = 0; object < sizeof OBJECTS / sizeof *OBJECTS; object++) {
        for (int number = 0; number < LAST; number++) {
            if (is_timed(OBJECTS[object], number)) continue;
            int fd = -1, error, before;
            long result;
            do {
                if (fd >= 0) close(fd);
                close_peer();
                before = stops;
                fd = make(OBJECTS[object]);
                *details = 0;
                queue();
                result = call(fd, number);
                error = errno;
                interrupt_often(0);
                end_late();
            } while (stops != before);
            forget_ports();
            fputs(details, stdout);
            errno = error;
            report(OBJECTS[object], "call", number, result);
            printf("position %ld, ", (long)lseek(fd, 0, SEEK_CUR));
            /* What the call has left there, and whether it has taken an error. */
            if (fd >= 0) nonblocking(fd);
            queue();
            result = read(fd, DATA, 100);
            report("then", "read", 0, result);
            int left = UNTOUCHED;
            socklen_t bytes = sizeof left;
            queue();
            result = getsockopt(fd, SOL_SOCKET, SO_ERROR, &left, &bytes);
            report("then", "SO_ERROR", left, result);
            if (fd >= 0) close(fd);
            close_peer();
            handle(SIGALRM, 0);
        }
    }
    unlink(path);
    return end();
}
