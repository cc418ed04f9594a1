/* Switches records on, forbids itself the calls the library would make, and continues: with calls and
 * sleeps of its own, a callback, other limits, a thread that switches records on too late, a forked child.
 * With an argument it switches records on only after the calls are forbidden. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info, other;
static int called;

static void count_call(const DeBoxInfo *record, const void *site, void *context) {
    (void)site, (void)context;
    called += record->syscallNum == SYS_getuid;
}

static void *late(void *nothing) {
    getppid();
    printf("thread %d\n", DeBoxControl(&other, 5, 0) == -1 && errno == ENOMEM);
    getppid();
    return nothing;
}

static int confine(void) {
    static const int forbidden[] = {SYS_openat, SYS_open,     SYS_perf_event_open, SYS_gettid,
                                    SYS_read,   SYS_readlink, SYS_pread64};
    enum { FORBIDDEN = sizeof forbidden / sizeof *forbidden };
    struct sock_filter steps[2 * FORBIDDEN + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < FORBIDDEN; i++) {
        steps[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[i], 0, 1);
        steps[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    steps[2 * FORBIDDEN + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {2 * FORBIDDEN + 2, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    (void)arguments;
    struct timespec moment = {0, 3000000};
    if (DeBoxControl(&info, count > 1 ? 0 : 5, 0) < 0) return 1;
    if (debox_react("call=getuid", count_call, NULL) < 0 || confine() < 0) return 2;
    if (count > 1 && DeBoxControl(&info, 5, 0) < 0) return 3;
    getppid();
    printf("call %d\n", info.syscallNum == SYS_getppid && info.callNs > 0);
    nanosleep(&moment, NULL);
    printf("sleep %d\n", info.syscallNum == SYS_clock_nanosleep && info.callNs >= 3000000 &&
                             (info.traceLevel == DEBOX_LEVEL_OFF || info.numPerSleepInfo == 1));
    /* The library would have to read /proc for it. */
    printf("wake-up %d\n", info.wakeupNs == UINT64_MAX);
    getuid();
    printf("called %d\n", called);
    pthread_t thread;
    if (pthread_create(&thread, NULL, late, NULL) != 0) return 4;
    pthread_join(thread, NULL);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        getppid();
        _exit(5);
    }
    int status;
    printf("child %d\n",
           waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    printf("limits %d\n",
           DeBoxControl(&other, 2, 0) == 0 && getppid() > 0 && other.syscallNum == SYS_getppid);
    printf("off %d\n", DeBoxControl(NULL, 0, 0));
    return 0;
}
