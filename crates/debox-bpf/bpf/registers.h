/*
 * The registers with which a task entered the kernel: the system call and its arguments.
 */
#ifndef HEADWAY_REGISTERS_H
#define HEADWAY_REGISTERS_H

#include "layout.h"

/*
 * LOAD is a plain load from registers that a tracepoint passes, whose type the kernel knows. READ copies from
 * those of a sleeping task.
 */
#if defined(__TARGET_ARCH_x86)
#define LOAD(regs, x86, arm64) ((regs)->x86)
#define READ(regs, x86, arm64) FIELD((struct pt_regs *)(regs), x86)
#else
#define LOAD(regs, x86, arm64) ((regs)->arm64)
#define READ(regs, x86, arm64) FIELD((struct pt_regs *)(regs), arm64)
#endif

#define INSTRUCTION(from, regs) from(regs, ip, pc)
#define ARGUMENT_0(from, regs) from(regs, di, orig_x0)
#define ARGUMENT_1(from, regs) from(regs, si, regs[1])

INLINE u64 number_at(long regs) {
    return READ(regs, orig_ax, syscallno);
}

#if defined(__TARGET_ARCH_x86)

/* The entry by `syscall` leaves the address behind it in rcx; an exception hardly ever finds it there. */
INLINE int in_system_call(long regs) {
    return INSTRUCTION(READ, regs) == READ(regs, cx, pc);
}

INLINE u64 compat_flag(struct task_struct *task) {
    return task->thread_info.status & THREAD_COMPAT ? CALL_COMPAT : 0;
}

#else

INLINE int in_system_call(long regs) {
    return READ(regs, ip, syscallno) >= 0;
}

INLINE u64 compat_flag(struct task_struct *task) {
    return 0;
}

#endif
#endif
