/* Every way to make a child; each child makes ten calls of getppid. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int ten(void) {
    for (int i = 0; i < 10; i++) getppid();
    return 0;
}

static void reap(pid_t child, const char *name) {
    int status = -1;
    if (waitpid(child, &status, 0) != child)
        printf("%s: lost\n", name);
    else
        printf("%s: %d\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        ten();
        return atoi(argv[1]);
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    pid_t child = fork();
    if (child == 0) _exit(ten());
    reap(child, "fork");

    child = fork();
    if (child == 0) {
        execl(argv[0], argv[0], "1", NULL);
        _exit(99);
    }
    reap(child, "fork, execl");

    child = vfork();
    if (child == 0) {
        getuid();
        char *list[] = {argv[0], "2", NULL};
        execve(argv[0], list, environ);
        _exit(99);
    }
    reap(child, "vfork, execve");

    child = vfork();
    if (child == 0) {
        execv("/there/is/none", argv);
        _exit(3);
    }
    reap(child, "vfork, failed exec");

    char *list[] = {argv[0], "4", NULL};
    if (posix_spawn(&child, argv[0], NULL, NULL, list, environ) == 0) reap(child, "posix_spawn");
    if (posix_spawnp(&child, "there-is-none", NULL, NULL, list, environ) == 0) printf("spawned nothing\n");

    char command[4096];
    snprintf(command, sizeof command, "%s 5", argv[0]);
    printf("system: %d\n", WEXITSTATUS(system(command)));

    FILE *pipe = popen(command, "r");
    printf("popen: %d\n", WEXITSTATUS(pclose(pipe)));

    char *nothing[] = {NULL};
    child = fork();
    if (child == 0) {
        char *six[] = {argv[0], "6", NULL};
        execve(argv[0], six, nothing);
        _exit(99);
    }
    reap(child, "empty environment");

    for (int i = 0; i < 40; i++) {
        child = fork();
        if (child == 0) {
            if (fork() == 0) _exit(ten());
            wait(NULL);
            _exit(ten());
        }
    }
    int reaped = 0;
    while (wait(NULL) > 0) reaped++;
    printf("storm: %d\n", reaped);
    execl(argv[0], argv[0], "8", NULL);
    return 99;
}
