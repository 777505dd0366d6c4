// What a capture has to do that takes packets: all that others do of what comes in, alone on its interface.
#define main capture_main
#include "capture.c"
#undef main
#define main waits_main
#include "waits.c"
#undef main

// Filters that look for a tag, or see no tagged packets: this library looks at frames as they are on the wire, where libpcap passes tags
// over.
static void filters_on_the_wire(const char *device) {
    pcap_t *p = opened(device);
    filter(p, "udp port 7");
    request("udp 10 9");
    request("udp 10 7");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 10, on_packet, (unsigned char *)&seen));
    report_packets("port 7", &seen);
    // What waits is of the old filter: it is looked at by the new one.
    request("udp 200 7");
    request("udp 3 11");
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

// Loops ended from a callback, before they begin, by a signal, by a thread.
static void breaks(const char *device) {
    pcap_t *p = broken = opened(device);
    struct seen seen = {.handle = p, .stop_after = 5};
    request("send 200");
    report(p, "loop", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    report_packets("until broken", &seen);
    seen.stop_after = 0;
    report(p, "the rest", pcap_loop(p, 195, on_packet, (unsigned char *)&seen));
    pcap_breakloop(p);
    report(p, "broken before", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_it, &self);
    report(p, "by a signal", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, break_it, NULL);
    report(p, "by a thread", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    report_packets("all", &seen);
    pcap_close(p);
}

// Packets in hand keep the descriptor readable, whenever the program asked for it.
static void in_hand(const char *device) {
    pcap_t *p = opened(device);
    request("send 10");
    struct seen seen = {0};
    report(p, "loop", pcap_loop(p, 4, on_packet, (unsigned char *)&seen));
    struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
    printf("readable: %d\n", poll(&wait, 1, 0));
    report(p, "loop", pcap_loop(p, 6, on_packet, (unsigned char *)&seen));
    printf("readable then: %d\n", poll(&wait, 1, 0));
    report_packets("all", &seen);
    pcap_close(p);
}

// What goes: the interface is set down, and deleted.
static void gone(const char *device) {
    pcap_t *p = opened(device);
    struct seen seen = {0};
    request("send 3");
    report(p, "loop", pcap_loop(p, 3, on_packet, (unsigned char *)&seen));
    request("down");
    request("up");
    request("send 3");
    report(p, "loop", pcap_loop(p, 3, on_packet, (unsigned char *)&seen));
    report_packets("across", &seen);
    request("delete");
    report(p, "loop", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    settings(argv[1]);
    immediate(argv[1]);
    counts(argv[1]);
    one_by_one(argv[1]);
    filters_on_the_wire(argv[1]);
    changes(argv[1]);
    files(argv[1]);
    selecting(argv[1]);
    times(argv[1]);
    breaks(argv[1]);
    in_hand(argv[1]);
    threads(argv[1]);
    gone(argv[1]);
    return 0;
}
