/* Steps through a process instruction by instruction and writes which addresses it executed.
 *
 *     step PID OUT
 *
 * SIGUSR1 forgets what was executed so far; SIGTERM writes the offsets within the program, one in a line, and
 * ends. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

static volatile sig_atomic_t forget, stop;

static void on_signal(int number) {
    if (number == SIGUSR1)
        forget = 1;
    else
        stop = 1;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    pid_t process = atoi(arguments[1]);
    char path[64], line[512], name[256] = "", first[256] = "";
    unsigned long start, end, low = 0, high = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", process);
    FILE *maps = fopen(path, "r");
    if (!maps) return 1;
    while (fgets(line, sizeof line, maps)) {
        name[0] = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %255s", &start, &end, name) < 2) continue;
        if (!low) {
            low = start;
            snprintf(first, sizeof first, "%s", name);
        }
        if (name[0] && __builtin_strcmp(name, first) == 0) high = end;
    }
    fclose(maps);
    unsigned char *seen = calloc(high - low, 1);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!seen || ptrace(PTRACE_SEIZE, process, 0, 0) || ptrace(PTRACE_INTERRUPT, process, 0, 0)) return 1;
    while (!stop) {
        int status;
        if (waitpid(process, &status, __WALL) < 0) {
            if (errno != EINTR) return 1;
        } else if (!WIFSTOPPED(status)) {
            break;
        } else {
            struct user_regs_struct registers;
            int number = WSTOPSIG(status);
            if (!ptrace(PTRACE_GETREGS, process, 0, &registers) && registers.rip >= low &&
                registers.rip < high)
                seen[registers.rip - low] = 1;
            ptrace(PTRACE_SINGLESTEP, process, 0, number == SIGTRAP || status >> 16 ? 0 : number);
        }
        if (forget) {
            forget = 0;
            for (unsigned long at = 0; at < high - low; at++) seen[at] = 0;
        }
    }
    FILE *out = fopen(arguments[2], "w");
    if (!out) return 1;
    for (unsigned long at = 0; at < high - low; at++)
        if (seen[at]) fprintf(out, "%lu\n", at);
    free(seen);
    return fclose(out) ? 1 : 0;
}
