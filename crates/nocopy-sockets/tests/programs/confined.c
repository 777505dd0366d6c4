/* A program that permits itself no system calls but to read, to write and to end, and then sends datagrams: confined PORT HOW. */
#include <arpa/inet.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static char data[1000];

int main(int count, char **words) {
    if (count != 3) return 98;
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(s, (void *)&to, sizeof to)) return 97;
    for (int i = 0; i < 10; i++) write(s, data, sizeof data);
    if (!strcmp(words[2], "prctl")) prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (!strcmp(words[2], "syscall prctl")) syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (!strcmp(words[2], "syscall seccomp")) syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
    for (int i = 0; i < 10; i++) write(s, data, sizeof data);
    syscall(SYS_exit, 7);
}
