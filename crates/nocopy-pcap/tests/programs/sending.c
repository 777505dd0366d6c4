// Sending: what arrives is what was given, whoever sends it, and whatever comes right after.
#include "program.h"

static unsigned char frame[1514] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5};

static void fill(int number, size_t bytes) {
    for (size_t i = 14; i < bytes; i++) frame[i] = (unsigned char)(number * 7 + i);
}

static void of_all_lengths(const char *device) {
    pcap_t *p = opened(device);
    int sent = 0;
    for (int i = 0; i < 300; i++) {
        size_t bytes = 60 + (size_t)(i * 89) % 1454;
        fill(i, bytes);
        if (i % 2 ? pcap_inject(p, frame, bytes) == (int)bytes : pcap_sendpacket(p, frame, (int)bytes) == 0) sent++;
        else printf("frame %d: %s\n", i, pcap_geterr(p));
    }
    printf("sent %d: %s\n", sent, request("receive 300"));
    // A lone frame leaves without another call.
    fill(1000, 60);
    report(p, "alone", pcap_inject(p, frame, 60));
    printf("arrived: %s\n", request("receive 1"));
    // Short ones, and one with a tag.
    report(p, "14 bytes", pcap_inject(p, frame, 14));
    printf("arrived: %s\n", request("receive 1"));
    unsigned char tagged[64] = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x81, 0, 0, 7, 0x88, 0xb5, 1, 2, 3};
    report(p, "tagged", pcap_inject(p, tagged, sizeof tagged));
    printf("arrived: %s\n", request("receive 1"));
    report(p, "largest", pcap_inject(p, frame, 1514));
    printf("arrived: %s\n", request("receive 1"));
    // Closing sends what waits.
    for (int i = 0; i < 70; i++) { fill(i, 100); pcap_inject(p, frame, 100); }
    pcap_close(p);
    printf("after closing: %s\n", request("receive 70"));
}

static void of_several(const char *device) {
    pcap_t *one = opened(device), *other = opened(device);
    for (int i = 0; i < 50; i++) {
        fill(i, 200);
        pcap_inject(one, frame, 200);
    }
    request("receive 50");
    for (int i = 0; i < 50; i++) {
        fill(i + 50, 200);
        pcap_inject(other, frame, 200);
    }
    printf("of two: %s\n", request("receive 50"));
    // Sent and received by one handle.
    struct seen seen = {0};
    pcap_setdirection(one, 1);
    request("send 10");
    pcap_inject(one, frame, 100);
    report(one, "loop", pcap_loop(one, 10, on_packet, (unsigned char *)&seen));
    report_packets("received meanwhile", &seen);
    request("receive 1");
    char text[256];
    pcap_setnonblock(one, 1, text);
    int sent = 0;
    for (int i = 0; i < 20; i++) sent += pcap_inject(one, frame, 100) == 100;
    printf("without blocking %d: %s\n", sent, request("receive 20"));
    pcap_close(one);
    pcap_close(other);
}

static void at_the_end(const char *device) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        pcap_t *p = opened(device);
        for (int i = 0; i < 5; i++) { fill(i, 300); pcap_inject(p, frame, 300); }
        exit(0); // without closing
    }
    int status;
    waitpid(child, &status, 0);
    printf("ended %d: %s\n", status, request("receive 5"));
}

static pcap_t *sending;

static void close_and_exit(int number) {
    (void)number;
    pcap_close(sending);
    _exit(0);
}

// A signal handler closes the handle, whatever it interrupts.
static void closed_by_a_signal(const char *device) {
    int ended = 0;
    for (int i = 0; i < 10; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            sending = opened(device);
            signal(SIGALRM, close_and_exit);
            // Not before it sends, so that sending is what is interrupted.
            for (int sent = 0; sent < 100; sent++) pcap_inject(sending, frame, 60);
            struct itimerval soon = {{0, 0}, {0, 100000 + 1700 * i}};
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;) pcap_inject(sending, frame, 60);
        }
        int status = -1;
        for (int wait = 0; wait < 600 && waitpid(child, &status, WNOHANG) != child; wait++) usleep(100000);
        if (status != 0) { kill(child, SIGKILL); break; }
        ended++;
    }
    printf("closed by a signal: %d ended\n", ended);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    of_all_lengths(argv[1]);
    of_several(argv[1]);
    at_the_end(argv[1]);
    closed_by_a_signal(argv[1]);
    return 0;
}
