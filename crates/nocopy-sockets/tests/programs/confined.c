/* A program that permits itself no system calls but to read, to write and to end (and, for "filter", to close and to fork), and then sends
   datagrams: confined PORT HOW. */
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char data[1000];

#define PERMIT(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* All other calls kill the process. */
static void permit_few(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        PERMIT(write), PERMIT(close), PERMIT(exit_group), PERMIT(prctl),
        /* What fork(3) and waitpid(3) need. */
        PERMIT(clone), PERMIT(clone3), PERMIT(rseq), PERMIT(wait4), PERMIT(set_robust_list), PERMIT(rt_sigprocmask),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(96);
}

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
    if (!strcmp(words[2], "filter")) {
        permit_few();
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL); /* fails */
        int status;
        pid_t child = fork();
        if (!child) _exit(write(s, data, sizeof data) != sizeof data);
        if (waitpid(child, &status, 0) != child || status) return 95;
        for (int i = 0; i < 9; i++) write(s, data, sizeof data);
        if (close(s)) return 94;
        return 7;
    }
    for (int i = 0; i < 10; i++) write(s, data, sizeof data);
    syscall(SYS_exit, 7);
}
