/*
 * The call site: the address to which the C library's wrapper of the system call returns.
 *
 * The instruction pointer at a system call is in the C library, the same for the whole program. The caller's
 * address is on the stack, after the words of the wrapper. How many words those are depends on the
 * instruction only, so the search is made once per instruction: for the word that points behind a call
 * instruction. That needs neither frame pointers nor unwind tables. If nothing is found, the instruction
 * pointer itself is the call site, as in a program that makes its system calls without a library.
 */
#ifndef HEADWAY_SITE_H
#define HEADWAY_SITE_H

#include "maps.h"
#include "registers.h"

#define STACK_WORDS_MAX 24

#if defined(__TARGET_ARCH_x86)

/* The search is not possible now: another thread is changing the memory map. */
#define FRAME_UNKNOWN ~0ULL

static long note_if_executable(struct task_struct *task, struct vm_area_struct *vma, void *answer) {
    *(u64 *)answer = (FIELD(vma, vm_flags) & VM_EXEC) != 0;
    return 0;
}

/* How certain it is that a word is the return address of the wrapper. */
enum fit { FIT_NONE, FIT_CALL, FIT_CALLEE };

/* A wrapper is short, so the system call instruction is close to its beginning. */
INLINE int is_wrapper(u64 function, u64 instruction) {
    return instruction - function < 4096;
}

INLINE u64 read_pointer(u64 address) {
    u64 pointer = 0;
    read_user(&pointer, sizeof(pointer), (void *)address);
    return pointer;
}

INLINE s64 distance(const u8 *bytes) {
    return (s32)(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (u32)bytes[3] << 24);
}

/* The target of a stub of the linkage table: ff 25, possibly after endbr64 and bnd. */
INLINE u64 behind_stub(u64 stub) {
    u8 code[16];
    if (read_user(code, sizeof(code), (void *)stub)) return 0;
    if (code[0] == 0xff && code[1] == 0x25) return read_pointer(stub + 6 + distance(&code[2]));
    if (code[4] == 0xff && code[5] == 0x25) return read_pointer(stub + 10 + distance(&code[6]));
    if (code[5] == 0xff && code[6] == 0x25) return read_pointer(stub + 11 + distance(&code[7]));
    return 0;
}

/*
 * Whether a word points behind a call instruction, and whether that call leads to the wrapper: e8 with a
 * distance, directly or through a stub; ff 15 with the distance of a pointer; ff /2 in its other lengths from
 * 2 to 7, whose target is unknown.
 */
INLINE enum fit fit_of(u64 word, u64 instruction) {
    u8 before[8];
    if (word < 4096 || read_user(before, sizeof(before), (void *)(word - 8))) return FIT_NONE;
    if (before[3] == 0xe8) {
        u64 target = word + distance(&before[4]);
        int found = is_wrapper(target, instruction) || is_wrapper(behind_stub(target), instruction);
        return found ? FIT_CALLEE : FIT_CALL;
    }
    if (before[2] == 0xff && before[3] == 0x15) {
        u64 target = read_pointer(word + distance(&before[4]));
        return is_wrapper(target, instruction) ? FIT_CALLEE : FIT_CALL;
    }
#pragma unroll
    for (int at = 1; at <= 6; at++)
        if (at != 3 && before[at] == 0xff && (before[at + 1] & 0x38) == 0x10) return FIT_CALL;
    return FIT_NONE;
}

/*
 * The offset of the word above the stack pointer, in words and plus one; 0 if there is none. Below it are the
 * words of the wrapper, some of which were never written and may hold old return addresses. So a call that
 * leads to the wrapper has precedence; otherwise the first other call is used.
 */
INLINE u64 find_frame(struct task_struct *task, u64 stack, u64 instruction) {
    u64 first = 0;
    for (u64 step = 0; step < STACK_WORDS_MAX; step++) {
        u64 word = 0, executable = 0;
        if (read_user(&word, sizeof(word), (void *)(stack + step * sizeof(word)))) break;
        enum fit fit = fit_of(word, instruction);
        if (fit == FIT_CALLEE) return step + 1;
        if (fit == FIT_NONE || first) continue;
        /* Data can look like a call instruction, and the stack is full of pointers to data. */
        if (find_vma(task, word, note_if_executable, &executable, 0) == -BUSY) return FRAME_UNKNOWN;
        if (executable) first = step + 1;
    }
    return first;
}

INLINE u64 site_of(struct task_struct *task, struct pt_regs *regs, u64 process) {
    struct site_key key = {.process = process, .site = INSTRUCTION(LOAD, regs)};
    u64 stack = LOAD(regs, sp, sp);
    u64 *known = map_lookup(&frames, &key);
    u64 frame = known ? *known : find_frame(task, stack, key.site);
    if (frame == FRAME_UNKNOWN) return key.site;
    if (!known) map_update(&frames, &key, &frame, UPDATE_ANY);
    u64 caller = 0;
    if (frame && read_user(&caller, sizeof(caller), (void *)(stack + (frame - 1) * sizeof(caller))) == 0 &&
        caller)
        return caller;
    return key.site;
}

#else

/* A wrapper that calls nothing else still has its caller's address in the link register. */
INLINE u64 site_of(struct task_struct *task, struct pt_regs *regs, u64 process) {
    return LOAD(regs, ip, regs[30]);
}

#endif
#endif
