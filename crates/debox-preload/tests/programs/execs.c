/* Becomes itself or another program in one of the ways of exec(3): execs WAY PROGRAM [ROOT]. What it becomes
 * prints its arguments and a variable. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define LIST "zero", "1", "2", "3", "4", "5", "6", "7", "8"

static void become(const char *way, const char *program, int file) {
    char *list[] = {LIST, NULL};
    char *none[] = {NULL};
    if (!strcmp(way, "execl")) execl(program, LIST, NULL);
    if (!strcmp(way, "execl-short")) execl(program, "zero", NULL);
    if (!strcmp(way, "execlp")) execlp(program, LIST, NULL);
    if (!strcmp(way, "execle")) execle(program, LIST, NULL, environ);
    if (!strcmp(way, "execle-short")) execle(program, "zero", NULL, environ);
    if (!strcmp(way, "execle-empty")) execle(program, LIST, NULL, none);
    if (!strcmp(way, "execveat")) execveat(AT_FDCWD, program, list, environ, 0);
    if (!strcmp(way, "execveat-file")) execveat(file, "", list, environ, AT_EMPTY_PATH);
    if (!strcmp(way, "execveat-empty")) execveat(AT_FDCWD, program, list, none, 0);
    if (!strcmp(way, "execv")) execv(program, list);
    if (!strcmp(way, "execve")) execve(program, list, environ);
    if (!strcmp(way, "execve-empty")) execve(program, list, none);
    if (!strcmp(way, "execvp")) execvp(program, list);
    if (!strcmp(way, "execvpe")) execvpe(program, list, environ);
    if (!strcmp(way, "fexecve")) fexecve(file, list, environ);
}

int main(int count, char **arguments) {
    if (!strcmp(arguments[0], "zero")) {
        for (int i = 0; i < count; i++) printf("%s ", arguments[i]);
        const char *variable = getenv("VARIABLE");
        printf("%s\n", variable ? variable : "none");
        for (int i = 0; i < 10; i++) getppid();
        return 5;
    }
    const char *way = arguments[1], *program = arguments[2];
    int file = open(program, O_RDONLY | O_CLOEXEC);
    if (count > 3 && (chroot(arguments[3]) < 0 || chdir("/") < 0)) return 77;
    if (!strncmp(way, "vfork-", 6)) {
        int status = 0;
        pid_t child = vfork();
        if (child == 0) {
            become(way + 6, program, file);
            _exit(99);
        }
        if (waitpid(child, &status, 0) != child) return 98;
        return WEXITSTATUS(status) + 1;
    }
    become(way, program, file);
    printf("%s: %s\n", way, strerror(errno));
    return 9;
}
