// Programs with more than one stack in a thread, which lie above the one on which a call reads: a coroutine to which its callback
// switches, and a stack for signal handlers. What is called there while that call goes on does not take its packets or its handle away.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "program.h"

enum { STACK_BYTES = 1 << 20 };
static ucontext_t program, reading, other;
static pcap_t *read_handle;
static struct seen seen;

static void read_and_close(void) {
    struct pcap_pkthdr *header;
    const unsigned char *bytes;
    report(read_handle, "read elsewhere", pcap_next_ex(read_handle, &header, &bytes));
    if (seen.packets == 2) pcap_close(read_handle);
}

static void read_elsewhere(void) {
    for (;;) {
        read_and_close();
        swapcontext(&other, &reading);
    }
}

static void on_packet_switch(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    count_packet((struct seen *)user, header, bytes);
    swapcontext(&reading, &other);
}

static void on_signal(int number) {
    (void)number;
    read_and_close();
}

static void on_packet_signal(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    count_packet((struct seen *)user, header, bytes);
    raise(SIGUSR1);
}

static void loop_switching(void) {
    printf("loop: %d\n", pcap_loop(read_handle, -1, on_packet_switch, (unsigned char *)&seen));
}

static jmp_buf back;

static void on_packet_leave(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes) {
    (void)user, (void)header, (void)bytes;
    longjmp(back, 1);
}

// A coroutine, too, may leave a call and read again from the same place.
static void loop_leaving(void) {
    volatile int left = 0;
    if (setjmp(back)) left++;
    if (left < 3) printf("loop: %d\n", pcap_loop(read_handle, -1, on_packet_leave, NULL));
    printf("left: %d\n", left);
    pcap_close(read_handle);
}

static void run_as(ucontext_t *coroutine, char *stack, void (*run)(void)) {
    getcontext(coroutine);
    coroutine->uc_stack.ss_sp = stack;
    coroutine->uc_stack.ss_size = STACK_BYTES;
    coroutine->uc_link = &program;
    makecontext(coroutine, run, 0);
}

static void with_handle(const char *device, const char *what, void (*run)(void)) {
    int before = descriptors();
    printf("%s\n", what);
    read_handle = opened(device);
    seen = (struct seen){0};
    request("send 5");
    run();
    printf("packets: %u; left open: %d descriptors, %d sockets\n", seen.packets, descriptors() - before, sockets());
}

static char *stacks;

static void by_coroutine(void) {
    run_as(&reading, stacks, loop_switching);
    run_as(&other, stacks + STACK_BYTES, read_elsewhere);
    swapcontext(&program, &reading);
}

static void by_leaving_coroutine(void) {
    run_as(&reading, stacks, loop_leaving);
    swapcontext(&program, &reading);
}

// On a stack within that of a function that is above the call.
static void by_signal_handler(void) {
    char memory[STACK_BYTES];
    stack_t none = {.ss_flags = SS_DISABLE}, stack = {.ss_sp = memory, .ss_size = sizeof memory};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    printf("loop: %d\n", pcap_loop(read_handle, -1, on_packet_signal, (unsigned char *)&seen));
    sigaltstack(&none, NULL);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    must_take = getenv("NOCOPY_TAKE") != NULL;
    stacks = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    with_handle(argv[1], "a coroutine", by_coroutine);
    with_handle(argv[1], "a signal handler", by_signal_handler);
    with_handle(argv[1], "a coroutine that leaves", by_leaving_coroutine);
    return 0;
}
