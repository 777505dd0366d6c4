/* A socket with little room that does not wait, and what else the program does meanwhile; see tap.h. */
#include "tap.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { BYTES = 1000, HEADERS = 14 + 28 };

static unsigned taken_next;

/* Takes packets off the device, by raw reads that no library sees; counts those of ours, in order. */
static void take(int tap, int most) {
    char packet[65536];
    while (most--) {
        long got = syscall(SYS_read, tap, packet, sizeof packet);
        if (got < 0) return;
        if (got != BYTES + HEADERS || packet[14 + 9] != 17) continue;
        unsigned number;
        memcpy(&number, packet + HEADERS, sizeof number);
        if (number != taken_next) {
            fprintf(stderr, "datagram %u arrives, %u was expected\n", number, taken_next);
            exit(2);
        }
        taken_next++;
    }
}

static long send_one(int s, struct sockaddr_in to, unsigned number) {
    char data[BYTES] = {0};
    memcpy(data, &number, sizeof number);
    return sendto(s, data, sizeof data, 0, (void *)&to, sizeof to);
}

/* Nothing of this is about the socket without room: it neither waits for that room, nor loses what does. */
static void do_else(int other, struct sockaddr_in to) {
    int copy = dup(other), value = 0;
    if (copy < 0 || close(copy) || kill(getpid(), 0) || raise(0)) fail("something else");
    setsockopt(other, SOL_SOCKET, SO_PRIORITY, &value, sizeof value);
    inet_pton(AF_INET, "10.78.0.1", &to.sin_addr);
    sendto(other, "own", 3, MSG_DONTWAIT, (void *)&to, sizeof to);
    pid_t child = fork();
    if (!child) _exit(0);
    if (waitpid(child, NULL, 0) != child) fail("fork");
}

int main(int count, char **words) {
    if (count != 2) return 2;
    int tap = open_tap();
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), other = socket(AF_INET, SOCK_DGRAM, 0), size = atoi(words[1]);
    setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, "10.78.0.2", &to.sin_addr);
    unsigned sent = 0, refused = 0;
    for (int i = 0; i < 400; i++) {
        long result = send_one(s, to, sent);
        if (result == -1 && errno != EAGAIN) fail("sendto");
        sent += result == BYTES;
        refused += result == -1;
    }
    struct pollfd room = {s, POLLOUT, 0};
    if (poll(&room, 1, 0) != 0) fail("poll finds room");
    for (int i = 0; i < 100; i++) do_else(other, to);
    add_neighbour(other, to.sin_addr);
    for (int looks = 0; taken_next < sent && looks < 60000; looks++) {
        take(tap, 1000);
        usleep(1000);
    }
    if (!refused || taken_next != sent) {
        printf("%u taken, %u arrived, %u refused\n", sent, taken_next, refused);
        return 3;
    }
    if (poll(&room, 1, 60000) != 1 || send_one(s, to, sent) != BYTES) fail("there is no room now");
    printf("every datagram that was taken has arrived\n");
    return 0;
}
