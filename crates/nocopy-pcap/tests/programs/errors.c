// What libpcap tolerates or refuses: calls too early, devices that are none, interfaces that go down and away, few descriptors.
#include "program.h"

static void early(const char *device) {
    char text[256] = "";
    pcap_t *p = pcap_create(device, text);
    struct seen seen = {0};
    struct pcap_pkthdr header, *pointer;
    const unsigned char *bytes;
    struct pcap_stat stat;
    struct bpf_program program = {0, NULL};
    int *list;
    report(p, "loop", pcap_loop(p, 1, on_packet, (unsigned char *)&seen));
    report(p, "dispatch", pcap_dispatch(p, 1, on_packet, (unsigned char *)&seen));
    printf("next %d\n", pcap_next(p, &header) != NULL);
    report(p, "next_ex", pcap_next_ex(p, &pointer, &bytes));
    report(p, "stats", pcap_stats(p, &stat));
    report(p, "setfilter", pcap_setfilter(p, &program));
    report(p, "compile", pcap_compile(p, &program, "udp", 1, 0));
    printf("setdirection %d\n", pcap_setdirection(p, 1) < 0);
    report(p, "getnonblock", pcap_getnonblock(p, text));
    report(p, "inject", pcap_inject(p, "x", 1));
    report(p, "sendpacket", pcap_sendpacket(p, (const unsigned char *)"x", 1));
    report(p, "datalink", pcap_datalink(p));
    report(p, "datalink_ext", pcap_datalink_ext(p));
    printf("list %d\n", pcap_list_datalinks(p, &list));
    printf("snapshot %d, bufsize %d, swapped %d, versions %d %d\n", pcap_snapshot(p), pcap_bufsize(p), pcap_is_swapped(p),
           pcap_major_version(p), pcap_minor_version(p));
    printf("descriptors %d %d\n", pcap_fileno(p), pcap_get_selectable_fd(p));
    pcap_dumper_t *dumper = pcap_dump_open(p, "/tmp/never");
    printf("dump %d %s\n", dumper != NULL, pcap_geterr(p));
    pcap_breakloop(p);
    int *types, count = pcap_list_tstamp_types(p, &types);
    printf("time stamps %d\n", count > 0);
    pcap_free_tstamp_types(types);
    pcap_close(p);
    p = pcap_create(NULL, text);
    printf("no device: %d\n", p != NULL);
    report(p, "any", pcap_activate(p));
    report(p, "link type of any", pcap_datalink(p));
    pcap_close(p);
}

static void no_devices(void) {
    const char *names[] = {"nothere", "a-name-that-is-much-too-long-for-an-interface", "", "nc1 "};
    for (int i = 0; i < 4; i++) {
        char text[256] = "";
        pcap_t *p = pcap_create(names[i], text);
        if (!p) { printf("no handle for '%s': %s\n", names[i], text); continue; }
        int status = pcap_activate(p);
        printf("'%s': %d %s, %s\n", names[i], status, pcap_statustostr(status), pcap_geterr(p));
        pcap_close(p);
        text[0] = 0;
        p = pcap_open_live(names[i], 100, 1, 10, text);
        printf("live '%s': %d %s\n", names[i], p != NULL, text);
    }
}

// Others than live captures.
static void others(void) {
    pcap_t *dead = pcap_open_dead(1, 100);
    struct seen seen = {0};
    struct pcap_stat stat;
    char text[256] = "";
    report(dead, "loop", pcap_loop(dead, 1, on_packet, (unsigned char *)&seen));
    report(dead, "stats", pcap_stats(dead, &stat));
    report(dead, "inject", pcap_inject(dead, "x", 1));
    report(dead, "nonblock", pcap_setnonblock(dead, 1, text));
    report(dead, "activate", pcap_activate(dead));
    filter(dead, "udp");
    pcap_close(dead);
    printf("offline %d %s\n", pcap_open_offline("/nonexistent/file", text) != NULL, text);
}

static void lengths(const char *device) {
    pcap_t *p = opened(device);
    static unsigned char large[100000];
    errno = 0;
    report(p, "inject 0", pcap_inject(p, large, 0));
    errno = 0;
    report(p, "send 0", pcap_sendpacket(p, large, 0));
    errno = 0;
    report(p, "send -1", pcap_sendpacket(p, large, -1));
    errno = 0;
    report(p, "inject too much", pcap_inject(p, large, (size_t)1 << 31));
    report(p, "inject from nowhere", pcap_inject(p, NULL, 60));
    report(p, "send from nowhere", pcap_sendpacket(p, NULL, 60));
    report(p, "inject 5", pcap_inject(p, large, 5));
    report(p, "send 5", pcap_sendpacket(p, large, 5));
    report(p, "inject 20000", pcap_inject(p, large, 20000));
    report(p, "send 100000", pcap_sendpacket(p, large, sizeof large));
    pcap_close(p);
}

// Few descriptors: whatever cannot be opened is an error, and what is open works.
static void few_descriptors(const char *device) {
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    int opened_handles = 0;
    for (rlim_t count = 3; count < 24; count++) {
        few = before;
        few.rlim_cur = count;
        setrlimit(RLIMIT_NOFILE, &few);
        char text[256] = "";
        pcap_t *p = pcap_open_live(device, 65535, 1, 10, text);
        if (p) {
            setrlimit(RLIMIT_NOFILE, &before);
            struct seen seen = {0};
            request("send 3");
            int result = pcap_loop(p, 3, on_packet, (unsigned char *)&seen);
            if (result || seen.packets != 3) printf("with %u descriptors: %d, %u packets\n", (unsigned)count, result, seen.packets);
            struct pcap_stat stat;
            if (pcap_stats(p, &stat) || stat.ps_recv != 3) printf("stats: %s\n", pcap_geterr(p));
            pcap_close(p);
            opened_handles++;
        } else if (!strstr(text, "Too many open files")) {
            printf("with %u descriptors: %s\n", (unsigned)count, text);
        }
        setrlimit(RLIMIT_NOFILE, &before);
    }
    printf("some were opened: %d\n", opened_handles > 10);
}

// Handles that are closed leave no descriptor behind.
static void opened_and_closed(const char *device) {
    int first = dup(0), then;
    close(first);
    for (int i = 0; i < 100; i++) {
        pcap_t *p = opened(device);
        if (i % 2) { struct pcap_pkthdr *header; const unsigned char *bytes; char text[256];
            pcap_setnonblock(p, 1, text); pcap_next_ex(p, &header, &bytes); pcap_inject(p, "0123456789abcdef", 16); }
        pcap_close(p);
    }
    then = dup(0);
    close(then);
    printf("descriptors left behind: %d\n", then - first);
}

static void down_and_away(const char *device) {
    pcap_t *p = opened(device);
    char text[256] = "";
    struct seen seen = {0};
    request("send 3");
    report(p, "loop", pcap_loop(p, 3, on_packet, (unsigned char *)&seen));
    request("down");
    pcap_setnonblock(p, 1, text);
    report(p, "while down", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    const struct timeval *timeout = pcap_get_required_select_timeout(p);
    printf("select %ld\n", timeout ? timeout->tv_sec * 1000000 + timeout->tv_usec : -1L);
    report(p, "inject while down", pcap_inject(p, "0123456789abcdef", 16));
    pcap_t *late = pcap_create(device, text);
    int status = pcap_activate(late);
    printf("activate while down: %d %s\n", status, pcap_geterr(late));
    pcap_close(late);
    text[0] = 0;
    late = pcap_open_live(device, 100, 0, 10, text);
    printf("live while down: %d %s\n", late != NULL, text);
    request("up");
    report(p, "up again", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    printf("select %d\n", pcap_get_required_select_timeout(p) != NULL);
    pcap_setnonblock(p, 0, text);
    request("send 4");
    report(p, "loop", pcap_loop(p, 4, on_packet, (unsigned char *)&seen));
    report_packets("before and behind", &seen);
    pcap_t *second = opened(device);
    request("down");
    pcap_setnonblock(p, 1, text);
    report(p, "down again", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    pcap_setnonblock(p, 0, text);
    request("delete");
    report(p, "gone while down", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    report(p, "still gone", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    report(second, "the other one", pcap_loop(second, -1, on_packet, (unsigned char *)&seen));
    printf("inject when gone %d\n", pcap_inject(p, "0123456789abcdef", 16) < 0);
    struct pcap_stat stat;
    report(p, "stats when gone", pcap_stats(p, &stat));
    pcap_close(p);
    pcap_close(second);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    early(argv[1]);
    no_devices();
    others();
    lengths(argv[1]);
    few_descriptors(argv[1]);
    opened_and_closed(argv[1]);
    down_and_away(argv[1]);
    return 0;
}
