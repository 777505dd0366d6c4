// Waits: breaking loops from callbacks, signals and threads; timeouts; select; snap lengths; time stamps; many handles; two at once.
#include "program.h"

static pcap_t *broken;

static void on_signal(int number) {
    (void)number;
    struct pcap_stat stat;
    pcap_stats(broken, &stat);
    pcap_breakloop(broken);
}

static void *break_it(void *unused) {
    (void)unused;
    wait_until_polling();
    pcap_breakloop(broken);
    return NULL;
}

static void *signal_it(void *thread) {
    wait_until_polling();
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

static void breaking(const char *device) {
    pcap_t *p = broken = opened(device);
    struct seen seen = {.handle = p, .stop_after = 5};
    request("send 20");
    report(p, "loop", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    report_packets("until broken", &seen);
    seen.stop_after = 0;
    report(p, "the rest", pcap_loop(p, 15, on_packet, (unsigned char *)&seen));
    report_packets("the rest", &seen);
    pcap_breakloop(p);
    report(p, "broken before", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    struct sigaction action = {.sa_handler = on_signal}; // without SA_RESTART
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_it, &self);
    report(p, "by a signal", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&thread, NULL, signal_it, &self);
    report(p, "by a signal that restarts", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, break_it, NULL);
    report(p, "by a thread", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, break_it, NULL);
    struct pcap_pkthdr *header;
    const unsigned char *bytes;
    report(p, "next by a thread", pcap_next_ex(p, &header, &bytes));
    pthread_join(thread, NULL);
    report_packets("nothing more", &seen);
    pcap_close(p);
}

// A program that sleeps in select(2) gets everything, and sleeps when there is nothing.
static void selecting(const char *device) {
    pcap_t *p = opened(device);
    char text[256];
    pcap_setnonblock(p, 1, text);
    struct seen seen = {0};
    request("send 40");
    while (seen.packets < 40) {
        int fd = pcap_get_selectable_fd(p);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        struct timeval timeout = {60, 0};
        if (select(fd + 1, &set, NULL, NULL, &timeout) != 1) { printf("nothing after %u\n", seen.packets); break; }
        pcap_dispatch(p, 3, on_packet, (unsigned char *)&seen);
    }
    report_packets("selected", &seen);
    struct pollfd wait = {pcap_get_selectable_fd(p), POLLIN, 0};
    printf("readable then: %d\n", poll(&wait, 1, 50));
    pcap_close(p);
}

// A timeout with packets that are not wanted ends the wait.
static void unwanted(const char *device) {
    pcap_t *p = opened(device);
    pcap_setdirection(p, 2);
    request("send 5");
    struct seen seen = {0};
    report(p, "dispatch", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    pcap_close(p);
    char text[256];
    p = pcap_create(device, text);
    pcap_set_snaplen(p, 40);
    pcap_set_tstamp_precision(p, 1);
    pcap_set_timeout(p, 50);
    pcap_setnonblock(p, 1, text);
    report(p, "nonblock before", pcap_activate(p));
    check_library(p);
    report(p, "is", pcap_getnonblock(p, text));
    report(p, "nothing", pcap_dispatch(p, -1, on_packet, (unsigned char *)&seen));
    pcap_setnonblock(p, 0, text);
    request("vlan 3 7");
    request("send 3");
    report(p, "loop", pcap_loop(p, 6, on_packet, (unsigned char *)&seen));
    report_packets("cut to 40", &seen);
    pcap_close(p);
}

static long fraction_max;
static void on_time(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)bytes;
    if (header->ts.tv_usec > fraction_max) fraction_max = header->ts.tv_usec;
}

static void times(const char *device) {
    for (int precision = 0; precision < 2; precision++) {
        char text[256];
        pcap_t *p = pcap_create(device, text);
        pcap_set_tstamp_precision(p, precision);
        pcap_set_timeout(p, 10);
        pcap_activate(p);
        fraction_max = 0;
        // Sixty-four times are not all in the first thousandth of a second.
        for (int i = 0; i < 64; i++) { request("send 1"); pcap_loop(p, 1, on_time, NULL); usleep(1000); }
        printf("nanoseconds: %d, below a second: %d\n", fraction_max > 999999, fraction_max < 1000000000);
        pcap_close(p);
    }
}

static void many(const char *device) {
    enum { COUNT = 40, STEP = 5 };
    static pcap_t *handles[COUNT];
    struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &limit);
    char text[256];
    for (int i = 0; i < COUNT; i++) {
        handles[i] = pcap_create(device, text);
        pcap_set_buffer_size(handles[i], 1 << 19);
        pcap_set_timeout(handles[i], 10);
        if (pcap_activate(handles[i])) { report(handles[i], "activate", i); return; }
        check_library(handles[i]);
    }
    request("send 2");
    unsigned total = 0;
    for (int i = 0; i < COUNT; i++) {
        struct seen seen = {0};
        pcap_loop(handles[i], 2, on_packet, (unsigned char *)&seen);
        total += seen.packets;
        if (i % STEP == 0) pcap_close(handles[i]);
    }
    printf("%u packets of %d handles\n", total, COUNT);
    for (int i = 0; i < COUNT; i += STEP) handles[i] = opened(device);
    request("send 1");
    total = 0;
    for (int i = 0; i < COUNT; i++) {
        struct seen seen = {0};
        pcap_loop(handles[i], 1, on_packet, (unsigned char *)&seen);
        total += seen.packets;
        pcap_close(handles[i]);
    }
    printf("%u packets after some were opened anew\n", total);
}

static void send_some(pcap_t *handle, int from, int to) {
    unsigned char frame[60] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};
    for (int i = from; i < to; i++) {
        frame[20] = (unsigned char)i;
        if (pcap_inject(handle, frame, sizeof frame) != sizeof frame) printf("inject: %s\n", pcap_geterr(handle));
    }
}

// The first half while the first thread sets its filter and asks for counts, the second while it sleeps.
static void *send_all(void *handle) {
    send_some(handle, 0, 100);
    wait_until_polling();
    send_some(handle, 100, 200);
    return NULL;
}

static void *break_when_sent(void *sender) {
    pthread_join(*(pthread_t *)sender, NULL);
    return break_it(NULL);
}

// One thread sends while another sets a filter, asks for counts and waits for packets of the same handle, and a third one ends the wait.
static void threads(const char *device) {
    pcap_t *p = broken = opened(device);
    pthread_t sender, breaker;
    pthread_create(&sender, NULL, send_all, p);
    pthread_create(&breaker, NULL, break_when_sent, &sender);
    struct seen seen = {0};
    filter(p, "udp port 7");
    for (int i = 0; i < 100; i++) { struct pcap_stat stat; pcap_stats(p, &stat); }
    report(p, "loop", pcap_loop(p, -1, on_packet, (unsigned char *)&seen));
    pthread_join(breaker, NULL);
    printf("sent: %s\n", request("receive 200"));
    report_packets("heard", &seen);
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    breaking(argv[1]);
    selecting(argv[1]);
    unwanted(argv[1]);
    times(argv[1]);
    threads(argv[1]);
    many(argv[1]);
    return 0;
}
