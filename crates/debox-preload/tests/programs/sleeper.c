/* Sleeps on a pipe in a function with a name, then in one call many times, then waits to be killed. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) void wait_for_byte(int reader) {
    char byte;
    if (read(reader, &byte, 1) != 1) exit(50);
}

int main(int argc, char **argv) {
    int ends[2];
    if (pipe(ends) < 0) return 51;
    for (int i = 0; i < 5; i++) {
        if (fork() == 0) {
            usleep(20000);
            _exit(write(ends[1], "x", 1) != 1);
        }
        wait_for_byte(ends[0]);
    }
    if (argc > 1) {
        /* A reader that empties the pipe now and then lets one write sleep again and again. */
        if (fork() == 0) {
            static char all[65536];
            close(ends[1]);
            while (read(ends[0], all, sizeof all) > 0) usleep(1);
            _exit(0);
        }
        static char much[64 << 20];
        if (write(ends[1], much, sizeof much) != sizeof much) return 52;
    }
    for (int i = 0; i < 123; i++) getppid();
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
