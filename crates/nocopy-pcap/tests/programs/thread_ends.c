// Threads that leave a call in the ways that C has: cancelled while it waits, or when it begins, ended by its callback, by longjmp. Another
// thread then reads with the same handle, and nothing is left of it when it is closed. And what a callback or a signal handler may do.
#include <setjmp.h>
#include "program.h"

enum { LOOP, DISPATCH, NEXT, NEXT_EX, READS };
static const char *const names[] = {"loop", "dispatch", "next", "next_ex"};

struct job {
    pcap_t *handle;
    int function, is_asynchronous;
    pcap_handler callback;
    _Atomic pid_t thread;
    sigjmp_buf back;
};

static void count_it(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
}

static void read_for_ever(struct job *job) {
    struct pcap_pkthdr kept, *header;
    const unsigned char *bytes;
    for (;;) switch (job->function) {
        case LOOP: pcap_loop(job->handle, -1, job->callback, (unsigned char *)job); break;
        case DISPATCH: pcap_dispatch(job->handle, -1, job->callback, (unsigned char *)job); break;
        case NEXT: pcap_next(job->handle, &kept); break;
        case NEXT_EX: pcap_next_ex(job->handle, &header, &bytes); break;
    }
}

static void *work(void *given) {
    struct job *job = given;
    if (job->is_asynchronous) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    job->thread = (pid_t)syscall(SYS_gettid);
    if (!sigsetjmp(job->back, 1)) read_for_ever(job);
    return "left by longjmp";
}

static void joined(const char *what, pthread_t thread) {
    void *result;
    pthread_join(thread, &result);
    printf("%s: %s\n", what, result == PTHREAD_CANCELED ? "cancelled" : (char *)result);
}

// Ends at the frame with number 4: the one with which a callback was left may come again.
static void on_packet_last(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)header;
    if (bytes[12] == 0x88 && bytes[13] == 0xb5 && bytes[17] == 4) pcap_breakloop((pcap_t *)user);
}

static void read_again(pcap_t *p) {
    request("send 5");
    report(p, "read again", pcap_loop(p, -1, on_packet_last, (unsigned char *)p));
    struct pcap_stat stat;
    report(p, "stats", pcap_stats(p, &stat));
    unsigned char frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};
    report(p, "inject", pcap_inject(p, frame, sizeof frame));
}

static void cancelled_while_it_waits(const char *device, int function, int is_asynchronous) {
    int before = descriptors();
    struct job job = {.handle = opened(device), .function = function, .is_asynchronous = is_asynchronous, .callback = count_it};
    pthread_t thread;
    pthread_create(&thread, NULL, work, &job);
    while (!job.thread || !is_polling(job.thread)) usleep(1000);
    pthread_cancel(thread);
    joined(names[function], thread);
    read_again(job.handle);
    pcap_close(job.handle);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

static void on_packet_exit(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
    pthread_exit("exit of the thread");
}

static void on_packet_cancel(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
    pthread_cancel(pthread_self());
    pthread_testcancel();
}

static void on_packet_leave(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)header, (void)bytes;
    siglongjmp(((struct job *)user)->back, 1);
}

static void ended_by_callback(const char *device, int function, pcap_handler callback) {
    int before = descriptors();
    struct job job = {.handle = opened(device), .function = function, .callback = callback};
    request("send 5");
    pthread_t thread;
    pthread_create(&thread, NULL, work, &job);
    joined(names[function], thread);
    read_again(job.handle);
    pcap_close(job.handle);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

// The thread that left the call lives on.
static pthread_barrier_t is_left, is_closed;

static void *leave_and_stay(void *given) {
    void *result = work(given);
    pthread_barrier_wait(&is_left);
    pthread_barrier_wait(&is_closed);
    return result;
}

static void closed_by_another_thread(const char *device) {
    int before = descriptors();
    struct job job = {.handle = opened(device), .function = LOOP, .callback = on_packet_leave};
    request("send 5");
    pthread_barrier_init(&is_left, NULL, 2);
    pthread_barrier_init(&is_closed, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, leave_and_stay, &job);
    pthread_barrier_wait(&is_left);
    read_again(job.handle);
    pcap_close(job.handle);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
    pthread_barrier_wait(&is_closed);
    joined("its thread", thread);
}

// Functions that wait for nothing, in a thread that is to end.
static pcap_t *pending_handle;
static const char *device_of_pending;

static void *with_pending_cancel(void *number) {
    struct pcap_stat stat;
    struct bpf_program program = {0, NULL};
    char text[256];
    unsigned char frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};
    struct pcap_pkthdr kept = {{1, 1}, 60, 60};
    pcap_dumper_t *dumper = pcap_dump_open(pending_handle, "/dev/null");
    pcap_compile(pending_handle, &program, "udp port 7 or ether proto 0x88b5", 1, 0xffffffff);
    pthread_cancel(pthread_self());
    switch ((intptr_t)number) {
        case 0: pcap_stats(pending_handle, &stat); break;
        case 1: pcap_setfilter(pending_handle, &program); break;
        case 2: pcap_setnonblock(pending_handle, 0, text); break;
        case 3: pcap_inject(pending_handle, frame, sizeof frame); break;
        case 4: pcap_sendpacket(pending_handle, frame, sizeof frame); break;
        case 5: pcap_breakloop(pending_handle); break;
        case 6: pcap_dump((unsigned char *)dumper, &kept, frame); break;
        case 7: pcap_dump_close(dumper); break;
        case 8: pcap_compile(pending_handle, &program, "tcp", 1, 0xffffffff); break;
        case 9: pcap_next(pending_handle, &kept); break;
        case 10: pcap_close(pending_handle); pending_handle = NULL; break;
        case 11: pending_handle = NULL; pcap_close(opened(device_of_pending)); break;
    }
    pthread_testcancel();
    return "goes on";
}

static void pending(const char *device) {
    device_of_pending = device;
    for (intptr_t number = 0; number < 12; number++) {
        if (!pending_handle && number < 11) pending_handle = opened(device);
        pthread_t thread;
        pthread_create(&thread, NULL, with_pending_cancel, (void *)number);
        char what[32];
        snprintf(what, sizeof what, "function %d", (int)number);
        joined(what, thread);
    }
}

// What else a callback may do: run a program. And a signal handler, while the call waits.
static void on_packet_run(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)header, (void)bytes;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", NULL);
        _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("the program ended with %d\n", WEXITSTATUS(status));
    pcap_breakloop((pcap_t *)user);
}

static pcap_t *signalled;

static void on_signal(int number) {
    (void)number;
    struct pcap_stat stat;
    char text[256];
    int result = pcap_stats(signalled, &stat);
    printf("in the handler: %d %d\n", result, pcap_getnonblock(signalled, text));
    pcap_breakloop(signalled);
}

static void *signal_it(void *thread) {
    wait_until_polling();
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

static void callbacks_and_handlers(const char *device) {
    int before = descriptors();
    signalled = opened(device);
    request("send 1");
    fflush(stdout);
    report(signalled, "loop", pcap_loop(signalled, -1, on_packet_run, (unsigned char *)signalled));
    signal(SIGUSR1, on_signal);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_it, &self);
    report(signalled, "loop", pcap_loop(signalled, -1, count_it, NULL));
    pthread_join(thread, NULL);
    read_again(signalled);
    pcap_close(signalled);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

static void on_packet_end(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
    printf("exit in the callback\n");
    exit(0);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    for (int is_asynchronous = 0; is_asynchronous < 2; is_asynchronous++)
        for (int function = 0; function < READS; function++)
            cancelled_while_it_waits(argv[1], function, is_asynchronous);
    pcap_handler callbacks[] = {on_packet_exit, on_packet_cancel, on_packet_leave};
    for (int i = 0; i < 3; i++)
        for (int function = LOOP; function <= DISPATCH; function++) ended_by_callback(argv[1], function, callbacks[i]);
    closed_by_another_thread(argv[1]);
    pending(argv[1]);
    callbacks_and_handlers(argv[1]);
    pcap_t *p = opened(argv[1]);
    request("send 1");
    pcap_loop(p, -1, on_packet_end, NULL);
    return 3;
}
