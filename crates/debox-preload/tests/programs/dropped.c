/* Becomes another user, who cannot reach the trace directory, and then another program. */
#include <unistd.h>

int main(void) {
    if (setuid(65534)) return 77;
    char *arguments[] = {"sh", "-c", "echo \"$LD_PRELOAD\"; exit 4", NULL};
    return execv("/bin/sh", arguments);
}
