/* Sleeps, and asks for the lines of the kernel's sources. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info;

int main(void) {
    struct timespec moment = {0, 3000000};
    /* A page that has to be read first would be a sleep, too. Without the right to lock as much it fails. */
    mlockall(MCL_CURRENT);
    if (DeBoxControl(&info, 5, 0) < 0) return 1;
    nanosleep(&moment, NULL);
    if (info.numPerSleepInfo != 1 || info.psi[0].blockingFunction[0] == 0) {
        printf("not seen\n");
        return 0;
    }
    DeBoxInfo before = info;
    errno = 0;
    int found = debox_lines(&info);
    int why = errno;
    printf("%d %s %s:%d", found, found < 0 ? strerror(why) : "found", info.psi[0].blockingFile,
           info.psi[0].blockingLine);
    /* The calls that read the file are not recorded. */
    printf(", untouched %d\n", info.syscallNum == before.syscallNum && info.startNs == before.startNs);
    DeBoxControl(NULL, 0, 0);
    return debox_lines(&info) != found;
}
