/* Every call that waits for events, with its timeouts and masks, on descriptors of several kinds; see calls.h. */
#include "calls.h"
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

int __poll(struct pollfd *, nfds_t, int);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

enum { FDS = 9, FDS_MAX = 256 };

/* What is looked at: from 0 on, in this order. */
static int fds[FDS], peers[FDS];

static void make(int at, int fd) {
    fds[at] = fd;
    peers[at] = peer;
    peer = -1;
}

static int full_pipe(void) {
    int reader = pipe_with(""), writer = peer;
    char block[4096] = {0};
    nonblocking(writer);
    while (write_unseen(writer, block, sizeof block) > 0);
    peer = reader;
    return writer;
}

static void make_all(void) {
    make(0, pipe_with("12345"));
    make(1, pipe_with(""));
    make(2, full_pipe());
    make(3, reset_stream());
    make(4, refused_socket(0));
    make(5, refused_socket(1));
    make(6, pair(AF_UNIX, SOCK_STREAM));
    make(7, pipe_with(""));
    close(peers[7]);
    peers[7] = -1;
    make(8, open("/dev/zero", O_RDWR));
}

static void close_all(void) {
    for (int i = 0; i < FDS; i++) {
        close(fds[i]);
        if (peers[i] >= 0) close(peers[i]);
    }
}

/* Sets of what to look at, by bits; only those of `WAITING` have nothing that is ready. */
static const unsigned SETS[] = {0x0, 0x1, 0x2, 0x3, 0x8, 0x10, 0x20, 0x40, 0x42, 0x80, 0x100, 0x4, 0x1ff};
static const unsigned WAITING[] = {0x0, 0x2, 0x6, 0x42};
static const short EVENTS[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLPRI, 0, POLLRDHUP, -1};

enum { SET_COUNT = sizeof SETS / sizeof *SETS, WAITING_COUNT = sizeof WAITING / sizeof *WAITING, EVENT_COUNT = sizeof EVENTS / sizeof *EVENTS };

static struct pollfd *entries = (struct pollfd *)area;

static int fill(unsigned set, short events) {
    int count = 0;
    for (int i = 0; i < FDS; i++)
        if (set >> i & 1) entries[count++] = (struct pollfd){fds[i], events, 0x55};
    entries[count++] = (struct pollfd){-1, events, 0x55};
    return count;
}

/* Descriptors' numbers are the same each time, so they may be printed. */
static int poll_by(int by, int count, long us) {
    struct timespec time = {us / 1000000, us % 1000000 * 1000}, *timeout = us < 0 ? NULL : &time;
    int ms = us < 0 ? -1 : (us + 999) / 1000;
    switch (by) {
    case 0: return poll(entries, count, ms);
    case 1: return __poll(entries, count, ms);
    case 2: return __poll_chk(entries, count, ms, FDS_MAX * sizeof *entries);
    case 3: return ppoll(entries, count, timeout, NULL);
    default: return __ppoll_chk(entries, count, timeout, NULL, FDS_MAX * sizeof *entries);
    }
}

static void polls(void) {
    for (int by = 0; by < 5; by++) {
        for (int set = 0; set < SET_COUNT; set++)
            for (int events = 0; events < EVENT_COUNT; events++) {
                queue();
                int count = fill(SETS[set], EVENTS[events]);
                errno = UNTOUCHED;
                report("set", "poll", by << 16 | set << 8 | events, poll_by(by, count, 0));
            }
        for (int set = 0; set < WAITING_COUNT; set++) {
            queue();
            int count = fill(WAITING[set], POLLIN);
            errno = UNTOUCHED;
            report("waiting", "poll", by << 16 | set, poll_by(by, count, SHORT_US));
        }
    }
}

static void polls_that_end(void) {
    for (int by = 0; by < 5; by++) {
        queue();
        int count = fill(0x2, POLLIN);
        begin_late(peers[1], 5);
        errno = UNTOUCHED;
        int found = poll_by(by, count, -1), error = errno;
        end_late();
        errno = error;
        report("late", "poll", by, found);
        char bytes[5];
        if (read(fds[1], bytes, 5) != 5) fail("read");
        queue();
        count = fill(0x2, POLLIN);
        interrupt_often(1);
        errno = UNTOUCHED;
        found = poll_by(by, count, -1), error = errno;
        interrupt_often(0);
        errno = error;
        report("interrupted", "poll", by, found);
        queue();
        fill(0x1, POLLIN);
        errno = UNTOUCHED;
        report("many", "poll", by, poll_by(by == 2 ? 0 : by == 4 ? 3 : by, FDS_MAX + 1, 0));
        queue();
        entries = BAD;
        report("bad", "poll", by, poll_by(by == 2 ? 0 : by == 4 ? 3 : by, 2, 0));
        entries = (struct pollfd *)area;
    }
    static const struct timespec TIMES[] = {{-1, 0}, {0, -1}, {0, 1000000000}, {0, 999999}, {0, 0}};
    for (unsigned i = 0; i < sizeof TIMES / sizeof *TIMES; i++)
        for (unsigned set = 1; set < 3; set++) {
            queue();
            int count = fill(set, POLLIN);
            errno = UNTOUCHED;
            report("time", "ppoll", i << 8 | set, ppoll(entries, count, &TIMES[i], NULL));
            queue();
            fd_set *sets = (fd_set *)area;
            FD_ZERO(sets);
            FD_SET(fds[set - 1], sets);
            report("time", "pselect", i << 8 | set, pselect(FDS_MAX, sets, NULL, NULL, &TIMES[i], NULL));
        }
}

static int epoll;

static int epoll_by(int by, int room, int ms, const sigset_t *mask) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    struct epoll_event *found = (struct epoll_event *)area;
    switch (by) {
    case 0: return epoll_wait(epoll, found, room, ms);
    case 1: return epoll_pwait(epoll, found, room, ms, mask);
    default: return epoll_pwait2(epoll, found, room, ms < 0 ? NULL : &time, mask);
    }
}

/* Makes the call again that a stop of the process has ended (signal(7)). */
static int epoll_again(int by, int room, int ms) {
    for (;;) {
        int found = epoll_by(by, room, ms, NULL);
        if (found >= 0 || errno != EINTR) return found;
        errno = UNTOUCHED;
    }
}

static void add(int at, unsigned events) {
    struct epoll_event event = {.events = events, .data.u64 = at};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fds[at], &event)) fail("epoll_ctl");
}

static void epolls(void) {
    static const unsigned KINDS[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLOUT, EPOLLOUT | EPOLLET, 0};
    for (int by = 0; by < 3; by++)
        for (unsigned kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
            epoll = epoll_create1(0);
            for (int i = 0; i < FDS - 1; i++) add(i, KINDS[kind]);
            static const int ROOMS[] = {2, 16, 16, 0, -1};
            for (int turn = 0; turn < 5; turn++) {
                queue();
                report("set", "epoll", by << 16 | kind << 8 | turn, epoll_again(by, ROOMS[turn], turn % 2));
            }
            close(epoll);
        }
    for (int by = 0; by < 3; by++) {
        epoll = epoll_create1(0);
        add(1, EPOLLIN | EPOLLET);
        begin_late(peers[1], 5);
        queue();
        int found = epoll_again(by, 4, -1), error = errno;
        end_late();
        errno = error;
        report("late", "epoll", by, found);
        queue();
        report("edge", "epoll", by, epoll_again(by, 4, 1));
        char bytes[5];
        if (read(fds[1], bytes, 5) != 5) fail("read");
        queue();
        interrupt_often(1);
        found = epoll_by(by, 4, -1, NULL), error = errno;
        interrupt_often(0);
        errno = error;
        report("interrupted", "epoll", by, found);
        queue();
        report("bad", "epoll_wait", 0, epoll_wait(epoll, BAD, 4, 0));
        static const struct timespec TIMES[] = {{-1, 0}, {0, -1}, {0, 1000000000}, {0, 999999}};
        for (unsigned i = 0; i < sizeof TIMES / sizeof *TIMES; i++) {
            queue();
            report("time", "epoll_pwait2", i, epoll_pwait2(epoll, (void *)area, 4, &TIMES[i], NULL));
        }
        queue();
        report("time", "epoll_pwait2", 9, epoll_pwait2(epoll, (void *)area, 4, BAD, NULL));
        int last = epoll;
        epoll = by == 0 ? fds[0] : by == 1 ? -1 : 100000;
        for (int other = 0; other < 3; other++) {
            queue();
            report("other", "epoll", by << 8 | other, epoll_by(other, 4, 0, NULL));
        }
        close(last);
    }
}

static void selects(void) {
    fd_set *sets = (fd_set *)area;
    struct timeval *time = (struct timeval *)(area + 1024);
    for (int by = 0; by < 2; by++)
        for (int set = 0; set < SET_COUNT; set++)
            for (int which = 1; which < 8; which++) {
                queue();
                int end = 0;
                for (int i = 0; i < 3; i++) FD_ZERO(&sets[i]);
                for (int i = 0; i < FDS; i++)
                    for (int j = 0; SETS[set] >> i & 1 && j < 3; j++) {
                        FD_SET(fds[i], &sets[j]);
                        if (fds[i] >= end) end = fds[i] + 1;
                    }
                *time = (struct timeval){0, 0};
                struct timespec none = {0, 0};
                fd_set *read = which & 1 ? &sets[0] : NULL, *write = which & 2 ? &sets[1] : NULL, *except = which & 4 ? &sets[2] : NULL;
                errno = UNTOUCHED;
                int found = by ? pselect(end, read, write, except, &none, NULL) : select(end, read, write, except, time);
                report("set", "select", by << 16 | set << 8 | which, found);
            }
    /* What is left of a timeout that has passed, and calls that the kernel refuses. */
    for (int i = 0; i < 5; i++) {
        queue();
        FD_ZERO(sets);
        FD_SET(i == 2 ? 200 : fds[1], sets);
        /* Where the kernel refuses, it writes what is left of the time, which is not the same each time. */
        *time = (struct timeval){i == 3 ? -1 : 0, i == 0 || i == 3 ? SHORT_US : 0};
        errno = UNTOUCHED;
        report("one", "select", i, select(i == 1 ? NEGATIVE : FDS_MAX, i == 4 ? BAD : sets, NULL, NULL, time));
    }
    queue();
    FD_ZERO(sets);
    FD_SET(fds[1], sets);
    interrupt_often(1);
    errno = UNTOUCHED;
    int found = select(FDS_MAX, sets, NULL, NULL, NULL), error = errno;
    interrupt_often(0);
    errno = error;
    report("interrupted", "select", 0, found);
}

/* A signal is pending, and only the call lets it in. */
static void masks(void) {
    sigset_t block, none;
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &block, NULL);
    handle(SIGUSR1, SA_RESTART);
    struct timespec time = {0, 1000000};
    for (int by = 0; by < 5; by++)
        for (int at = 0; at < 2; at++)
            for (int blocked = 0; blocked < 2; blocked++) {
                const sigset_t *mask = blocked ? &block : &none;
                epoll = epoll_create1(0);
                add(at, EPOLLIN);
                pthread_kill(pthread_self(), SIGUSR1);
                queue();
                fd_set *sets = (fd_set *)area;
                long found = 0;
                if (by == 2) {
                    FD_ZERO(sets);
                    FD_SET(fds[at], sets);
                } else if (by < 2) {
                    fill(1 << at, POLLIN);
                }
                handled = 0;
                errno = UNTOUCHED;
                switch (by) {
                case 0: found = ppoll(entries, 2, &time, mask); break;
                case 1: found = __ppoll_chk(entries, 2, &time, mask, AREA_BYTES); break;
                case 2: found = pselect(FDS_MAX, sets, NULL, NULL, &time, mask); break;
                default: found = epoll_by(by - 2, 4, 1, mask);
                }
                report("mask", handled ? "handled" : "pending", by << 8 | at << 4 | blocked, found);
                queue();
                struct timespec at_once = {0, 0};
                report("mask", "sigtimedwait", 0, sigtimedwait(&block, NULL, &at_once));
                close(epoll);
            }
}

int main(int count, char **words) {
    begin(count, words);
    struct rlimit most = {FDS_MAX, FDS_MAX};
    if (setrlimit(RLIMIT_NOFILE, &most)) fail("RLIMIT_NOFILE");
    make_all();
    polls();
    polls_that_end();
    epolls();
    selects();
    masks();
    close_all();
    return end();
}
