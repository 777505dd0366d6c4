/* A signal handler leaves calls of sendto by siglongjmp, again and again; then the thread and another send COUNT datagrams each, by sockets of their
 * own: jumps PORT-FIRST PORT COUNT here|elsewhere. The handler runs on the thread's stack, or elsewhere. */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { JUMPS = 1500, BYTES = 1000 };

static struct sockaddr_in to;
static sigjmp_buf place, inner;
static volatile int jumps;
static long count;

static void fail(const char *what) {
    perror(what);
    _exit(99);
}

static void on_alarm(int number) {
    (void)number;
    /* A jump within the handler, which leaves nothing. */
    if (!sigsetjmp(inner, 0)) siglongjmp(inner, 1);
    if (++jumps % 4) siglongjmp(place, 1);
}

static void send_numbered(int s, long number) {
    char data[BYTES];
    memset(data, (char)number, sizeof data);
    memcpy(data, &number, sizeof number);
    if (sendto(s, data, sizeof data, 0, (void *)&to, sizeof to) != sizeof data) fail("sendto");
}

static void *send_all(void *first) {
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    for (long i = 0; i < count; i++) send_numbered(s, *(long *)first + i);
    close(s);
    return NULL;
}

static void set_alarm(long us) {
    struct itimerval often = {{0, us}, {0, us}};
    setitimer(ITIMER_REAL, &often, NULL);
}

int main(int words, char **word) {
    if (words != 5) return 98;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(word[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    count = atol(word[3]);
    stack_t stack = {.ss_sp = malloc(1 << 18), .ss_size = 1 << 18};
    int is_elsewhere = !strcmp(word[4], "elsewhere");
    if (is_elsewhere && sigaltstack(&stack, NULL)) fail("sigaltstack");
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | (is_elsewhere ? SA_ONSTACK : 0)};
    sigaction(SIGALRM, &action, NULL);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    static long next;
    if (!sigsetjmp(place, 1)) set_alarm(70);
    while (jumps < JUMPS) send_numbered(s, next++);
    set_alarm(0);
    to.sin_port = htons(atoi(word[2]));
    long first = 0, second = count;
    send_all(&first);
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_all, &second)) fail("pthread_create");
    pthread_join(thread, NULL);
    return 0;
}
