/* Started by itself under a filter that refuses perf_event_open, as a container's does: there are records, of
 * times alone, and a sentence that says why. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info;

static int refuse(int number) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    if (count == 1) {
        char *again[] = {arguments[0], "refused", NULL};
        if (refuse(SYS_perf_event_open) < 0) return 1;
        execv(arguments[0], again);
        return 2;
    }
    struct timespec moment = {0, 3000000};
    char sentence[512] = "";
    printf("control %d\n", DeBoxControl(&info, 5, 0));
    nanosleep(&moment, NULL);
    printf("times %d\n", info.syscallNum == SYS_clock_nanosleep && info.callNs >= 3000000);
    printf("sleeps %d, faults %d\n", info.numPerSleepInfo, info.numPGFaults);
    printf("traceLevel %d\n", info.traceLevel == DEBOX_LEVEL_OFF &&
                                  debox_trace_level(sentence, sizeof sentence) == DEBOX_LEVEL_OFF);
    printf("said %d\n", strstr(sentence, "seccomp") != NULL);
    return 0;
}
