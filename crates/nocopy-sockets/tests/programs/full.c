/* A socket with little room that does not wait, and what else the program does meanwhile. Its interface, in a namespace of the program's own, is a tap device, and the peer's Ethernet address is
 * not known until the program says it: so the kernel keeps what is sent, and the room runs out for certain. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1000, HEADERS = 14 + 28 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_tap(void) {
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    strcpy(request.ifr_name, "nc0");
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request)) fail("tap");
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in own = {.sin_family = AF_INET};
    inet_pton(AF_INET, "10.78.0.1", &own.sin_addr);
    memcpy(&request.ifr_addr, &own, sizeof own);
    if (ioctl(s, SIOCSIFADDR, &request)) fail("address");
    inet_pton(AF_INET, "255.255.255.0", &own.sin_addr);
    memcpy(&request.ifr_netmask, &own, sizeof own);
    if (ioctl(s, SIOCSIFNETMASK, &request)) fail("mask");
    if (ioctl(s, SIOCGIFFLAGS, &request)) fail("flags");
    request.ifr_flags |= IFF_UP;
    if (ioctl(s, SIOCSIFFLAGS, &request)) fail("up");
    close(s);
    /* Its question for the address is repeated for longer than any machine stands still. */
    int setting = open("/proc/sys/net/ipv4/neigh/nc0/mcast_solicit", O_WRONLY);
    if (setting < 0 || write(setting, "1000", 4) != 4) fail("mcast_solicit");
    close(setting);
    return tap;
}

/* From now on the peer's address is known, and what the kernel has kept leaves. */
static void tell_address(int s, struct in_addr peer) {
    struct arpreq request = {.arp_flags = ATF_PERM | ATF_COM};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = peer};
    memcpy(&request.arp_pa, &address, sizeof address);
    request.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(request.arp_ha.sa_data, "\2nc\0\0\1", 6);
    strcpy(request.arp_dev, "nc0");
    if (ioctl(s, SIOCSARP, &request)) fail("SIOCSARP");
}

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
    if (unshare(CLONE_NEWNET)) fail("unshare");
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
    tell_address(other, to.sin_addr);
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
