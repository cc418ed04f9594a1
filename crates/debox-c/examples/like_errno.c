/*
 * A record is a result of the call, as errno is: neither disturbs the other.
 *
 *     cc like_errno.c -o like_errno $(pkg-config --cflags --libs debox)
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info;

int main(void) {
    char name[32];
    if (DeBoxControl(&info, 5, 0) < 0) {
        perror("DeBoxControl");
        return 1;
    }

    int failed = open("/there/is/no/such/file", O_RDONLY);
    int error = errno;
    debox_call_name(info.syscallNum, name, sizeof name);
    fprintf(stderr, "%s: result %d, errno %d, %ld ns\n", name, failed, error, (long)info.callNs);
    printf("open %s\n", failed == -1 && error == ENOENT && info.syscallNum == SYS_openat ? "right" : "wrong");

    errno = 77;
    long pid = syscall(SYS_getpid);
    printf("syscall %s\n", info.syscallNum == SYS_getpid && pid == getpid() ? "right" : "wrong");
    printf("errno kept %s\n", errno == 77 ? "right" : "wrong");

    /* A second buffer: the first one keeps what it has. */
    static DeBoxInfo other;
    DeBoxControl(&other, 2, 0);
    close(-1);
    printf("second buffer %s\n",
           info.syscallNum == SYS_getpid && other.syscallNum == SYS_close ? "right" : "wrong");

    /* Off: nothing is written any more. */
    DeBoxControl(NULL, 0, 0);
    getppid();
    printf("off %s\n", other.syscallNum == SYS_close ? "right" : "wrong");
    return 0;
}
