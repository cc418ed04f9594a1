/*
 * Calls of the server that failed because the machine or a limit had no more to give, such as space on a
 * disk. They take no time, so no wait tells of them.
 *
 * A part of requests.bpf.c, which has the traits of calls.
 */
#define ERRORS_MAX 64
#define ERROR_IO 5
#define ERROR_NO_MEMORY 12
#define ERROR_FILES_SYSTEM 23
#define ERROR_FILES 24
#define ERROR_NO_SPACE 28
#define ERROR_READ_ONLY 30
#define ERROR_QUOTA 122
#define BIT(number) (1ULL << (number))
#define COUNTED_ERRORS                                                                                       \
    (BIT(ERROR_IO) | BIT(ERROR_NO_MEMORY) | BIT(ERROR_FILES_SYSTEM) | BIT(ERROR_FILES) |                     \
     BIT(ERROR_NO_SPACE) | BIT(ERROR_READ_ONLY))

struct failure {
    u64 count;
    /* The thread, the call and the file of the first one; the rest is not used. */
    struct off_cpu_event event;
};

/* By number of the call, with the error in the lower half. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 256);
    TYPE(key, u64);
    TYPE(value, struct failure);
} failures SECTION(".maps");

static const volatile struct failure zero_failure = {};

INLINE int is_counted(s64 result) {
    u64 error = -result;
    return error < ERRORS_MAX ? COUNTED_ERRORS >> error & 1 : error == ERROR_QUOTA;
}

/* A call of the current task has failed. */
INLINE void count_failure(u64 task, u64 number, s64 result) {
    u64 key = number << 32 | (u32)-result;
    struct failure *failure = map_lookup(&failures, &key);
    if (!failure) {
        map_update(&failures, &key, (const void *)&zero_failure, UPDATE_NOEXIST);
        failure = map_lookup(&failures, &key);
        if (!failure) return;
        failure->event.task = task;
        describe(current_task(), &failure->event);
    }
    add(&failure->count, 1);
}
