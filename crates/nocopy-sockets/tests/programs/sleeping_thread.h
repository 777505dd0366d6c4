/* Waits until a thread of this process sleeps in a system call. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_asleep(pid_t thread) {
    char path[64], text[512] = {0};
    sprintf(path, "/proc/self/task/%d/stat", thread);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) {
        perror(path);
        exit(1);
    }
    close(fd);
    char *name_end = strrchr(text, ')');
    return name_end && name_end[2] == 'S';
}

/* Until the thread, 0 before it begins, has slept for some time, and nothing was counted meanwhile. */
static void wait_until_asleep(_Atomic pid_t *thread, _Atomic unsigned *count) {
    enum { LOOKS = 20 };
    unsigned before = 0;
    for (int looks = 0; looks < LOOKS; looks++) {
        usleep(1000);
        int is_same = *count == before;
        before = *count;
        if (!*thread || !is_same || !is_asleep(*thread)) looks = 0;
    }
}
