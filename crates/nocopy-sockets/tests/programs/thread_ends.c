/* Threads that send, each ended by a signal handler that interrupts it anywhere (pthread_exit), or cancelled while it may be at any time; then COUNT
 * datagrams of another socket: thread_ends PORT-FIRST PORT COUNT exit|cancel. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { THREADS = 300, BYTES = 1000 };

static struct sockaddr_in to;
static int s;
static volatile long next;

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

static void send_numbered(long number) {
    char data[BYTES];
    memset(data, (char)number, sizeof data);
    memcpy(data, &number, sizeof number);
    if (sendto(s, data, sizeof data, 0, (void *)&to, sizeof to) != sizeof data) fail("sendto");
}

static void *send_endlessly(void *nothing) {
    (void)nothing;
    for (;;) send_numbered(next++);
    return NULL;
}

static void on_signal(int number) {
    (void)number;
    pthread_exit("exit");
}

static void open_socket(const char *port) {
    s = socket(AF_INET, SOCK_DGRAM, 0);
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

int main(int words, char **word) {
    if (words != 5) return 98;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    open_socket(word[1]);
    for (int i = 0; i < THREADS; i++) {
        long before = next;
        pthread_t thread;
        if (pthread_create(&thread, NULL, send_endlessly, NULL)) fail("pthread_create");
        while (next < before + 10 + i % 7);
        if (strcmp(word[4], "exit")) pthread_cancel(thread); else pthread_kill(thread, SIGUSR1);
        pthread_join(thread, NULL);
    }
    open_socket(word[2]);
    for (long i = 0; i < atol(word[3]); i++) send_numbered(i);
    return 0;
}
