// Takes packets by a filter: as a program with privileges, as one that gave them up before it set its filter, and as one that
// gave them up between two filters.
#include "program.h"

static void unprivileged(void) {
    if (setgid(65534) || setuid(65534)) { perror("setuid"); exit(6); }
}

static void matching(pcap_t *p, const char *expression) {
    struct seen seen = {0};
    filter(p, expression);
    request("udp 10 9");
    request("udp 10 7");
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    report_packets("matching", &seen);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    char text[256] = "";
    pcap_t *p = opened(argv[1]);
    matching(p, "udp port 7");
    report(p, "direction in", pcap_setdirection(p, 1));
    report(p, "direction out", pcap_setdirection(p, 2));
    pcap_close(p);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        p = opened(argv[1]);
        filter(p, "udp port 7");
        unprivileged();
        filter(p, "udp port 8");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    p = opened(argv[1]);
    pcap_t *second = pcap_open_live(argv[1], 65535, 1, 10, text);
    printf("a second one: %d\n", second != NULL);
    pcap_close(second);
    unprivileged();
    matching(p, "udp port 7");
    // Sent for the first time.
    unsigned char frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};
    report(p, "inject", pcap_inject(p, frame, sizeof frame));
    printf("arrived: %s\n", request("receive 1"));
    pcap_close(p);
    return 0;
}
