/* Calls that send or write elsewhere, and errors and results of all other calls that have a step before them; see calls.h. */
#include "calls.h"
#include <grp.h>
#include <mqueue.h>
#include <sched.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <utime.h>
#include <wchar.h>

static char data[1 << 17];

static int reader_of(int fd) {
    int writer = peer;
    peer = fd;
    return writer;
}

/* A writer of something that is full but for some bytes. */
static int full(int reader, long room) {
    int fd = reader_of(reader);
    nonblocking(fd);
    while (write_unseen(fd, data, 4096) > 0);
    for (long got = 0; got < room; got += syscall(SYS_read, peer, data, 4096));
    return fd;
}

static int make(const char *what) {
    if (!strcmp(what, "pipe")) return reader_of(pipe_with(""));
    if (!strcmp(what, "pipe-full")) return full(pipe_with(""), 0);
    if (!strcmp(what, "pipe-nearly-full")) return full(pipe_with(""), 8192);
    if (!strcmp(what, "pipe-reader")) return pipe_with("");
    if (!strcmp(what, "pipe-closed")) {
        int fd = reader_of(pipe_with(""));
        close_peer();
        return fd;
    }
    if (!strcmp(what, "unix")) return pair(AF_UNIX, SOCK_STREAM);
    if (!strcmp(what, "unix-full")) return full(pair(AF_UNIX, SOCK_STREAM), 0);
    if (!strcmp(what, "datagrams")) return pair(AF_UNIX, SOCK_DGRAM);
    if (!strcmp(what, "packets")) return pair(AF_UNIX, SOCK_SEQPACKET);
    if (!strcmp(what, "tcp")) return pair(AF_INET, SOCK_STREAM);
    if (!strcmp(what, "tcp-reset")) return reset_stream();
    if (!strcmp(what, "tcp-unconnected")) return socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(what, "udp-unconnected")) return socket(AF_INET, SOCK_DGRAM, 0);
    if (!strcmp(what, "udp")) return reader_of(pair(AF_INET, SOCK_DGRAM));
    if (!strcmp(what, "event")) return eventfd(0, EFD_NONBLOCK);
    if (!strcmp(what, "full")) return open("/dev/full", O_RDWR);
    if (!strcmp(what, "file")) return open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (!strcmp(what, "file-appended")) return open("file", O_RDWR | O_APPEND);
    if (!strcmp(what, "file-read-only")) return open("file", O_RDONLY);
    if (!strcmp(what, "directory")) return open("/", O_RDONLY | O_DIRECTORY);
    return strcmp(what, "closed") ? 100000 : -1;
}

static const char *const OBJECTS[] = {"pipe", "pipe-full", "pipe-nearly-full", "pipe-reader", "pipe-closed", "unix", "unix-full", "datagrams", "packets",
    "tcp", "tcp-reset", "tcp-unconnected", "udp-unconnected", "udp", "event", "full", "file", "file-appended", "file-read-only", "directory", "closed",
    "no-such"};

static const int FLAGS[] = {0, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE, MSG_EOR, MSG_OOB, MSG_DONTROUTE, MSG_CONFIRM, 0x10, 1 << 26};

enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS, WRITES = 5, WRITEVS = 8, MESSAGES = 9, MANY = 7,
    LAST = WRITES + WRITEVS + 2 * FLAG_COUNT + MESSAGES + MANY };

static long writev_by(int fd, int by) {
    struct iovec two[2] = {{data, 3}, {data + 100, 5}}, gaps[3] = {{data, 0}, {data, 8}, {NULL, 0}}, many[20], none[2] = {{data, 0}, {BAD, 0}};
    struct iovec bad[2] = {{data, 3}, {BAD, 5}}, long_one[1] = {{data, -1}};
    for (int i = 0; i < 20; i++) many[i] = (struct iovec){data + i, 1};
    switch (by) {
    case 0: return writev(fd, two, 2);
    case 1: return writev(fd, gaps, 3);
    case 2: return writev(fd, many, 20);
    case 3: return writev(fd, none, 2);
    case 4: return writev(fd, two, NEGATIVE);
    case 5: return writev(fd, long_one, 1);
    case 6: return writev(fd, bad, 2);
    default: return writev(fd, BAD, 2);
    }
}

/* A call that is like one before, which may have begun a burst, but for its arguments. */
static long sendmsg_by(int fd, int by) {
    struct iovec two[2] = {{data, 3}, {data + 100, 5}}, bad[2] = {{data, 3}, {BAD, 5}};
    struct msghdr header = {.msg_iov = two, .msg_iovlen = 2};
    switch (by) {
    case 0: break;
    case 1: header.msg_controllen = 64; break;
    case 2: header.msg_iovlen = 2000; break;
    case 3: header.msg_name = area, header.msg_namelen = 0; break;
    case 4: header.msg_name = memset(area, 0, 300), header.msg_namelen = 300; break;
    case 5: header.msg_name = area, header.msg_namelen = -1; break;
    case 6: header.msg_iov = bad; break;
    case 7: header.msg_iov = BAD; break;
    default: return sendmsg(fd, BAD, 0);
    }
    return sendmsg(fd, &header, 0);
}

static long sendmmsg_by(int fd, int by) {
    static struct mmsghdr all[2000];
    struct iovec two[2] = {{data, 3}, {data + 100, 5}}, bad = {BAD, 8};
    for (int i = 0; i < 2000; i++) all[i] = (struct mmsghdr){{.msg_iov = two, .msg_iovlen = 2}, 77};
    long result = 0;
    switch (by) {
    case 0: result = sendmmsg(fd, all, 0, 0); break;
    case 1: result = sendmmsg(fd, all, 3, MSG_DONTWAIT); break;
    case 2: result = sendmmsg(fd, all, 2000, MSG_DONTWAIT); break;
    case 3: all[2].msg_hdr.msg_iovlen = 1; result = sendmmsg(fd, all, 4, MSG_DONTWAIT); break;
    case 4: all[2].msg_hdr.msg_iovlen = 3000; result = sendmmsg(fd, all, 4, MSG_DONTWAIT); break;
    case 5: all[2].msg_hdr.msg_iov = &bad; all[2].msg_hdr.msg_iovlen = 1; result = sendmmsg(fd, all, 4, MSG_DONTWAIT); break;
    default: result = sendmmsg(fd, BAD, 4, MSG_DONTWAIT);
    }
    int error = errno;
    printf("lengths %u %u %u %u: ", all[0].msg_len, all[1].msg_len, all[2].msg_len, all[1024].msg_len);
    errno = error;
    return result;
}

static long call(int fd, int number) {
    static const size_t SIZES[] = {0, 3, 8, sizeof data};
    if (number < WRITES) return number == 4 ? write(fd, BAD, 8) : write(fd, data, SIZES[number]);
    if ((number -= WRITES) < WRITEVS) return writev_by(fd, number);
    if ((number -= WRITEVS) < FLAG_COUNT) return send(fd, data, 8, FLAGS[number]);
    if ((number -= FLAG_COUNT) < FLAG_COUNT) {
        struct sockaddr_storage to = {.ss_family = number % 2 ? AF_INET : AF_UNIX};
        static const socklen_t LENGTHS[] = {0, 2, 16, 128, 129, -1};
        return sendto(fd, data, 8, 0, number == 9 ? NULL : number == 8 ? BAD : &to, LENGTHS[number % 6]);
    }
    if ((number -= FLAG_COUNT) < MESSAGES) return sendmsg_by(fd, number);
    return sendmmsg_by(fd, number - MESSAGES);
}

/* Datagrams that join bursts are copied by the library: memory that cannot be read ends the program (docs/run.md). */
static int reads_bad_memory(const char *object, int number) {
    static const int BAD_ONES[] = {4, WRITES + 6, WRITES + 7, WRITES + WRITEVS + FLAG_COUNT + 8};
    for (unsigned i = 0; i < sizeof BAD_ONES / sizeof *BAD_ONES; i++)
        if (number == BAD_ONES[i]) return !strncmp(object, "udp", 3);
    int from_messages = number - (WRITES + WRITEVS + 2 * FLAG_COUNT);
    return !strncmp(object, "udp", 3) && ((from_messages >= 6 && from_messages < MESSAGES) || from_messages >= MESSAGES + 5);
}

static void sends(void) {
    for (size_t object = 0; object < sizeof OBJECTS / sizeof *OBJECTS; object++)
        for (int number = 0; number < LAST; number++) {
            if (reads_bad_memory(OBJECTS[object], number)) continue;
            int fd = make(OBJECTS[object]);
            if (fd >= 0 && strncmp(OBJECTS[object], "udp", 3)) nonblocking(fd);
            /* Datagrams of this size begin a burst. */
            if (!strcmp(OBJECTS[object], "udp"))
                for (int i = 0; i < 3; i++) send(fd, data, 8, 0);
            queue();
            long result = call(fd, number);
            report(OBJECTS[object], "call", number, result);
            long got = 0, calls = 0;
            if (peer >= 0) {
                /* A stream over the network comes when it comes, in parts of any size. */
                int is_stream = !strcmp(OBJECTS[object], "tcp");
                if (is_stream) shutdown(fd, SHUT_WR);
                else nonblocking(peer);
                memset(data, 0, sizeof data);
                for (long more; (more = read(peer, data, sizeof data)) > 0; calls += !is_stream) got += more;
            }
            struct stat status = {0};
            if (fd >= 0) fstat(fd, &status);
            printf("%ld bytes in %ld parts arrive, %lx, size %ld\n", got, calls, (long)hash(data, 16), S_ISREG(status.st_mode) ? status.st_size : 0);
            if (fd >= 0) close(fd);
            close_peer();
        }
}

#define TRY(...) do { queue(); long result = (long)(__VA_ARGS__); report("other", #__VA_ARGS__, 0, result); } while (0)

static void descriptors(int fd) {
    loff_t zero = 0;
    struct iovec part = {data, 3};
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct stat about = {0};
    fstat(fd, &about);
    TRY(dup(fd)); TRY(dup2(fd, 50)); TRY(dup3(fd, 50, O_CLOEXEC)); TRY(dup3(fd, fd, 0)); TRY(fcntl(fd, F_GETFL)); TRY(ioctl(fd, FIONREAD, area));
    TRY(pwrite(fd, data, 3, 0)); TRY(pwrite64(fd, data, 3, NEGATIVE)); TRY(pwritev(fd, &part, 1, 0)); TRY(pwritev2(fd, &part, 1, 0, 1 << 30));
    TRY(sendfile(fd, fd, NULL, 3)); TRY(splice(fd, NULL, fd, NULL, 3, 0)); TRY(tee(fd, fd, 3, 0)); TRY(vmsplice(fd, &part, 1, 0));
    TRY(copy_file_range(fd, &zero, fd, &zero, 3, 0)); TRY(eventfd_write(fd, 1)); TRY(mq_send(fd, data, 3, 0)); TRY(mq_receive(fd, data, 3, NULL));
    TRY(fsync(fd)); TRY(fdatasync(fd)); TRY(syncfs(fd)); TRY(ftruncate(fd, 3)); TRY(fallocate(fd, 0, 0, 3)); TRY(posix_fallocate(fd, 0, 3));
    TRY(fchmod(fd, about.st_mode & 07777)); TRY(fchown(fd, -1, -1)); TRY(flock(fd, LOCK_UN)); TRY(lockf(fd, F_TEST, 0)); TRY(futimens(fd, NULL));
    TRY(accept(fd, NULL, NULL)); TRY(accept4(fd, NULL, NULL, 0)); TRY(bind(fd, (void *)&to, sizeof to)); TRY(connect(fd, (void *)&to, 3));
    TRY(shutdown(fd, 7)); TRY(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, data, 1)); TRY(getsockopt(fd, SOL_SOCKET, SO_TYPE, area, (void *)data));
    TRY(dprintf(fd, "%s", "words")); TRY(close_range(-1, 0, 0)); TRY(setns(fd, 0)); TRY(fexecve(fd, (char *[]){NULL}, environ));
    TRY(close(fd)); TRY(close(fd));
}

static void names(const char *name) {
    TRY(open(name, O_RDONLY)); TRY(openat(-1, name, O_RDONLY)); TRY(creat(name, 0600)); TRY(fopen(name, "r") == NULL); TRY(rename(name, name));
    TRY(renameat(-1, name, -1, name)); TRY(unlink(name)); TRY(unlinkat(-1, name, 0)); TRY(remove(name)); TRY(mkdir(name, 0700)); TRY(rmdir(name));
    TRY(link(name, name)); TRY(symlink("x", name)); TRY(mkfifo(name, 0600)); TRY(mknod(name, 0, 0)); TRY(truncate(name, 3)); TRY(utime(name, NULL));
    TRY(utimes(name, NULL)); TRY(utimensat(-1, name, NULL, 0)); TRY(chmod(name, 0600)); TRY(chown(name, -1, -1)); TRY(lchown(name, -1, -1));
    TRY(chroot(name)); TRY(execl(name, name, (char *)NULL)); TRY(execve(name, (char *[]){NULL}, environ)); TRY(execvp(name, (char *[]){NULL}));
    pid_t child;
    TRY(posix_spawn(&child, name, NULL, NULL, (char *[]){NULL}, environ));
}

static void streams(void) {
    FILE *full = fopen("/dev/full", "w"), *file = fopen("stream", "w+");
    TRY(fprintf(file, "%s %d %.3f", "words", 7, 1.5)); TRY(fputs("more", file)); TRY(fputc('x', file)); TRY(putc('y', file)); TRY(fwrite(data, 3, 7, file));
    TRY(fflush(file)); TRY(fseek(file, 2, SEEK_SET)); TRY(fseeko(file, NEGATIVE, SEEK_SET)); TRY(ftell(file)); TRY(putw(5, file));
    TRY(fclose(file)); TRY(fputs("word", full)); TRY(fflush(full)); TRY(fprintf(full, "%ls", L"\xd800")); TRY(fclose(full));
    file = fopen("wide", "w");
    TRY(fputws(L"wide", file)); TRY(fwprintf(file, L"%d", 3)); TRY(fputwc(L'x', file)); TRY(freopen("wide", "r", file) == file); TRY(fputs("x", file));
    TRY(fclose(file));
}

static void *thread_of_its_own(void *value) {
    return value;
}

static void processes_and_waits(void) {
    struct timespec short_time = {0, 1000}, invalid = {0, -1}, past = {0, 0};
    sigset_t none;
    sigemptyset(&none);
    sem_t semaphore;
    sem_init(&semaphore, 0, 1);
    TRY(nanosleep(&short_time, NULL)); TRY(nanosleep(&invalid, NULL)); TRY(clock_nanosleep(CLOCK_MONOTONIC, 0, &invalid, NULL)); TRY(clock_nanosleep(77, 0, &past, NULL));
    TRY(usleep(1)); TRY(sleep(0)); TRY(sigtimedwait(&none, NULL, &past)); TRY(wait(NULL)); TRY(waitpid(-1, NULL, WNOHANG)); TRY(wait4(1, NULL, 0, NULL));
    TRY(waitid(P_ALL, 0, NULL, WEXITED)); TRY(sem_wait(&semaphore)); TRY(sem_timedwait(&semaphore, &past)); TRY(sem_post(&semaphore));
    TRY(semop(-1, NULL, 0)); TRY(semtimedop(-1, NULL, 1, &past)); TRY(msgrcv(-1, data, 3, 0, 0)); TRY(msgsnd(-1, data, 3, 0));
    TRY(kill(getpid(), 0)); TRY(kill(-99999, 0)); TRY(kill(getpid(), 999)); TRY(raise(999)); TRY(pthread_kill(pthread_self(), 999)); TRY(sigqueue(1 << 30, 0, (union sigval){0}));
    TRY(msync(BAD, 1, MS_SYNC)); TRY(prctl(-1)); TRY(prctl(PR_GET_DUMPABLE)); TRY(syscall(-1)); TRY(syscall(SYS_getppid) > 0); TRY(unshare(-1));
    TRY(setuid(getuid())); TRY(setresuid(-1, -1, -1)); TRY(setgid(getgid())); TRY(setgroups(-1, NULL)); TRY(system(NULL)); TRY(system("exit 3"));
    pthread_t thread;
    void *value = NULL;
    if (pthread_create(&thread, NULL, thread_of_its_own, area)) fail("pthread_create");
    TRY(pthread_join(thread, &value)); TRY(value == area); TRY(pclose(popen("cat >/dev/null", "w")));
    handle(SIGALRM, 0);
    interrupt_often(1);
    TRY(pause());
    interrupt_often(0);
    pid_t child;
    fflush(stdout);
    TRY((child = fork()) == 0 ? _exit(7), 0 : 0);
    TRY(waitpid(child, (int *)area, 0) == child);
}

int main(int count, char **words) {
    char directory[] = "/tmp/nocopy-others-XXXXXX";
    if (!mkdtemp(directory) || chdir(directory)) fail("directory");
    begin(count, words);
    sends();
    int pipe_end = pipe_with("12345");
    descriptors(-1);
    descriptors(open("/dev/null", O_RDWR));
    descriptors(pipe_end);
    close_peer();
    names("");
    names("no/such");
    names("/proc/self/no-such");
    streams();
    processes_and_waits();
    if (chdir("/") || system((sprintf(data, "rm -r %s", directory), data))) fail("remove");
    return end();
}
