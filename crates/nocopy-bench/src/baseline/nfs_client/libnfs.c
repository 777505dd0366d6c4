/*
 * Reads by libnfs's asynchronous API, as a program does that is written for it: what `nocopy bench nfs-read` compares with.
 *
 *   reads URL BYTES IN_FLIGHT CONNECTIONS FILE_BYTES WARM_UP_MS WINDOW_MS
 *   file URL TO BYTES IN_FLIGHT          one file into a file of this host
 *   directory URL TO IN_FLIGHT           every file of a directory into one of this host
 *
 * What is read is used where libnfs has it, in its callback, and is copied nowhere. A line of JSON on standard output says how it went.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <nfsc/libnfs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64

static void fail(const char *format, ...)
{
    char why[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    for (char *at = why; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
            *at = ' ';
    printf("{\"Failed\":\"%s\"}\n", why);
    exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void done(uint64_t bytes, uint64_t elapsed_ns, uint64_t cpu_ns)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"Done\":{\"bytes\":%" PRIu64 ",\"elapsed_ns\":%" PRIu64 ",\"cpu_ns\":%" PRIu64
           ",\"peak_kib\":%ld,\"moved_bytes\":0}}\n",
           bytes, elapsed_ns, cpu_ns, usage.ru_maxrss);
    exit(0);
}

/* ---- connections ------------------------------------------------------------------------------------------ */

static struct nfs_context *contexts[CONNECTIONS_MAX];
static int connections;

static struct nfs_context *mounted(const char *address, int is_directory, char **below)
{
    struct nfs_context *nfs = nfs_init_context();
    if (!nfs)
        fail("no memory");
    struct nfs_url *url = is_directory ? nfs_parse_url_dir(nfs, address) : nfs_parse_url_full(nfs, address);
    if (!url)
        fail("%s: %s", address, nfs_get_error(nfs));
    if (nfs_mount(nfs, url->server, url->path))
        fail("mount of %s: %s", url->path, nfs_get_error(nfs));
    *below = url->file ? strdup(url->file) : NULL;
    nfs_destroy_url(url);
    contexts[connections++] = nfs;
    return nfs;
}

/* Moves what can be moved, and waits for the rest. */
static void turn(void)
{
    struct pollfd polled[CONNECTIONS_MAX];
    for (int i = 0; i < connections; i++) {
        polled[i].fd = nfs_get_fd(contexts[i]);
        polled[i].events = (short)nfs_which_events(contexts[i]);
        polled[i].revents = 0;
    }
    if (poll(polled, (nfds_t)connections, -1) < 0)
        fail("poll");
    for (int i = 0; i < connections; i++)
        if (polled[i].revents && nfs_service(contexts[i], polled[i].revents) < 0)
            fail("%s", nfs_get_error(contexts[i]));
}

/* ---- reads of a file, again and again --------------------------------------------------------------------- */

struct reader {
    struct nfs_context *nfs;
    struct nfsfh *file;
    uint64_t offset;
    int is_checked;
};

static uint64_t bytes, file_bytes, next_offset, first_pass_left, first_pass_unread;
static uint64_t received, warm_up_ns, window_ns, ready_ns, begin_ns, begin_cpu_ns, begin_received;
static int in_flight;

/* As the bench wrote it: each word of eight bytes is made of its place. */
static int is_content(uint64_t offset, const unsigned char *data)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word = word << 8 | data[at + (uint64_t)i];
        if (word != ((offset + at) / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15))
            return 0;
    }
    return 1;
}

/* Opens and closes the window. */
static void note(void)
{
    received += bytes;
    if (first_pass_unread)
        return;
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    if (!ready_ns) {
        ready_ns = now;
    } else if (!begin_ns && now - ready_ns >= warm_up_ns) {
        begin_ns = now;
        begin_cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        begin_received = received;
        printf("\"Measuring\"\n");
        fflush(stdout);
    } else if (begin_ns && now - begin_ns >= window_ns) {
        done(received - begin_received, now - begin_ns, now_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns);
    }
}

static void ask(struct reader *reader);

static void on_read(int count, struct nfs_context *nfs, void *data, void *context)
{
    struct reader *reader = context;
    if (count != (int)bytes)
        fail("a read of %" PRIu64 " bytes brought %d: %s", bytes, count, nfs_get_error(nfs));
    if (reader->is_checked) {
        if (!is_content(reader->offset, data))
            fail("what was read at %" PRIu64 " is not what the file has there", reader->offset);
        first_pass_unread--;
    }
    note();
    ask(reader);
}

static void ask(struct reader *reader)
{
    reader->offset = next_offset;
    reader->is_checked = first_pass_left > 0;
    first_pass_left -= first_pass_left > 0;
    next_offset = (next_offset + bytes) % file_bytes;
    if (nfs_pread_async(reader->nfs, reader->file, reader->offset, bytes, on_read, reader))
        fail("%s", nfs_get_error(reader->nfs));
}

static void reads(const char *address, int wanted)
{
    first_pass_left = first_pass_unread = file_bytes / bytes;
    struct nfsfh *files[CONNECTIONS_MAX];
    for (int i = 0; i < wanted; i++) {
        char *name;
        struct nfs_context *nfs = mounted(address, 0, &name);
        if (nfs_open(nfs, name, O_RDONLY, &files[i]))
            fail("%s: %s", name, nfs_get_error(nfs));
    }
    struct reader *readers = calloc((size_t)in_flight, sizeof *readers);
    for (int i = 0; i < in_flight; i++) {
        readers[i].nfs = contexts[i % wanted];
        readers[i].file = files[i % wanted];
        ask(&readers[i]);
    }
    for (;;)
        turn();
}

/* ---- one long file into a file ----------------------------------------------------------------------------- */

static int local = -1;

static void ask_for_piece(struct reader *reader);

static void on_piece(int count, struct nfs_context *nfs, void *data, void *context)
{
    struct reader *reader = context;
    if (count < 0)
        fail("read: %s", nfs_get_error(nfs));
    if (count > 0 && pwrite(local, data, (size_t)count, (off_t)reader->offset) != count)
        fail("write");
    received += (uint64_t)count;
    in_flight--;
    ask_for_piece(reader);
}

static void ask_for_piece(struct reader *reader)
{
    if (next_offset >= file_bytes)
        return;
    uint64_t left = file_bytes - next_offset;
    reader->offset = next_offset;
    uint64_t wanted = left < bytes ? left : bytes;
    next_offset += wanted;
    in_flight++;
    if (nfs_pread_async(reader->nfs, reader->file, reader->offset, wanted, on_piece, reader))
        fail("%s", nfs_get_error(reader->nfs));
}

static void keep(int to, uint64_t mode, uint64_t seconds, uint64_t nanoseconds)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {(time_t)seconds, (long)nanoseconds}};
    if (fchmod(to, (mode_t)mode & 0777) || futimens(to, times) || close(to))
        fail("attributes of a copy");
}

static void copy_file(const char *address, const char *to, int at_once)
{
    char *name;
    struct nfsfh *file;
    struct nfs_stat_64 about;
    struct nfs_context *nfs = mounted(address, 0, &name);
    if (nfs_open(nfs, name, O_RDONLY, &file) || nfs_fstat64(nfs, file, &about))
        fail("%s: %s", name, nfs_get_error(nfs));
    file_bytes = about.nfs_size;
    if ((local = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
        fail("%s: cannot be made", to);
    struct reader *readers = calloc((size_t)at_once, sizeof *readers);
    for (int i = 0; i < at_once; i++) {
        readers[i].nfs = nfs;
        readers[i].file = file;
        ask_for_piece(&readers[i]);
    }
    while (in_flight)
        turn();
    if (received != file_bytes)
        fail("%" PRIu64 " bytes of %" PRIu64, received, file_bytes);
    keep(local, about.nfs_mode, about.nfs_mtime, about.nfs_mtime_nsec);
    done(received, 0, 0);
}

/* ---- the files of a directory ------------------------------------------------------------------------------ */

struct copy {
    struct nfsfh *file;
    struct nfsdirent *entry;
};

static struct nfsdir *directory;
static int directory_here;
static uint64_t files_done;

static void begin_next(struct copy *copy);

static void on_closed(int status, struct nfs_context *nfs, void *data, void *context)
{
    struct copy *copy = context;
    (void)data;
    if (status)
        fail("close of %s: %s", copy->entry->name, nfs_get_error(nfs));
    in_flight--;
    files_done++;
    begin_next(copy);
}

static void on_content(int count, struct nfs_context *nfs, void *data, void *context)
{
    struct copy *copy = context;
    struct nfsdirent *entry = copy->entry;
    if (count != (int)entry->size)
        fail("%s: %d bytes of %" PRIu64 ": %s", entry->name, count, (uint64_t)entry->size, nfs_get_error(nfs));
    int to = openat(directory_here, entry->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0 || write(to, data, (size_t)count) != count)
        fail("%s: cannot be written", entry->name);
    keep(to, entry->mode, (uint64_t)entry->mtime.tv_sec, entry->mtime_nsec);
    if (nfs_close_async(nfs, copy->file, on_closed, copy))
        fail("%s", nfs_get_error(nfs));
}

static void on_opened(int status, struct nfs_context *nfs, void *data, void *context)
{
    struct copy *copy = context;
    if (status)
        fail("open of %s: %s", copy->entry->name, nfs_get_error(nfs));
    copy->file = data;
    if (nfs_pread_async(nfs, copy->file, 0, copy->entry->size, on_content, copy))
        fail("%s", nfs_get_error(nfs));
}

static void begin_next(struct copy *copy)
{
    struct nfs_context *nfs = contexts[0];
    do
        copy->entry = nfs_readdir(nfs, directory);
    while (copy->entry && copy->entry->type != 1 /* NF3REG */);
    if (!copy->entry)
        return;
    char path[4096];
    snprintf(path, sizeof path, "/%s", copy->entry->name);
    in_flight++;
    if (nfs_open_async(nfs, path, O_RDONLY, on_opened, copy))
        fail("%s", nfs_get_error(nfs));
}

static void copy_directory(const char *address, const char *to, int at_once)
{
    char *below;
    struct nfs_context *nfs = mounted(address, 1, &below);
    if (nfs_opendir(nfs, "/", &directory))
        fail("directory: %s", nfs_get_error(nfs));
    if (mkdir(to, 0755) || (directory_here = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        fail("%s: cannot be made", to);
    struct copy *copies = calloc((size_t)at_once, sizeof *copies);
    for (int i = 0; i < at_once; i++)
        begin_next(&copies[i]);
    while (in_flight)
        turn();
    done(files_done, 0, 0);
}

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "reads") && count == 9) {
        bytes = number(words[3]);
        in_flight = (int)number(words[4]);
        file_bytes = number(words[6]);
        warm_up_ns = number(words[7]) * 1000000;
        window_ns = number(words[8]) * 1000000;
        reads(words[2], (int)number(words[5]));
    } else if (!strcmp(what, "file") && count == 6) {
        bytes = number(words[4]);
        copy_file(words[2], words[3], (int)number(words[5]));
    } else if (!strcmp(what, "directory") && count == 5) {
        copy_directory(words[2], words[3], (int)number(words[4]));
    }
    fail("not a task");
}
