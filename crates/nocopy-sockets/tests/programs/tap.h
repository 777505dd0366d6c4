/* A tap device in a namespace of the program's own. No peer's Ethernet address is known until the program says it: so the kernel keeps what is sent to
 * it, and the room of a socket runs out for certain. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int open_tap(void) {
    if (unshare(CLONE_NEWNET)) fail("unshare");
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
static void add_neighbour(int s, struct in_addr peer) {
    struct arpreq request = {.arp_flags = ATF_PERM | ATF_COM};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = peer};
    memcpy(&request.arp_pa, &address, sizeof address);
    request.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(request.arp_ha.sa_data, "\2nc\0\0\1", 6);
    strcpy(request.arp_dev, "nc0");
    if (ioctl(s, SIOCSARP, &request)) fail("SIOCSARP");
}
