/* Sends frames with pcap_inject and pcap_sendpacket, as tests/library/inject.rs tells it to.
 *
 * inject DEVICE END: for each line on standard input a burst; at its end close the handle, exit without that, or fork first.
 * inject DEVICE errors: what cannot be sent, and what is said of it. */
#include "program.h"

enum { BURST = 200, LONGEST = 1514 };

static const int lengths[] = {60, LONGEST, 600};

static void fill(unsigned char *frame, int bytes, unsigned number) {
    memset(frame, 0, bytes);
    memset(frame, 2, 6);
    frame[6] = 4;
    frame[12] = 0x88;
    frame[13] = 0xb5;
    for (int place = 0; place < 4; place++)
        frame[14 + place] = number >> (24 - 8 * place);
}

static void send_frames(pcap_t *handle, unsigned from, unsigned count) {
    unsigned char frame[LONGEST];
    for (unsigned number = from; number < from + count; number++) {
        int bytes = lengths[number % 3];
        fill(frame, bytes, number);
        int sent = number % 2 ? pcap_inject(handle, frame, bytes) : pcap_sendpacket(handle, frame, bytes);
        if (sent != (number % 2 ? bytes : 0)) {
            printf("%u: %d: %s\n", number, sent, pcap_geterr(handle));
            exit(1);
        }
        memset(frame, 0xff, bytes); /* it is ours again */
    }
}

static pcap_t *activated(const char *device) {
    char error[256];
    pcap_t *handle = pcap_create(device, error);
    if (!handle || pcap_activate(handle) < 0) {
        printf("%s: %s\n", device, handle ? pcap_geterr(handle) : error);
        exit(1);
    }
    return handle;
}

static void report_error(pcap_t *handle, const char *what, int result) {
    printf("%s: %d: %s\n", what, result, pcap_geterr(handle));
    fflush(stdout);
}

static int errors(const char *device) {
    static unsigned char frame[70000];
    char error[256], line[16];
    fill(frame, 60, 0);
    pcap_t *created = pcap_create(device, error);
    report_error(created, "inject before activation", pcap_inject(created, frame, 60));
    report_error(created, "sendpacket before activation", pcap_sendpacket(created, frame, 60));
    pcap_close(created);
    pcap_t *dead = pcap_open_dead(1, 65535);
    report_error(dead, "inject, no capture", pcap_inject(dead, frame, 60));
    pcap_close(dead);
    pcap_t *handle = activated(device);
    errno = 0;
    report_error(handle, "inject nothing", pcap_inject(handle, frame, 0));
    errno = 0;
    report_error(handle, "sendpacket nothing", pcap_sendpacket(handle, frame, 0));
    errno = 0;
    report_error(handle, "sendpacket less", pcap_sendpacket(handle, frame, -1));
    errno = 0;
    report_error(handle, "inject too much", pcap_inject(handle, frame, (size_t)1 << 32));
    report_error(handle, "inject half a header", pcap_inject(handle, frame, 13));
    report_error(handle, "inject more than the MTU", pcap_inject(handle, frame, 1519));
    report_error(handle, "sendpacket more than the MTU", pcap_sendpacket(handle, frame, 1519));
    report_error(handle, "inject very much", pcap_inject(handle, frame, sizeof frame));
    fill(frame, 1518, 0);
    report_error(handle, "inject four bytes more", pcap_inject(handle, frame, 1518));
    frame[12] = 0x81;
    frame[13] = 0;
    printf("inject a tagged frame: %d\n", pcap_inject(handle, frame, 1518));
    fill(frame, 60, 0);
    puts("set it down");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    /* The first call may be told that it went down, and those behind it that it is down. */
    report_error(handle, "inject, and it is down", pcap_inject(handle, frame, 60));
    report_error(handle, "sendpacket, and it is down", pcap_sendpacket(handle, frame, 60));
    pcap_close(handle);
    return 0;
}

int main(int count, char **arguments) {
    char line[16];
    if (count != 3)
        return 2;
    if (!strcmp(arguments[2], "errors"))
        return errors(arguments[1]);
    pcap_t *handle = activated(arguments[1]);
    unsigned next = 0;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        send_frames(handle, next, BURST);
        next += BURST;
    }
    /* What is sent last is behind nothing that would send it. */
    if (!strcmp(arguments[2], "fork")) {
        send_frames(handle, next, 5);
        pid_t child = fork();
        if (child == 0) {
            send_frames(handle, next + 5, 5);
            pcap_close(handle);
            _exit(0);
        }
        int status = 1;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 1;
        send_frames(handle, next + 10, 5);
        pcap_close(handle);
        _exit(0);
    }
    send_frames(handle, next, 15);
    if (!strcmp(arguments[2], "close")) {
        pcap_close(handle);
        _exit(0);
    }
    return 0;
}
