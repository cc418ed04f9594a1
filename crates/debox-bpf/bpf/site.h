/*
 * Where a call was made: the registers, and the address the library's wrapper of the call returns to.
 *
 * The instruction pointer at a system call lies in the C library, the same for the whole program. The
 * caller's address lies on the stack, right under the wrapper's own words. How many words those are depends
 * on the instruction only, so it is learnt once for each: the first word that points behind a call
 * instruction. That costs a program without frame pointers nothing, and needs none of its unwind tables.
 * Where nothing is found the instruction pointer itself is the site, as in a program that makes its calls by
 * itself.
 */
#ifndef HEADWAY_SITE_H
#define HEADWAY_SITE_H

#include "maps.h"

#define STACK_WORDS_MAX 24
/* A word this near to the stack pointer points into the stack. */
#define STACK_SPAN (128ULL << 20)

#if defined(__TARGET_ARCH_x86)
#define REGISTER(regs, x86, arm64) FIELD((struct pt_regs *)(regs), x86)
#else
#define REGISTER(regs, x86, arm64) FIELD((struct pt_regs *)(regs), arm64)
#endif

#define INSTRUCTION(regs) REGISTER(regs, ip, pc)
#define ARGUMENT_0(regs) REGISTER(regs, di, orig_x0)
#define ARGUMENT_1(regs) REGISTER(regs, si, regs[1])

#if defined(__TARGET_ARCH_x86)

/* The entry by `syscall` leaves the address behind it in rcx; an exception hardly ever finds it there. */
INLINE int in_system_call(long regs) { return INSTRUCTION(regs) == REGISTER(regs, cx, pc); }

INLINE u64 number_at(long regs) { return REGISTER(regs, orig_ax, syscallno); }

INLINE u64 compat_flag(struct task_struct *task) {
    return FIELD(task, thread_info.status) & THREAD_COMPAT ? CALL_COMPAT : 0;
}

/* Whether a word is an address behind a call: e8 with four bytes, or ff /2 in its lengths from 2 to 7. */
INLINE int is_behind_call(u64 word) {
    u8 before[8];
    if (word < 4096 || read_user(before, sizeof(before), (void *)(word - 8)))
        return 0;
    if (before[3] == 0xe8)
        return 1;
#pragma unroll
    for (int at = 1; at <= 6; at++)
        if (at != 3 && before[at] == 0xff && (before[at + 1] & 0x38) == 0x10)
            return 1;
    return 0;
}

/* The word's place above the stack pointer, in words and plus one; 0 if there is none. */
INLINE u64 learn_frame(u64 stack) {
    for (u64 step = 0; step < STACK_WORDS_MAX; step++) {
        u64 word = 0;
        if (read_user(&word, sizeof(word), (void *)(stack + step * sizeof(word))))
            return 0;
        if (word - stack + STACK_SPAN < 2 * STACK_SPAN)
            continue;
        if (is_behind_call(word))
            return step + 1;
    }
    return 0;
}

INLINE u64 site_of(long regs, u64 process) {
    struct site_key key = {.process = process, .site = INSTRUCTION(regs)};
    u64 stack = REGISTER(regs, sp, sp);
    u64 *known = map_lookup(&frames, &key);
    u64 frame = known ? *known : learn_frame(stack);
    if (!known)
        map_update(&frames, &key, &frame, UPDATE_ANY);
    u64 caller = 0;
    if (frame && read_user(&caller, sizeof(caller), (void *)(stack + (frame - 1) * sizeof(caller))) == 0)
        return caller;
    return key.site;
}

#else

INLINE int in_system_call(long regs) { return REGISTER(regs, ip, syscallno) >= 0; }

INLINE u64 number_at(long regs) { return REGISTER(regs, orig_ax, syscallno); }

INLINE u64 compat_flag(struct task_struct *task) { return 0; }

/* A wrapper that calls nothing else still has its caller's address in the link register. */
INLINE u64 site_of(long regs, u64 process) { return REGISTER(regs, ip, regs[30]); }

#endif
#endif
