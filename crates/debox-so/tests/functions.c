/* Sleeps, and asks for the functions that the kernel ran for it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "debox.h"

static DeBoxInfo info;

int main(void) {
    struct timespec moment = {0, 50000000};
    if (DeBoxControl(&info, 5, DEBOX_TRACE) < 0) return 1;
    int before = debox_functions(&info), none = errno;
    errno = 0;
    int followed = debox_follow_functions(1), why = errno;
    nanosleep(&moment, NULL);
    DeBoxInfo slept = info;
    int found = debox_functions(&info), then = errno;
    long longest = 0;
    for (int i = 0; i < info.traceDepth; i++)
        if (info.ct[i].deltaTime > longest) longest = info.ct[i].deltaTime;
    printf("before %d %d, followed %d %s, found %d", before, none == ENXIO, followed,
           followed ? strerror(why) : "yes", found);
    /* The calls that asked are not recorded; where nothing was found the record is unchanged. */
    printf(", errno %d, same call %d", followed ? then == ENXIO : 0, info.startNs == slept.startNs);
    printf(", trace kept %d, long %d\n", info.traceDepth == slept.traceDepth, longest >= moment.tv_nsec);
    return debox_follow_functions(0);
}
