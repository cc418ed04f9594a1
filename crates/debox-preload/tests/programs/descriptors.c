/* What a program sees of itself: its descriptors, the lowest free one, its signal mask, its children. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    for (int fd = 3; fd < 64; fd++) close(fd);
    getppid();
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    int lowest = open("/dev/null", O_RDONLY);
    int waited = waitpid(-1, NULL, WNOHANG);
    printf("%d entries, lowest %d, child %d errno %d\n", count, lowest, waited, errno);
    close(0);
    close(1);
    int first = open("/dev/null", O_RDONLY);
    fprintf(stderr, "first %d\n", first);
    return 0;
}
