// Counts of packets that were taken and are the host's by a filter that was set meanwhile: those it gets back, also from a program that
// has changed its root directory, and those it cannot get.
#define _GNU_SOURCE
#include <sched.h>
#include "program.h"

enum how { AT_HOME, IN_A_ROOT_OF_ITS_OWN, LOST };

static const char *const how_names[] = {"handed back", "handed back from another root", "lost"};

struct setting { struct seen seen; enum how how; int has_others; };

// The filter is set with the first packet, when others are in hand, most often: those are counted as received.
static void on_packet_set(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct setting *setting = (struct setting *)user;
    see(&setting->seen, header, bytes);
    if (setting->seen.packets > 1) return;
    struct pcap_stat stat = {0};
    pcap_stats(setting->seen.handle, &stat);
    setting->has_others = stat.ps_recv > 1;
    // Handing over is for threads in the interface's own network namespace.
    if (setting->how == LOST && unshare(CLONE_NEWNET)) { perror("unshare"); exit(6); }
    // Without /proc.
    if (setting->how == IN_A_ROOT_OF_ITS_OWN && chroot("/usr")) { perror("chroot"); exit(6); }
    filter(setting->seen.handle, "udp port 7");
}

// One round; whether others were in hand.
static int set_amid(const char *device, enum how how) {
    pcap_t *p = opened(device);
    struct setting setting = {{.handle = p}, how, 0};
    int home = open("/proc/self/ns/net", O_RDONLY), root = open("/", O_RDONLY);
    ask("udp 10 9");
    ask("udp 10 7");
    say(p, "loop", pcap_loop(p, 11, on_packet_set, (unsigned char *)&setting));
    struct pcap_stat stat;
    say(p, "stats", pcap_stats(p, &stat));
    unsigned wanted = stat.ps_recv - stat.ps_drop;
    if (setting.has_others || wanted != 11)
        printf("%s: %u wanted, lost %d\n", how_names[how], wanted, stat.ps_drop > 0);
    pcap_close(p);
    if (setns(home, CLONE_NEWNET)) { perror("setns"); exit(6); }
    if (fchdir(root) || chroot(".")) { perror("chroot"); exit(6); }
    close(home);
    close(root);
    return setting.has_others;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    // A machine that stands still may bring packets one by one.
    for (enum how how = AT_HOME; how <= LOST; how++) {
        int rounds = 0;
        while (!set_amid(argv[1], how) && ++rounds < 100) {}
    }
    return 0;
}
