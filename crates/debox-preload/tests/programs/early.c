/* Makes a call before libc is initialised, as the runtime of a sanitizer does, then three in main. */
#include <stdio.h>
#include <unistd.h>

static void first(void) {
    getppid();
}
__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = first;

int main(void) {
    for (int i = 0; i < 3; i++) getppid();
    puts("done");
    return 0;
}
