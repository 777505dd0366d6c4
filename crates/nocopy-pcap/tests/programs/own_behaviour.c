// What only our library does, or does otherwise: see tests/library/own_behaviour.rs.
#include "program.h"
#include <sys/auxv.h>

// A filter that never ends is refused: libpcap would run it for ever.
static void endless(const char *device) {
    pcap_t *p = opened(device);
    struct bpf_insn back[] = {{0x00, 0, 0, 0}, {0x05, 0, 0, 0xfffffffe}, {0x06, 0, 0, 1}};
    struct bpf_program program = {3, back};
    report(p, "back", pcap_setfilter(p, &program));
    enum { LEN = 5000 };
    static struct bpf_insn instructions[LEN];
    for (int i = 0; i < LEN; i++) instructions[i] = (struct bpf_insn){0x05, 0, 0, i ? 0xfffffffe : 0};
    instructions[LEN - 1] = (struct bpf_insn){0x06, 0, 0, 0};
    struct bpf_program long_one = {LEN, instructions};
    report(p, "long and back", pcap_setfilter(p, &long_one));
    request("send 1");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 1, on_packet, (unsigned char *)&seen));
    pcap_close(p);
}

static void on_packet_nested(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    struct pcap_pkthdr *inner;
    const unsigned char *packet;
    if (seen->packets == 1) report(seen->handle, "next in a callback", pcap_next_ex(seen->handle, &inner, &packet));
}

static void on_packet_close(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    if (seen->packets == 3) pcap_close(seen->handle);
}

// A callback that reads, and one that closes its own handle.
static void callbacks(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {.handle = p};
    request("send 5");
    report(p, "loop", pcap_loop(p, 5, on_packet_nested, (unsigned char *)&seen));
    report_packets("all the same", &seen);
    struct seen until = {.handle = p};
    request("send 5");
    printf("closed: %d\n", pcap_loop(p, 5, on_packet_close, (unsigned char *)&until));
    report_packets("until then", &until);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    if (!strcmp(argv[1], "version")) {
        printf("%s\n", pcap_lib_version());
        return 0;
    }
    if (!strcmp(argv[1], "secure")) { printf("secure %d\n", getauxval(AT_SECURE) != 0); return 0; }
    if (!strcmp(argv[1], "nothing")) { printf("nothing was called\n"); return 0; }
    endless(argv[1]);
    callbacks(argv[1]);
    return 0;
}
