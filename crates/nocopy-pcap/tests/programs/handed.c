// Counts of packets that were taken and are the host's by a filter that was set meanwhile: those it gets back, and those it cannot get.
#define _GNU_SOURCE
#include <sched.h>
#include "program.h"

struct setting { struct seen seen; int is_lost; };

// With the first packet others are in hand.
static void on_packet_set(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct setting *setting = (struct setting *)user;
    see(&setting->seen, header, bytes);
    if (setting->seen.packets > 1) return;
    // Handing over is for threads in the interface's own network namespace.
    if (setting->is_lost && unshare(CLONE_NEWNET)) { perror("unshare"); exit(6); }
    filter(setting->seen.handle, "udp port 7");
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        pcap_t *p = opened(argv[1]);
        struct setting setting = {{.handle = p}, is_lost};
        ask("udp 10 9");
        ask("udp 10 7");
        say(p, "loop", pcap_loop(p, 11, on_packet_set, (unsigned char *)&setting));
        struct pcap_stat stat;
        say(p, "stats", pcap_stats(p, &stat));
        printf("%s: %u wanted, lost %d\n", is_lost ? "lost" : "handed back", stat.ps_recv - stat.ps_drop, stat.ps_drop > 0);
        pcap_close(p);
    }
    return 0;
}
