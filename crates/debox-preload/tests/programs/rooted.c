/* Changes its root to a directory where nothing is, and makes a child there. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 2 || chroot(arguments[1]) < 0 || chdir("/") < 0) return 77;
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) getppid();
        _exit(4);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 10;
    return WEXITSTATUS(status);
}
