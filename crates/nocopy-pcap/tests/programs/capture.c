// Captures: settings, counts, callbacks, filters, directions, files.
#include "program.h"

static void settings(const char *device) {
    char text[256] = "";
    pcap_t *p = pcap_create(device, text);
    printf("create: %s '%s'\n", p ? "a handle" : "none", text);
    report(p, "snaplen", pcap_set_snaplen(p, 100));
    report(p, "promisc", pcap_set_promisc(p, 1));
    report(p, "timeout", pcap_set_timeout(p, 10));
    report(p, "buffer", pcap_set_buffer_size(p, 1 << 20));
    report(p, "no buffer", pcap_set_buffer_size(p, -1));
    report(p, "precision 7", pcap_set_tstamp_precision(p, 7));
    report(p, "precision", pcap_set_tstamp_precision(p, 1));
    report(p, "time stamps 99", pcap_set_tstamp_type(p, 99));
    report(p, "time stamps -1", pcap_set_tstamp_type(p, -1));
    report(p, "monitor", pcap_can_set_rfmon(p));
    report(p, "datalink before", pcap_datalink(p));
    report(p, "activate", pcap_activate(p));
    check_library(p);
    report(p, "activate again", pcap_activate(p));
    report(p, "snaplen late", pcap_set_snaplen(p, 7));
    report(p, "promisc late", pcap_set_promisc(p, 0));
    report(p, "timeout late", pcap_set_timeout(p, 7));
    report(p, "buffer late", pcap_set_buffer_size(p, 7));
    report(p, "rfmon late", pcap_set_rfmon(p, 0));
    report(p, "immediate late", pcap_set_immediate_mode(p, 0));
    report(p, "precision late", pcap_set_tstamp_precision(p, 0));
    report(p, "type late", pcap_set_tstamp_type(p, 0));
    report(p, "protocol late", pcap_set_protocol_linux(p, 0));
    printf("snapshot %d, bufsize %d, precision %d, swapped %d, version %d.%d, file %d, ext %d\n", pcap_snapshot(p),
           pcap_bufsize(p), pcap_get_tstamp_precision(p), pcap_is_swapped(p), pcap_major_version(p), pcap_minor_version(p),
           pcap_file(p) != NULL, pcap_datalink_ext(p));
    int *list, count = pcap_list_datalinks(p, &list);
    for (int i = 0; i < count; i++) printf("link type %d\n", list[i]);
    pcap_free_datalinks(list);
    report(p, "datalink", pcap_datalink(p));
    report(p, "datalink 12", pcap_set_datalink(p, 12));
    report(p, "datalink 9999", pcap_set_datalink(p, 9999));
    report(p, "datalink -1", pcap_set_datalink(p, -1));
    report(p, "docsis", pcap_set_datalink(p, 143));
    report(p, "datalink", pcap_datalink(p));
    report(p, "ethernet", pcap_set_datalink(p, 1));
    report(p, "nonblock", pcap_getnonblock(p, text));
    report(p, "direction 9", pcap_setdirection(p, 9));
    printf("descriptors %d %d, select %d\n", pcap_fileno(p) >= 0, pcap_fileno(p) == pcap_get_selectable_fd(p),
           pcap_get_required_select_timeout(p) != NULL);
    request("send 20");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 20, on_packet, (unsigned char *)&seen));
    report_packets("cut", &seen);
    pcap_close(p);
}

// A packet comes at once, however long the timeout is.
static void immediate(const char *device) {
    char text[256] = "";
    for (int timeout_ms = 200000; timeout_ms > 0; timeout_ms -= 199990) {
        pcap_t *p = pcap_create(device, text);
        report(p, "immediate", pcap_set_immediate_mode(p, 1));
        report(p, "timeout", pcap_set_timeout(p, timeout_ms));
        pcap_set_promisc(p, 1);
        report(p, "activate", pcap_activate(p));
        check_library(p);
        struct seen seen = {0};
        for (unsigned sent = 0; sent < 30; sent += 3) {
            request("send 3");
            while (seen.packets < sent + 3 && pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen) >= 0) {}
        }
        report_packets("at once", &seen);
        request("vlan 4 7");
        struct seen tagged = {0};
        report(p, "loop", pcap_loop(p, 4, on_packet, (unsigned char *)&tagged));
        report_packets("tagged", &tagged);
        filter(p, "udp port 7");
        request("udp 10 9");
        request("udp 10 7");
        struct seen matching = {0};
        report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&matching));
        report_packets("matching", &matching);
        struct pcap_stat stat;
        report(p, "stats", pcap_stats(p, &stat));
        printf("dropped %u\n", stat.ps_drop);
        pcap_close(p);
    }
}

static void counts(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {0};
    request("send 500");
    for (int left = 500, got; left > 0; left -= got) {
        got = pcap_dispatch(p, left > 7 ? 7 : left, on_packet, (unsigned char *)&seen);
        if (got < 0 || got > 7) { report(p, "dispatch", got); break; }
    }
    report_packets("by sevens", &seen);
    request("send 300");
    struct seen all = {0};
    while (all.packets < 300 && pcap_dispatch(p, -1, on_packet, (unsigned char *)&all) >= 0) {}
    report_packets("all there are", &all);
    struct pcap_stat stat;
    report(p, "stats", pcap_stats(p, &stat));
    printf("received %u, dropped %u, by the interface %u\n", stat.ps_recv, stat.ps_drop, stat.ps_ifdrop);
    char text[256] = "";
    report(p, "set nonblock", pcap_setnonblock(p, 1, text));
    report(p, "get nonblock", pcap_getnonblock(p, text));
    printf("descriptor %d\n", (fcntl(pcap_fileno(p), F_GETFL) & O_NONBLOCK) != 0);
    report(p, "nothing", pcap_dispatch(p, -1, on_packet, (unsigned char *)&all));
    struct pcap_pkthdr *header;
    const unsigned char *bytes;
    report(p, "nothing next", pcap_next_ex(p, &header, &bytes));
    pcap_breakloop(p);
    report(p, "nothing, broken", pcap_dispatch(p, -1, on_packet, (unsigned char *)&all));
    request("send 5");
    struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
    printf("poll %d\n", poll(&wait, 1, 60000));
    report(p, "packets, broken", pcap_dispatch(p, -1, on_packet, (unsigned char *)&all));
    struct seen late = {0};
    while (late.packets < 5) pcap_dispatch(p, 1, on_packet, (unsigned char *)&late);
    report_packets("one by one", &late);
    printf("unreadable then: %d\n", poll(&wait, 1, 0));
    report(p, "block", pcap_setnonblock(p, 0, text));
    pcap_close(p);
}

static void one_by_one(const char *device) {
    pcap_t *p = opened(device);
    request("send 100");
    struct seen seen = {0};
    struct pcap_pkthdr *header;
    const unsigned char *bytes;
    while (seen.packets < 50) {
        int result = pcap_next_ex(p, &header, &bytes);
        if (result == 1) count_packet(&seen, header, bytes);
        else if (result) { report(p, "next_ex", result); break; }
    }
    struct pcap_pkthdr mine;
    while (seen.packets < 100) {
        bytes = pcap_next(p, &mine);
        if (bytes) count_packet(&seen, &mine, bytes);
    }
    report_packets("next", &seen);
    struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
    printf("readable after the last: %d\n", poll(&wait, 1, 0));
    pcap_close(p);
}

static void filters(const char *device) {
    pcap_t *p = opened(device);
    filter(p, "udp port 7");
    filter(p, "not a filter");
    report(p, "no filter", pcap_setfilter(p, NULL));
    struct bpf_insn unknown[] = {{0xfff, 0, 0, 0}};
    struct bpf_program none = {0, NULL}, bad = {1, unknown};
    report(p, "empty", pcap_setfilter(p, &none));
    report(p, "unknown", pcap_setfilter(p, &bad));
    request("udp 10 9");
    request("udp 10 7");
    request("vlan 10 7");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    report_packets("port 7", &seen);
    // What waits is of the old filter: it is looked at by the new one.
    request("udp 10 7");
    request("udp 10 7");
    filter(p, "udp port 11");
    request("udp 5 11");
    struct seen after = {0};
    report(p, "loop", pcap_loop(p, 5, on_packet, (unsigned char *)&after));
    report_packets("port 11", &after);
    filter(p, "vlan and udp port 7");
    request("vlan 5 7");
    struct seen tagged = {0};
    report(p, "loop", pcap_loop(p, 5, on_packet, (unsigned char *)&tagged));
    report_packets("tagged", &tagged);
    filter(p, "");
    request("vlan 5 9");
    request("send 5");
    struct seen all = {0};
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&all));
    report_packets("all", &all);
    pcap_close(p);
}

// Filters and tags, as they are for packet sockets.
static void tags(const char *device) {
    pcap_t *p = opened(device);
    // A tag that the kernel has taken out is beside the frame: filters of libpcap's look for it there.
    const char *expressions[] = {"vlan", "vlan 291 and udp", "udp or vlan 5", "not vlan", "ether[12:2] == 0x8100", "len > 90"};
    for (int i = 0; i < 6; i++) {
        struct bpf_program program;
        pcap_compile(p, &program, expressions[i], 1, 0);
        uint32_t sum = 0;
        for (unsigned j = 0; j < program.bf_len; j++)
            sum = sum * 31 + program.bf_insns[j].code * 7 + program.bf_insns[j].k + program.bf_insns[j].jt * 3 + program.bf_insns[j].jf;
        printf("%s: %u instructions, sum %08x\n", expressions[i], program.bf_len, sum);
        filter(p, "udp port 7");
        request("vlan 5 7");
        request("udp 5 7");
        request("send 3");
        report(p, expressions[i], pcap_setfilter(p, &program)); // for those that wait, and then for those that come
        pcap_freecode(&program);
        request("vlan 5 7");
        request("udp 5 7");
        filter(p, "udp port 11");
        request("udp 1 11");
        struct seen some = {0};
        report(p, "loop", pcap_loop(p, 1, on_packet, (unsigned char *)&some));
        report_packets("the last", &some);
    }
    filter(p, "udp port 7");
    request("vlan 10 7");
    request("udp 10 7");
    struct seen both = {0};
    report(p, "loop", pcap_loop(p, 20, on_packet, (unsigned char *)&both));
    report_packets("with tags and without", &both);
    pcap_close(p);
}

// Packets of an old filter that wait are looked at by the new one as the kernel would have, tags beside them.
static void waiting(const char *device) {
    const char *expressions[] = {"vlan", "vlan 291 and udp port 9", "udp and not vlan", "ether[12:2] == 0x0800", "len == 94", "len > 90"};
    // How many match: a block of packets is there when the kernel closes it, which may take as long as the machine stands still.
    const unsigned matching[] = {6, 2, 5, 11, 0, 6};
    for (int i = 0; i < 6; i++) {
        pcap_t *p = opened(device);
        request("vlan 4 7");
        request("udp 5 7");
        request("vlan 2 9");
        request("send 7");
        filter(p, expressions[i]);
        struct seen seen = {0};
        char text[256];
        pcap_setnonblock(p, 1, text);
        struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
        for (int quiet = 0; quiet < (seen.packets < matching[i] ? 1500 : 5);) {
            int got = pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen);
            quiet = got ? 0 : quiet + 1;
            poll(&wait, 1, 40);
        }
        report_packets(expressions[i], &seen);
        pcap_close(p);
    }
}

// Sets a filter; what the library has to say of it cannot be written.
static void set_on_a_full_disk(pcap_t *p, struct bpf_program *program) {
    int before = dup(2), full = open("/dev/full", O_WRONLY);
    dup2(full, 2);
    report(p, "long", pcap_setfilter(p, program));
    dup2(before, 2);
    close(before);
    close(full);
}

// A filter that the kernel does not take is run by the library; and one that is locked cannot be set.
static void long_filters(const char *device) {
    enum { LEN = 5000 };
    static struct bpf_insn instructions[LEN];
    for (int i = 0; i < LEN; i++) instructions[i] = (struct bpf_insn){0x00, 0, 0, (uint32_t)i}; // ld #i
    instructions[LEN - 4] = (struct bpf_insn){0x28, 0, 0, 36};                                // ldh [36]
    instructions[LEN - 3] = (struct bpf_insn){0x15, 0, 1, 7};                                 // jeq #7
    instructions[LEN - 2] = (struct bpf_insn){0x06, 0, 0, 100};
    instructions[LEN - 1] = (struct bpf_insn){0x06, 0, 0, 0};
    struct bpf_program program = {LEN, instructions};
    pcap_t *p = opened(device);
    filter(p, "udp port 9");
    set_on_a_full_disk(p, &program);
    request("udp 5 9");
    request("vlan 5 7");
    request("udp 5 7");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    report_packets("by the library", &seen);
    filter(p, "udp port 9");
    request("udp 5 7");
    request("udp 5 9");
    report(p, "loop", pcap_loop(p, 5, on_packet, (unsigned char *)&seen));
    report_packets("by the kernel again", &seen);
    int yes = 1;
    setsockopt(pcap_fileno(p), SOL_SOCKET, SO_LOCK_FILTER, &yes, sizeof yes);
    filter(p, "udp port 7");
    pcap_close(p);
}

// Of packets that are cut a filter gets the length that they had.
static void cut(const char *device) {
    char text[256] = "";
    pcap_t *p = pcap_create(device, text);
    pcap_set_snaplen(p, 96);
    pcap_set_timeout(p, 10);
    report(p, "activate", pcap_activate(p));
    check_library(p);
    request("send 20");
    request("vlan 3 7");
    filter(p, "greater 500 and ether proto 0x88b5");
    request("send 20");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 20, on_packet, (unsigned char *)&seen));
    report_packets("greater", &seen);
    pcap_close(p);
}

// A packet changes the filter: those behind it are looked at by the new one, also those that wait.
static void on_packet_set(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    if (seen->packets == 3) filter(seen->handle, "udp port 11");
}

static void changes(const char *device) {
    pcap_t *p = opened(device);
    request("udp 10 7");
    request("udp 4 11");
    struct seen seen = {.handle = p};
    report(p, "loop", pcap_loop(p, 7, on_packet_set, (unsigned char *)&seen));
    report_packets("three and four", &seen);
    pcap_close(p);
}

static void directions(const char *device) {
    pcap_t *p = opened(device), *other = opened(device);
    unsigned char frame[80] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5, 1, 2, 3};
    for (int direction = 0; direction < 3; direction++) {
        report(p, "direction", pcap_setdirection(p, direction));
        request("send 3");
        for (int i = 0; i < 3; i++) report(other, "inject", pcap_inject(other, frame, sizeof frame));
        request("receive 3");
        struct seen seen = {0};
        report(p, "loop", pcap_loop(p, direction ? 3 : 6, on_packet, (unsigned char *)&seen));
        report_packets("seen", &seen);
    }
    // What a handle sends does not come back to it.
    struct seen own = {0};
    request("send 1");
    report(other, "loop", pcap_loop(other, 10, on_packet, (unsigned char *)&own));
    report_packets("of the one that sent", &own);
    pcap_close(p);
    pcap_close(other);
}

static void files(const char *device) {
    char path[] = "/tmp/nocopy-pcap-file-XXXXXX", text[256] = "";
    close(mkstemp(path));
    pcap_t *p = opened(device);
    pcap_dumper_t *bad = pcap_dump_open(p, "/nonexistent/file");
    printf("bad file %d: %s\n", bad != NULL, pcap_geterr(p));
    pcap_dumper_t *dumper = pcap_dump_open(p, path);
    request("send 50");
    report(p, "loop", pcap_loop(p, 50, pcap_dump, (unsigned char *)dumper));
    pcap_dump_close(dumper);
    pcap_close(p);
    p = pcap_open_offline(path, text);
    struct seen seen = {0};
    report(p, "offline", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    report_packets("file", &seen);
    printf("snapshot %d, link type %d\n", pcap_snapshot(p), pcap_datalink(p));
    pcap_close(p);
    unlink(path);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    printf("%s %s\n", pcap_lib_version(), pcap_version);
    settings(argv[1]);
    immediate(argv[1]);
    counts(argv[1]);
    one_by_one(argv[1]);
    filters(argv[1]);
    tags(argv[1]);
    waiting(argv[1]);
    long_filters(argv[1]);
    cut(argv[1]);
    changes(argv[1]);
    directions(argv[1]);
    files(argv[1]);
    return 0;
}
