/* Sends to a port where nothing listens: refused PORT. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2) return 98;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    if (connect(s, (void *)&to, sizeof to)) return 97;
    char data[100] = {0};
    long first = send(s, data, sizeof data, 0), second = send(s, data, sizeof data, 0);
    int is_told = first == sizeof data && second == -1 && errno == ECONNREFUSED;
    /* Afterwards errors may come a call late, but they come: some of many sends fail, and a wait for an answer does not last. */
    int refused = 0;
    for (int i = 0; i < 200; i++) refused += send(s, data, sizeof data, 0) < 0;
    send(s, data, sizeof data, 0);
    struct pollfd answer = {s, POLLIN, 0};
    int found = poll(&answer, 1, 60000);
    int is_ended = found == 1 && recv(s, data, sizeof data, 0) == -1 && errno == ECONNREFUSED;
    printf("%d refused, %s\n", is_told && refused > 0 ? 0 : 1, is_ended ? "waits end" : "a wait lasts");
    return 0;
}
