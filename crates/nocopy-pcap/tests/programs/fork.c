// Forks: a child that reads, one that closes what its parent reads, one that sends, one that goes on as a daemon.
#include "program.h"

static int ends(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void child_closes(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {0};
    request("send 30");
    // In the middle of a block.
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    pid_t child = fork();
    if (child == 0) {
        pcap_close(p);
        _exit(0);
    }
    printf("child: %d\n", ends(child));
    report(p, "loop", pcap_loop(p, 20, on_packet, (unsigned char *)&seen));
    request("send 2000");
    report(p, "loop", pcap_loop(p, 2000, on_packet, (unsigned char *)&seen));
    report_packets("parent", &seen);
    struct pcap_stat stat;
    report(p, "stats", pcap_stats(p, &stat));
    printf("received %u, dropped %u\n", stat.ps_recv, stat.ps_drop);
    pcap_close(p);
}

static void child_exits(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {0};
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) exit(0);
    printf("child: %d\n", ends(child));
    request("send 10");
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    report_packets("parent", &seen);
    pcap_close(p);
}

static void child_reads(const char *device) {
    pcap_t *p = opened(device);
    filter(p, "udp port 7");
    request("udp 20 9");
    request("udp 20 7");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct seen seen = {0};
        report(p, "loop", pcap_loop(p, 20, on_packet, (unsigned char *)&seen));
        report_packets("child", &seen);
        filter(p, "udp port 11");
        unsigned char frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};
        report(p, "inject", pcap_inject(p, frame, sizeof frame));
        pcap_close(p);
        fflush(stdout);
        _exit(3);
    }
    printf("child: %d\n", ends(child));
    printf("sent: %s\n", request("receive 1"));
    pcap_close(p);
}

// The parent opens and ends, the child captures.
static void daemons(const char *device) {
    pcap_t *p = opened(device);
    fflush(stdout);
    pid_t first = fork();
    if (first == 0) {
        if (fork() > 0) _exit(0);
        struct seen seen = {0};
        request("send 600");
        report(p, "loop", pcap_loop(p, 600, on_packet, (unsigned char *)&seen));
        report_packets("daemon", &seen);
        pcap_close(p);
        p = opened(device);
        request("send 5");
        struct seen again = {0};
        report(p, "loop", pcap_loop(p, 5, on_packet, (unsigned char *)&again));
        report_packets("daemon's own", &again);
        pcap_close(p);
        exit(0);
    }
    ends(first);
    _exit(0);
}

static pid_t from_callback;
static void on_packet_fork(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    if (seen->packets == 3) {
        fflush(stdout);
        from_callback = fork();
        if (from_callback == 0) {
            pcap_close(seen->handle);
            _exit(5);
        }
    }
}

static void in_callback(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {.handle = p};
    request("send 10");
    report(p, "loop", pcap_loop(p, 10, on_packet_fork, (unsigned char *)&seen));
    printf("child: %d\n", ends(from_callback));
    report_packets("with a fork in between", &seen);
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    child_closes(argv[1]);
    child_exits(argv[1]);
    child_reads(argv[1]);
    in_callback(argv[1]);
    daemons(argv[1]);
    return 0;
}
