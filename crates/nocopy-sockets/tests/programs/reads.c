/* Counts how often the library reads what the arguments of a call point to, for datagrams that join a burst: reads PORT. Another thread may change
 * that memory at any time, so that whatever is read twice may differ. Each access to the page faults, and is let through by a single step. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum { BYTES = 1000, PAGE_BYTES = 4096, TRAP_FLAG = 0x100 };

/* What is counted: by the first byte of an access. */
static struct page {
    struct msghdr header;
    struct iovec parts[2];
    struct sockaddr_in to;
} *page;

static volatile int reads[PAGE_BYTES], most;
static char data[BYTES];

static void protect(int access) {
    if (mprotect(page, PAGE_BYTES, access)) _exit(97);
}

static void on_access(int number, siginfo_t *info, void *context) {
    (void)number;
    long at = (char *)info->si_addr - (char *)page;
    if (at < 0 || at >= PAGE_BYTES) _exit(96);
    if (++reads[at] > most) most = reads[at];
    protect(PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    protect(PROT_NONE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

static long send_by(int s, int by) {
    switch (by) {
    case 0: return sendmsg(s, &page->header, 0);
    case 1: return writev(s, page->parts, 2);
    default: return sendto(s, data, sizeof data, 0, (struct sockaddr *)&page->to, sizeof page->to);
    }
}

int main(int count, char **words) {
    if (count != 2) return 98;
    page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    page->parts[0] = (struct iovec){data, 300};
    page->parts[1] = (struct iovec){data + 300, BYTES - 300};
    page->header = (struct msghdr){.msg_name = &page->to, .msg_namelen = sizeof page->to, .msg_iov = page->parts, .msg_iovlen = 2};
    struct sigaction access = {.sa_sigaction = on_access, .sa_flags = SA_SIGINFO}, step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &access, NULL);
    sigaction(SIGTRAP, &step, NULL);
    for (int by = 0; by < 3; by++) {
        int s = socket(AF_INET, SOCK_DGRAM, 0);
        if (by == 1 && connect(s, (void *)&page->to, sizeof page->to)) return 95;
        for (int i = 0; i < 10; i++) send_by(s, by);
        memset((void *)reads, 0, sizeof reads);
        most = 0;
        protect(PROT_NONE);
        long sent = send_by(s, by);
        protect(PROT_READ | PROT_WRITE);
        printf("%ld bytes sent, nothing read more than %d times\n", sent, most);
        fflush(stdout);
        close(s);
    }
    return 0;
}
