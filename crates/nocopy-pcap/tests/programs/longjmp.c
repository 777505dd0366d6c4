// Programs that leave pcap_loop by longjmp, from its callback or from a signal handler: they can read again, and nothing is left of the
// handle when it is closed.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <setjmp.h>
#include "program.h"

static sigjmp_buf back;
static pcap_t *left;

static void on_packet_leave(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
    siglongjmp(back, 1);
}

static void on_signal_leave(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static void *signal_it(void *thread) {
    wait_until_polling();
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

// Ends at the frame with number 4: the one with which the call before was left may come again.
static void on_packet_last(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header;
    if (bytes[12] == 0x88 && bytes[13] == 0xb5 && bytes[17] == 4) pcap_breakloop(left);
}

static void leave_by_callback(void) {
    request("send 2");
    if (!sigsetjmp(back, 1)) report(left, "loop", pcap_loop(left, -1, on_packet_leave, NULL));
    printf("left by the callback\n");
}

static void leave_by_signal(void) {
    struct sigaction action = {.sa_handler = on_signal_leave};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_it, &self);
    if (!sigsetjmp(back, 1)) report(left, "loop", pcap_loop(left, -1, on_packet_last, NULL));
    printf("left by a signal\n");
    pthread_join(thread, NULL);
}

static void leave_twice_and_read(const char *device, void (*leave)(void)) {
    int before = descriptors();
    left = opened(device);
    leave();
    leave();
    request("send 5");
    report(left, "read again", pcap_loop(left, -1, on_packet_last, NULL));
    leave();
    pcap_close(left);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

// So deep in the stack that it might be called by the callback.
__attribute__((noinline)) static void close_deep(void) {
    volatile char room[100000];
    room[0] = 1;
    pcap_close(left);
    room[sizeof room - 1] = room[0];
}

// Whatever becomes of the handle, the host has its packets.
static void deep_close_returns_packets_to_the_host(const char *device) {
    left = opened(device);
    leave_by_callback();
    close_deep();
    int host = socket(AF_PACKET, SOCK_RAW, htons(0x88b5));
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(0x88b5), .sll_ifindex = if_nametoindex(device)};
    struct timeval patience = {60, 0};
    setsockopt(host, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (bind(host, (struct sockaddr *)&address, sizeof address)) { perror("bind"); exit(6); }
    request("send 1");
    char frame[2000];
    printf("the host gets: %zd bytes\n", recv(host, frame, sizeof frame, 0));
    close(host);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    leave_twice_and_read(argv[1], leave_by_callback);
    leave_twice_and_read(argv[1], leave_by_signal);
    deep_close_returns_packets_to_the_host(argv[1]);
    return 0;
}
