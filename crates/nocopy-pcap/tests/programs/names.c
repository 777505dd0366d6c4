// Opens libpcap by each name that it is given, as programs do that load it when they need it, and prints whose functions it finds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        void *function = library ? dlsym(library, "pcap_open_live") : NULL;
        const char *(*version)(void) = library ? (const char *(*)(void))dlsym(library, "pcap_lib_version") : NULL;
        Dl_info found;
        if (!function || !version || !dladdr(function, &found)) {
            printf("%s: none\n", argv[i]);
            continue;
        }
        const char *name = strrchr(found.dli_fname, '/');
        printf("%s: %s of %.15s\n", argv[i], name ? name + 1 : found.dli_fname, version());
    }
    return 0;
}
