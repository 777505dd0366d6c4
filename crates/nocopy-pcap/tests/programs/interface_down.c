// What a program is told of an interface that goes down, comes up and goes away while it sleeps in poll(2), for as long as the library
// lets it.
#include "program.h"

// Sleeps and reads until there are so many packets, or there is an error, and says so.
static void until(pcap_t *p, struct seen *seen, unsigned packets) {
    while (seen->packets < packets) {
        const struct timeval *longest = pcap_get_required_select_timeout(p);
        struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
        int ready = poll(&wait, 1, longest ? 1 + (int)longest->tv_sec * 1000 + (int)longest->tv_usec / 1000 : 60000);
        if (!ready && !longest) { printf("nothing was reported\n"); break; }
        int result = pcap_dispatch(p, -1, on_packet, (unsigned char *)seen);
        if (result < 0) { report(p, "dispatch", result); break; }
    }
    report_packets("until then", seen);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    char text[256];
    pcap_t *p = opened(argv[1]);
    struct seen seen = {0};
    report(p, "nonblock", pcap_setnonblock(p, 1, text));
    struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
    printf("at first: %d\n", poll(&wait, 1, 0));
    request("send 3");
    until(p, &seen, 3);
    // Down and up again, before anybody looks.
    request("down");
    request("up");
    printf("told: %d\n", poll(&wait, 1, 60000));
    report(p, "up", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    printf("and then: %d\n", poll(&wait, 1, 0));
    request("send 3");
    until(p, &seen, 6);
    // A look while it is down.
    request("down");
    printf("told: %d\n", poll(&wait, 1, 60000));
    report(p, "down", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    printf("and then: %d, looks: %d\n", poll(&wait, 1, 0), pcap_get_required_select_timeout(p) != NULL);
    request("up");
    report(p, "up", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    request("send 3");
    until(p, &seen, 9);
    request("delete");
    until(p, &seen, 10);
    pcap_close(p);
    return 0;
}
