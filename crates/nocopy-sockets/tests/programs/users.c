/* Gives up root while another thread sends, in many processes one after the other: no thread of any of them keeps it. */
#include <arpa/inet.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 200, LOOKS = 50, USER = 65534 };

static int port;

static void *send_always(void *nothing) {
    (void)nothing;
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(s, (struct sockaddr *)&to, sizeof to)) exit(2);
    char bytes[100] = {0};
    for (;;) send(s, bytes, sizeof bytes, 0);
}

/* How many threads have the effective user 0. */
static int of_root(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        int real, effective;
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "Uid: %d %d", &real, &effective) == 2) count += effective == 0;
        if (status) fclose(status);
    }
    closedir(tasks);
    return count;
}

static void give_up_root(int number) {
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_always, NULL)) exit(2);
    usleep(1000 + number * 7);
    if (setuid(USER)) exit(3);
    for (int look = 0; look < LOOKS; look++)
        if (of_root()) _exit(1);
    _exit(0);
}

int main(int count, char **words) {
    if (count != 2) return 2;
    port = atoi(words[1]);
    for (int number = 0; number < PROCESSES; number++) {
        int status;
        pid_t child = fork();
        if (!child) give_up_root(number);
        if (waitpid(child, &status, 0) != child || status) {
            fprintf(stderr, "process %d ended with %x\n", number, status);
            return 1;
        }
    }
    return 0;
}
