// Counts of packets that were taken and are the host's by a filter that was set meanwhile: those it gets back, also from a program that
// has changed its root directory, and those it cannot get.
#define _GNU_SOURCE
#include <sched.h>
#include "program.h"

enum scenario { SAME_ROOT, OTHER_ROOT, LOST };

static const char *const scenario_names[] = {"handed back", "handed back from another root", "lost"};

struct setting { struct seen seen; enum scenario scenario; int has_others; };

// The filter is set with the first packet, when others are in hand, most often: those are counted as received.
static void on_packet_set(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct setting *setting = (struct setting *)user;
    count_packet(&setting->seen, header, bytes);
    if (setting->seen.packets > 1) return;
    struct pcap_stat stat = {0};
    pcap_stats(setting->seen.handle, &stat);
    setting->has_others = stat.ps_recv > 1;
    // Handing over is for threads in the interface's own network namespace.
    if (setting->scenario == LOST && unshare(CLONE_NEWNET)) { perror("unshare"); exit(6); }
    // Without /proc.
    if (setting->scenario == OTHER_ROOT && chroot("/usr")) { perror("chroot"); exit(6); }
    filter(setting->seen.handle, "udp port 7");
}

// One round; whether others were in hand.
static int set_filter_midway(const char *device, enum scenario scenario) {
    pcap_t *p = opened(device);
    struct setting setting = {{.handle = p}, scenario, 0};
    int namespace = open("/proc/self/ns/net", O_RDONLY), root = open("/", O_RDONLY);
    request("udp 10 9");
    request("udp 10 7");
    report(p, "loop", pcap_loop(p, 11, on_packet_set, (unsigned char *)&setting));
    struct pcap_stat stat;
    report(p, "stats", pcap_stats(p, &stat));
    unsigned wanted = stat.ps_recv - stat.ps_drop;
    if (setting.has_others || wanted != 11)
        printf("%s: %u wanted, lost %d\n", scenario_names[scenario], wanted, stat.ps_drop > 0);
    pcap_close(p);
    if (setns(namespace, CLONE_NEWNET)) { perror("setns"); exit(6); }
    if (fchdir(root) || chroot(".")) { perror("chroot"); exit(6); }
    close(namespace);
    close(root);
    return setting.has_others;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    // A machine that stands still may bring packets one by one.
    for (enum scenario scenario = SAME_ROOT; scenario <= LOST; scenario++) {
        int rounds = 0;
        while (!set_filter_midway(argv[1], scenario) && ++rounds < 100) {}
    }
    return 0;
}
