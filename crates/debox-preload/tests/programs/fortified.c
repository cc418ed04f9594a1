/* Ten calls of each fortified function that makes a system call. The sizes are not known when it is compiled,
 * so that _FORTIFY_SOURCE calls the checking functions of libc. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char text[256];
    size_t size = 100 + count;
    struct pollfd none[4];
    int file = open("/dev/zero", O_RDONLY), pair[2];
    (void)arguments;
    if (file < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) return 1;
    for (int call = 0; call < 10; call++) {
        if (readlink("/proc/self/exe", text, size) < 0) return 2;
        if (readlinkat(AT_FDCWD, "/proc/self/exe", text, size) < 0) return 3;
        if (!getcwd(text, size + 100)) return 4;
        if (read(file, text, size) < 0) return 5;
        if (pread(file, text, size, 0) < 0) return 6;
        if (poll(none, count - 1, 0) < 0) return 7;
        if (send(pair[0], "x", 1, 0) != 1 || recv(pair[1], text, size, 0) != 1) return 8;
    }
    puts("done");
    return 0;
}
