/* Fifty threads at a time, twice, a thousand calls each. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *work(void *unused) {
    for (int i = 0; i < 1000; i++) getppid();
    return unused;
}

int main(void) {
    for (int round = 0; round < 2; round++) {
        pthread_t threads[50];
        for (int i = 0; i < 50; i++)
            if (pthread_create(&threads[i], NULL, work, NULL) != 0) return 40;
        for (int i = 0; i < 50; i++) pthread_join(threads[i], NULL);
    }
    puts("joined");
    return 0;
}
