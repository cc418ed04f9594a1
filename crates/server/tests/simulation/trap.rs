//! Catches the system calls of a thread before the kernel sees them: syscall user dispatch
//! (prctl(2), Linux 5.11, x86-64). Each call raises SIGSYS, and the handler decides its result.
//!
//! So the server under simulation is the server that ships: it has no seam, no feature and no mock.
//! The signal is synchronous, it comes at a system-call instruction, and never inside the
//! allocator's own work except for the memory calls that [`passes`] lets through untouched.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Once;

/// The arguments of a system call.
pub type Arguments = [u64; 6];

/// Decides the result of a caught call: a number, or a negative errno.
pub trait Calls {
    fn call(&self, number: i64, arguments: Arguments) -> i64;
}

const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

// sigreturn must not be caught itself: its address is in the range that the kernel lets through.
// The kernel compares the address behind the instruction, so one more byte follows it.
global_asm!(
    ".globl headway_simulation_restore",
    ".globl headway_simulation_restore_end",
    "headway_simulation_restore:",
    "mov eax, 15",
    "syscall",
    "nop",
    "headway_simulation_restore_end:",
    "ud2",
);

unsafe extern "C" {
    fn headway_simulation_restore();
    fn headway_simulation_restore_end();
}

thread_local! {
    /// What the kernel reads before each call of this thread.
    static SELECTOR: Cell<u8> = const { Cell::new(ALLOW) };
    /// What decides about the calls of this thread.
    static CALLS: Cell<Option<*const dyn Calls>> = const { Cell::new(None) };
}

/// Whether the calls of this thread are caught.
pub fn is_caught() -> bool {
    CALLS.get().is_some()
}

/// Runs `body` with its system calls caught.
///
/// # Errors
/// The kernel or the machine has no syscall user dispatch; `body` has not run then.
pub fn with_calls<T>(calls: &dyn Calls, body: impl FnOnce() -> T) -> std::io::Result<T> {
    install_handler();
    // SAFETY: the guard takes the pointer back before `calls` ends.
    let eternal = unsafe {
        std::mem::transmute::<*const dyn Calls, *const (dyn Calls + 'static)>(&raw const *calls)
    };
    CALLS.set(Some(eternal));
    let guard = Guard;
    switch(true)?;
    SELECTOR.set(BLOCK);
    let result = body();
    drop(guard);
    Ok(result)
}

struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        SELECTOR.set(ALLOW);
        let _ = switch(false);
        CALLS.set(None);
    }
}

fn switch(on: bool) -> std::io::Result<()> {
    let start = headway_simulation_restore as *const () as u64;
    let end = headway_simulation_restore_end as *const () as u64;
    let selector = SELECTOR.with(Cell::as_ptr) as u64;
    let arguments = match on {
        true => [1, start, end - start, selector],
        false => [0; 4],
    };
    // SAFETY: the selector lives as long as the thread, whose dispatch ends before it.
    let done = unsafe {
        let [mode, start, length, selector] = arguments;
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, start, length, selector)
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The kernel's own layout, which libc's wrapper hides.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        const SA_RESTORER: u64 = 0x0400_0000;
        let action = KernelAction {
            handler: on_sigsys as *const () as usize,
            flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
            restorer: headway_simulation_restore as *const () as usize,
            mask: 0,
        };
        let pointer = (&raw const action) as u64;
        let arguments = [libc::SIGSYS as u64, pointer, 0, 8, 0, 0];
        // SAFETY: the action has the kernel's layout, and its functions live for ever.
        let done = unsafe { raw(libc::SYS_rt_sigaction, arguments) };
        assert_eq!(done, 0, "rt_sigaction");
    });
}

/// Makes a system call as the kernel has it.
///
/// # Safety
/// As the call.
pub unsafe fn raw(number: i64, arguments: Arguments) -> i64 {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: i64;
    // SAFETY: the caller's promise; the kernel changes rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Calls about memory, threads and signals: the allocator makes some of them while it holds its
/// lock, so nothing may be allocated for them, and no fault is injected.
fn passes(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mremap
            | libc::SYS_mprotect
            | libc::SYS_brk
            | libc::SYS_madvise
            | libc::SYS_futex
            | libc::SYS_rt_sigprocmask
            | libc::SYS_rt_sigaction
            | libc::SYS_sigaltstack
            | libc::SYS_gettid
            | libc::SYS_getpid
            | libc::SYS_tgkill
            | libc::SYS_exit
            | libc::SYS_exit_group
            | libc::SYS_sched_yield
    )
}

extern "C" fn on_sigsys(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    SELECTOR.set(ALLOW);
    // SAFETY: the kernel passes the context of the interrupted thread, which nothing else uses.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let argument = |register: i32| registers[register as usize] as u64;
    let arguments = [
        argument(libc::REG_RDI),
        argument(libc::REG_RSI),
        argument(libc::REG_RDX),
        argument(libc::REG_R10),
        argument(libc::REG_R8),
        argument(libc::REG_R9),
    ];
    let number = registers[libc::REG_RAX as usize];
    let result = match CALLS.get() {
        Some(calls) if !passes(number) => {
            // SAFETY: `with_calls` keeps the value until it has switched the dispatch off.
            let calls = unsafe { &*calls };
            calls.call(number, arguments)
        }
        // SAFETY: the call of the program itself, unchanged.
        _ => unsafe { raw(number, arguments) },
    };
    registers[libc::REG_RAX as usize] = result;
    SELECTOR.set(BLOCK);
}
