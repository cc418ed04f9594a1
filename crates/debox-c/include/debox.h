/*
 * DeBox: what a system call did inside the kernel, as a result of the call.
 *
 *     static DeBoxInfo info;
 *     DeBoxControl(&info, 5, 0);
 *     write(fd, data, size);
 *     printf("%s slept %d times\n", info.psi[0].wmesg, info.psi[0].numSleeps);
 *
 * Link with libdebox.so (pkg-config --libs debox) before libc, which is the default order. After
 * each call of a system-call function of libc (and of syscall(2)) by the thread, `info` holds the record of
 * that call, as errno holds its error. Calls that libc makes inside another function are seen only if they
 * slept, in the common ones of those functions (stdio, readdir, getaddrinfo, mutexes). With libdebox.a
 * (pkg-config --static) libc's functions are not interposed: wrap the calls whose record you want in
 * DEBOX_CALL.
 *
 * Each thread has its own buffer, and gets records after it has called DeBoxControl itself. A forked child
 * continues with its copy of the buffer, without the reactions. Calls of a signal handler overwrite the
 * buffer, like errno; their sleeps belong to the call that they interrupted.
 *
 * Structures and names are those of Figure 2.3 in Yaoping Ruan's dissertation (Princeton, 2005), with 64-bit
 * numbers; additions are marked. The structure may grow at its end: DeBoxControl receives the size with which
 * the program was compiled, and never writes beyond it.
 */
#ifndef DEBOX_H
#define DEBOX_H

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEBOX_STRUCT_VERSION 1
#define DEBOX_SLEEPS 5
#define DEBOX_TRACE 200

/* Values of DeBoxInfo.traceLevel and debox_trace_level: how much this process may observe. */
#define DEBOX_LEVEL_OFF 0      /* times only: no sleeps, no faults */
#define DEBOX_LEVEL_SWITCHES 1 /* sleeps are counted and timed, without labels */
#define DEBOX_LEVEL_STACKS 2   /* everything */

/* The sleeps of a call in one kernel function. */
typedef struct PerSleepInfo {
    int numSleeps;              /* number of sleeps for the same reason */
    int blockingLine;           /* where blocked, 0 until debox_lines fills it in */
    int numWaitersEntry;        /* contenders at sleep; -1: not known */
    int numWaitersExit;         /* contenders at wakeup; -1: not known */
    struct timeval blockedTime; /* how long the process was blocked */
    uint64_t blockedNs;         /* added: the same in nanoseconds */
    uint64_t maxBlockedNs;      /* added: the longest of them */
    char wmesg[24];             /* reason for sleep: resource label such as "page-io" */
    char blockingFile[64];      /* the file of it, empty until debox_lines fills it in */
    char blockingFunction[64];  /* added: kernel function it slept in */
    uint64_t blockingOffset;    /* added: and the offset in it */
    uint64_t blockingAddress;   /* added: the two as a kernel address; 0: not known */
    uint64_t reserved[3];
} PerSleepInfo;

/*
 * An entry of the call trace: the frames of the kernel stack at each sleep, outermost first, with the length
 * of the sleep as deltaTime. The paper's kernel timed every function; a stock kernel does not provide those
 * times in band. On kernels with function_graph, `headway trace --functions` measures them.
 */
typedef struct CallTrace {
    unsigned long callSite; /* kernel address */
    long deltaTime;         /* elapsed time in nanoseconds */
    int depth;              /* added: 0 for the outermost function */
    int reserved;
} CallTrace;

typedef struct DeBoxInfo {
    uint32_t structSize;    /* added: bytes of this structure the library fills */
    uint32_t structVersion; /* added: DEBOX_STRUCT_VERSION of the library */
    int syscallNum;         /* which system call; -1: none yet */
    int numPGFaults;        /* page faults; -1: not known */
    struct CallTime {
        struct timeval callTimeval; /* wall-clock time of entire call */
        int64_t callCycles;         /* the same in processor cycles (time-stamp counter) */
    } CallTime;
    int numPerSleepInfo;  /* filled PerSleepInfo elements */
    int traceDepth;       /* filled CallTrace elements */
    int numSleepsDropped; /* added: sleeps without an element */
    int numTraceDropped;  /* added: trace entries without one */
    int numMajorFaults;   /* added: page faults that read from a disk; -1: not known */
    int numPreemptions;   /* added: preemptions, which are not sleeps */
    int traceLevel;       /* added: DEBOX_LEVEL_STACKS, DEBOX_LEVEL_SWITCHES or DEBOX_LEVEL_OFF */
    int reservedInt;
    uint64_t callNs;      /* added: wall-clock time in nanoseconds */
    uint64_t cpuNs;       /* added: without sleeps and preemptions */
    uint64_t startNs;     /* added: when it began, on CLOCK_MONOTONIC */
    uint64_t preemptedNs; /* added */
    uint64_t wakeupNs;    /* added: runnable but not yet running; UINT64_MAX: not known */
    uint64_t lostRecords; /* added: records the kernel dropped; sleeps may be missing if not 0 */
    uintptr_t callSite;   /* added: return address of the call in the program */
    uint64_t reserved[9];
    struct PerSleepInfo psi[DEBOX_SLEEPS]; /* sleeping info for this call */
    struct CallTrace ct[DEBOX_TRACE];      /* call trace info for this call */
} DeBoxInfo;

/*
 * Starts recording the calls of the calling thread into resultBuf, with up to maxSleeps (0 to 5) elements of
 * psi and maxTrace (0 to 200) of ct. Another call changes the buffer and the limits; NULL stops recording.
 * resultBuf must stay valid until then, or until the thread has ended, its destructors and exit handlers
 * included: release a buffer on the stack before its function returns. NULL is allowed everywhere, also in a
 * signal handler or a callback. Returns 0, or -1 and errno: EINVAL (a limit or the size), ENOMEM (also once
 * seccomp(2) has confined the process), EBUSY (called in a callback, which may only stop records).
 *
 * Missing privileges are not an error: see DeBoxInfo.traceLevel and debox_trace_level.
 */
int DeBoxControl(DeBoxInfo *resultBuf, int maxSleeps, int maxTrace);

/* DeBoxControl with the size of the structure; the macro below calls it. */
int debox_control_sized(DeBoxInfo *resultBuf, size_t size, int maxSleeps, int maxTrace);
#define DeBoxControl(resultBuf, maxSleeps, maxTrace)                                                         \
    debox_control_sized((resultBuf), sizeof(DeBoxInfo), (maxSleeps), (maxTrace))

/*
 * Reacts, in this thread and right after a call, to records that meet all conditions of `rule`:
 *
 *     slower=1ms   slept   every=100   call=open+openat   label=page-io+journal   times=3
 *
 * separated by commas. With a callback, it is called with the record, the call site and `context`; system
 * calls it makes are not recorded. Without one, the rule ends with ":stack" (the stack on standard
 * error), ":core" (a core of a forked copy), ":hook=COMMAND" or ":abort".
 * Returns the reaction's number, or -1 and errno: EINVAL (the rule), ENXIO (records are off), EBUSY (called
 * in a callback). A condition on a label needs maxSleeps above 0.
 */
typedef void (*DeBoxCallback)(const DeBoxInfo *info, const void *callSite, void *context);
int debox_react(const char *rule, DeBoxCallback callback, void *context);
void debox_forget_reactions(void);

/*
 * Fills in blockingFile and blockingLine of a record's sleeps, from the kernel's debug file: a vmlinux with
 * DWARF, a package of its own in most distributions (linux-image-...-dbg, kernel-debuginfo), or what the
 * environment variable HEADWAY_VMLINUX names. The first call takes seconds, and it allocates: do not use it
 * in signal handlers. Functions that are not in the file, such as those of modules, stay empty. Returns how
 * many sleeps have a line, or -1 and errno: ENOENT (no debug file), ENOEXEC (not a debug file, or of another
 * kernel), EACCES (kernel.kptr_restrict hides addresses), EPERM (seccomp(2) has confined the process), EBUSY
 * (called in a callback), EINVAL.
 */
int debox_lines(DeBoxInfo *info);

/*
 * Kernel functions of a call with their times, in place of the stacks in ct: traceDepth entries, callers
 * before callees, at most DEBOX_TRACE, the longest ones. They come from the kernel's function_graph tracer
 * (root, Linux 6.11 or later), which makes the calls of a followed thread several times as long. So it is off
 * by default: debox_follow_functions(1) follows the calling thread and what it starts, (0) ends that for the
 * process. After a call debox_functions stores them in the record of that call and returns their number; 0
 * leaves the stacks. It reads the kernel's buffer, which holds some hundredths of a second of a busy thread,
 * so call it soon. The kernel's trace instance is removed when the program ends; that of a program that was
 * killed is removed when the next one starts. On an error both return -1 and set errno: ENOENT (no tracefs),
 * EACCES (not root), EOPNOTSUPP (the kernel lacks the tracer, or only for its global buffer),
 * ENXIO (not followed), EPERM, EBUSY and EINVAL as for debox_lines.
 */
int debox_follow_functions(int on);
int debox_functions(DeBoxInfo *info);

/*
 * Watches the threads of an event loop: how long a turn takes, how late timers run, and in which system calls
 * the loop sleeps. No call has to be interposed or wrapped, so the library may also be loaded by dlopen(3).
 * Call debox_turn_end before each wait for events and debox_turn_begin after it, in the thread of the loop.
 * What the thread sleeps in between counts as blocking. debox_loop_lag adds how late a timer of the loop ran.
 *
 * debox_watch_loop returns a new watch, or NULL and errno. It loads the kernel's symbols, which takes tens of
 * milliseconds, so call it before the loop runs, and after a fork. A watch is never freed.
 * debox_loop_metrics writes the metrics in the Prometheus text format, like snprintf: truncated to size,
 * returns the whole length; any thread may call it. The others return 0. Errors are -1 and errno: EINVAL
 * (NULL), EBUSY (called in a callback).
 */
typedef struct debox_loop debox_loop;
const debox_loop *debox_watch_loop(void);
int debox_turn_begin(const debox_loop *watch);
int debox_turn_end(const debox_loop *watch);
int debox_loop_lag(const debox_loop *watch, uint64_t lateNs);
int debox_loop_metrics(const debox_loop *watch, char *text, size_t size);

/* The name of a system call, like snprintf: truncated to size, returns the whole length. */
int debox_call_name(int number, char *name, size_t size);

/* The trace level of this thread's records, and a sentence that says how to raise it. */
int debox_trace_level(char *text, size_t size);

/* The library's version. */
const char *debox_version(void);

/*
 * For programs that are linked statically: evaluates `call` and records it as system call `number`.
 *
 *     ssize_t sent = DEBOX_CALL(SYS_write, write(fd, data, size));
 *
 * Not needed with libdebox.so, where it has no effect.
 */
void debox_begin(void);
void debox_end(int number, const void *callSite);
#if defined(__GNUC__)
#define DEBOX_CALL(number, call)                                                                             \
    __extension__({                                                                                          \
        __label__ debox_here_;                                                                               \
        debox_begin();                                                                                       \
        __typeof__(call) debox_result_ = (call);                                                             \
    debox_here_:                                                                                             \
        debox_end((number), &&debox_here_);                                                                  \
        debox_result_;                                                                                       \
    })
#endif

#ifdef __cplusplus
}
#endif

#endif
