// Handles that are closed while a call reads: by its callback, by another thread, by a signal handler. Nothing of them is left then.
#include <semaphore.h>
#include "program.h"

static void on_packet_close(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    struct seen *seen = (struct seen *)user;
    count_packet(seen, header, bytes);
    if (seen->packets == 3) pcap_close(seen->handle);
}

static void by_callback(const char *device) {
    int before = descriptors();
    pcap_t *p = opened(device);
    struct seen seen = {.handle = p};
    request("send 5");
    printf("loop: %d\n", pcap_loop(p, -1, on_packet_close, (unsigned char *)&seen));
    report_packets("until closed", &seen);
    printf("left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

static sem_t reads;

static void on_packet_tell(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    count_packet((struct seen *)user, header, bytes);
    sem_post(&reads);
}

// Not before the call has read, and sleeps for more: nobody may read from a handle that was closed before.
static void *close_it(void *handle) {
    while (sem_wait(&reads)) {}
    wait_until_polling();
    pcap_close(handle);
    return NULL;
}

static void by_thread(const char *device) {
    int before = descriptors();
    pcap_t *p = opened(device);
    struct seen seen = {0};
    sem_init(&reads, 0, 0);
    request("send 1");
    pthread_t closer;
    pthread_create(&closer, NULL, close_it, p);
    printf("loop: %d\n", pcap_loop(p, -1, on_packet_tell, (unsigned char *)&seen));
    pthread_join(closer, NULL);
    printf("left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

static pcap_t *handled;

static void on_signal(int number) {
    (void)number;
    pcap_close(handled);
}

static void *signal_it(void *thread) {
    wait_until_polling();
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

static void by_handler(const char *device) {
    int before = descriptors();
    struct seen seen = {0};
    handled = opened(device);
    signal(SIGUSR1, on_signal);
    pthread_t self = pthread_self(), thread;
    pthread_create(&thread, NULL, signal_it, &self);
    printf("loop: %d\n", pcap_loop(handled, -1, on_packet, (unsigned char *)&seen));
    pthread_join(thread, NULL);
    printf("left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL; // each is the only one, or captures passively
    pcap_close(opened(argv[1]));
    by_callback(argv[1]);
    by_callback(argv[1]);
    by_thread(argv[1]);
    by_handler(argv[1]);
    pcap_close(opened(argv[1]));
    return 0;
}
