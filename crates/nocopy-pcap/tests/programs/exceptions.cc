// Callbacks that throw: the exception passes the library, and the handle can be read again and closed.
#include <stdexcept>
extern "C" {
#include "program.h"
}

static void on_packet_throw(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)bytes;
    throw std::runtime_error(header->caplen ? "a packet" : "an empty packet");
}

static void on_packet_last(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)header;
    if (bytes[12] == 0x88 && bytes[13] == 0xb5 && bytes[17] == 4) pcap_breakloop((pcap_t *)user);
}

// Something to be dropped on the way.
struct Witness {
    ~Witness() { printf("dropped\n"); }
};

static void catch_it(pcap_t *p, int is_loop) {
    try {
        Witness witness;
        int result = is_loop ? pcap_loop(p, -1, on_packet_throw, NULL) : pcap_dispatch(p, -1, on_packet_throw, NULL);
        printf("returned: %d\n", result);
    } catch (const std::exception &error) {
        printf("caught: %s\n", error.what());
    }
}

static void *catch_in_thread(void *handle) {
    catch_it((pcap_t *)handle, 1);
    return NULL;
}

static void finish(pcap_t *p, int before) {
    request("send 5");
    report(p, "read again", pcap_loop(p, -1, on_packet_last, (unsigned char *)p));
    pcap_close(p);
    printf("nothing is left: %d descriptors, %d sockets\n", descriptors() - before, sockets());
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    int before = descriptors();
    for (int is_loop = 0; is_loop < 2; is_loop++) {
        pcap_t *p = opened(argv[1]);
        request("send 5");
        catch_it(p, is_loop);
        catch_it(p, is_loop);
        finish(p, before);
    }
    pcap_t *p = opened(argv[1]);
    request("send 5");
    pthread_t thread;
    pthread_create(&thread, NULL, catch_in_thread, p);
    pthread_join(thread, NULL);
    finish(p, before);
    return 0;
}
