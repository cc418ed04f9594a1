//! The exported functions and what they jump to.

use std::ffi::{c_int, c_long, c_uint};

use crate::Tracer;
use crate::functions::{COUNT, ENTRIES, Function, NUMBERS};
use crate::next;
use crate::thread;

/// The system call a function of the table makes.
pub const fn number_of(index: usize) -> u32 {
    NUMBERS[index]
}

/// Calls the next function of a name with all the registers an argument may be in.
///
/// # Safety
///
/// As for that function.
#[inline(always)]
unsafe fn forward<const F: usize>([a, b, c, d, e, f, g]: [usize; 7]) -> usize {
    const {
        assert!(F < COUNT);
    }
    match next::function(F) {
        // SAFETY: the entry leads to a function of the C interface whose arguments are all integers
        // or pointers, those the program passed; it does not mind being passed more than it takes.
        Some(_) => unsafe { (const { ENTRIES[F] })(a, b, c, d, e, f, g) },
        // SAFETY: as above.
        None => unsafe { next::raw_of(F, [a, b, c, d, e, f, g]) },
    }
}

/// How a function reports that it failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// By -1, of an `int` that fills half a register: the usual way.
    MinusOne,
    /// By -1 of a whole register, whose lower half may be all ones in a result.
    LongMinusOne,
    /// By the number of the error.
    Number,
    /// The function reports a failure by a null pointer.
    Null,
    /// Not at all: whatever the register holds means nothing.
    Never,
}

const fn failure(index: usize) -> Failure {
    use Function as F;
    const LONG: &[F] = &[F::lseek, F::lseek64, F::times, F::syscall];
    const NUMBER: &[F] = &[
        F::posix_fallocate,
        F::posix_fallocate64,
        F::posix_fadvise,
        F::posix_fadvise64,
        F::posix_madvise,
        F::posix_spawn,
        F::posix_spawnp,
        F::clock_nanosleep,
        F::sigwait,
        F::pthread_sigmask,
        F::getaddrinfo,
        F::pthread_mutex_lock,
        F::pthread_rwlock_rdlock,
        F::pthread_rwlock_wrlock,
        F::pthread_join,
    ];
    const NULL: &[F] = &[
        F::getcwd,
        F::__getcwd_chk,
        F::fopen,
        F::fopen64,
        F::opendir,
        F::fdopendir,
        F::realpath,
        F::__realpath_chk,
    ];
    // One thread gets -1 from a barrier because it was the last, not because it failed.
    const NEVER: &[F] = &[F::sync, F::closefrom, F::pthread_barrier_wait];
    match () {
        () if contains(LONG, index) => Failure::LongMinusOne,
        () if contains(NUMBER, index) => Failure::Number,
        () if contains(NULL, index) => Failure::Null,
        () if contains(NEVER, index) => Failure::Never,
        () => Failure::MinusOne,
    }
}

const fn contains(list: &[Function], index: usize) -> bool {
    let mut at = 0;
    while at < list.len() {
        if list[at] as usize == index {
            return true;
        }
        at += 1;
    }
    false
}

/// The result of a function as a tracer gets it: all ones if it failed.
#[inline(always)]
fn outcome<const F: usize>(result: usize) -> usize {
    let failed = match const { failure(F) } {
        Failure::MinusOne => result as u32 == u32::MAX,
        Failure::LongMinusOne => result == usize::MAX,
        Failure::Number => result as u32 != 0,
        Failure::Null => result == 0,
        Failure::Never => return 0,
    };
    if failed { usize::MAX } else { result }
}

/// Makes a call after which the tracer may make none of its own.
#[cold]
#[inline(never)]
fn confining<T: Tracer>(make: impl FnOnce() -> usize) -> usize {
    T::confining();
    let result = make();
    T::confined(result as u32 != u32::MAX);
    result
}

/// What a call of prctl(2) or seccomp(2) means for a tracer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Surrender {
    Nothing,
    /// Some system calls.
    Calls,
    /// Nearly all system calls, or the CPU's counter: seccomp's strict mode takes both.
    Clock,
}

const fn surrender(number: c_long, [a, b, c]: [usize; 3]) -> Surrender {
    const STRICT: usize = libc::SECCOMP_MODE_STRICT as usize;
    match number {
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP && b == STRICT => Surrender::Clock,
        libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => Surrender::Calls,
        libc::SYS_prctl if a as c_int == libc::PR_SET_TSC && b == libc::PR_TSC_SIGSEGV as usize => {
            Surrender::Clock
        }
        // With flags or arguments it fails, which libraries use to ask whether there is seccomp.
        libc::SYS_seccomp if a as c_uint == libc::SECCOMP_SET_MODE_STRICT => {
            if b as c_uint == 0 && c == 0 {
                Surrender::Clock
            } else {
                Surrender::Nothing
            }
        }
        libc::SYS_seccomp if a as c_uint == libc::SECCOMP_SET_MODE_FILTER => Surrender::Calls,
        _ => Surrender::Nothing,
    }
}

/// Makes a call after which the thread may not read a clock.
#[cold]
#[inline(never)]
fn giving_up_clock<T: Tracer>(make: impl FnOnce() -> usize) -> usize {
    T::confining();
    let moment_ns = T::gives_up_clock();
    let result = thread::switch_off_unless_failed(make);
    if result as u32 == u32::MAX {
        T::confined(false);
    } else {
        T::gave_up_clock(moment_ns);
    }
    result
}

/// A function of up to five arguments, with the call site as the sixth.
///
/// # Safety
///
/// As for the interposed function.
pub unsafe extern "C-unwind" fn five<T: Tracer, const F: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    site: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let call = move || unsafe { forward::<F>([a, b, c, d, e, 0, 0]) };
    let make = move || thread::trace_call::<T, false>(NUMBERS[F], site, call, outcome::<F>);
    if const { F == Function::prctl as usize } {
        match surrender(libc::SYS_prctl, [a, b, c]) {
            // A vfork child gives up nothing of its parent's, in whose memory it runs.
            Surrender::Nothing => {}
            _ if thread::in_vfork_child() => {}
            Surrender::Calls => return confining::<T>(make),
            Surrender::Clock => return giving_up_clock::<T>(call),
        }
    }
    make()
}

/// Like [`five`], for a function of libc that makes system calls only sometimes.
///
/// # Safety
///
/// As for the interposed function.
pub unsafe extern "C-unwind" fn quiet<T: Tracer, const F: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    site: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let call = move || unsafe { forward::<F>([a, b, c, d, e, 0, 0]) };
    thread::trace_call::<T, true>(NUMBERS[F], site, call, outcome::<F>)
}

/// A function of up to seven arguments, with the call site before the seventh.
///
/// # Safety
///
/// As for the interposed function.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn seven<T: Tracer, const F: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    site: usize,
    g: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let call = move || unsafe { forward::<F>([a, b, c, d, e, f, g]) };
    thread::trace_call::<T, false>(NUMBERS[F], site, call, outcome::<F>)
}

/// Like [`seven`] for `syscall`, whose first argument is the number of the call.
///
/// # Safety
///
/// As for syscall(2).
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C-unwind" fn syscall_of<T: Tracer>(
    number: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    site: usize,
    g: usize,
) -> usize {
    const SYSCALL: usize = Function::syscall as usize;
    let call = move || match next::function(SYSCALL) {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { forward::<SYSCALL>([number, b, c, d, e, f, g]) },
        // SAFETY: as above.
        None => unsafe { next::raw_call(number, [b, c, d, e, f, g]) },
    };
    let make =
        move || thread::trace_call::<T, false>(number as u32, site, call, outcome::<SYSCALL>);
    match surrender(number as c_long, [b, c, d]) {
        Surrender::Nothing => make(),
        _ if thread::in_vfork_child() => make(),
        Surrender::Calls => confining::<T>(make),
        Surrender::Clock => giving_up_clock::<T>(call),
    }
}

/// Exports the functions of the tables for a tracer: `interpose!(TracerType)`. With a second
/// argument, the functions that create and replace processes are left to the caller.
#[macro_export]
macro_rules! interpose {
    ($tracer:ty) => {
        $crate::functions! { $crate::stubs, $tracer }
        $crate::process_functions! { $crate::stubs, $tracer }
        $crate::special_stubs! { $tracer }
    };
    ($tracer:ty, without processes) => {
        $crate::functions! { $crate::stubs, $tracer }
        $crate::special_stubs! { $tracer }
    };
}

/// A stub for each row of a table.
#[macro_export]
macro_rules! stubs {
    ([$tracer:ty] $($kind:ident $name:ident $arity:literal $call:ident $raw:ident $(($rawcall:ident))?;)*) => {
        $($crate::stub! { $kind $name $tracer })*
    };
}

/// Defines one exported function.
#[macro_export]
macro_rules! stub {
    (seven $name:ident $tracer:ty) => {
        $crate::seven_stub! {
            $name, $crate::seven::<$tracer, { $crate::Function::$name as usize }>
        }
    };
    ($kind:ident $name:ident $tracer:ty) => {
        $crate::five_stub! {
            $name, $crate::$kind::<$tracer, { $crate::Function::$name as usize }>
        }
    };
}

/// A stub that passes the return address as sixth argument. Where the thread is off, it jumps to
/// libc.
#[macro_export]
macro_rules! five_stub {
    ($name:ident, $target:path) => {
        /// Replaces libc's function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            ::std::arch::naked_asm!(
                "mov r11, qword ptr [rip + headway_hook_thread@GOTTPOFF]",
                "cmp byte ptr fs:[r11], {off}",
                "je 2f",
                "mov r9, [rsp]",
                "jmp {target}",
                "2:",
                "jmp headway_hook_jumps + {offset}",
                off = const $crate::thread::OFF,
                offset = const 16 * ($crate::Function::$name as usize),
                target = sym $target,
            )
        }
    };
}

/// A stub that passes the return address as seventh argument and the seventh as eighth.
#[macro_export]
macro_rules! seven_stub {
    ($name:ident, $target:path) => {
        /// Replaces libc's function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            // The frame is described, since a cancelled thread is unwound through it.
            ::std::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11, qword ptr [rip + headway_hook_thread@GOTTPOFF]",
                "cmp byte ptr fs:[r11], {off}",
                "je 2f",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 16]",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 16]",
                ".cfi_adjust_cfa_offset 8",
                "call {target}",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                "2:",
                "jmp headway_hook_jumps + {offset}",
                ".cfi_endproc",
                off = const $crate::thread::OFF,
                offset = const 16 * ($crate::Function::$name as usize),
                target = sym $target,
            )
        }
    };
}

/// A stub for a function whose arguments, after the first one, are a list that ends with null: `execl`. It passes the
/// address of the list, which the caller has begun in registers and continued on the stack, as second argument, and
/// the return address as sixth.
#[macro_export]
macro_rules! list_stub {
    ($name:ident, $target:path) => {
        /// Replaces libc's function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            ::std::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11, qword ptr [rip + headway_hook_thread@GOTTPOFF]",
                "cmp byte ptr fs:[r11], {off}",
                "je 2f",
                // The registers take the place of the return address, so that the list is in one piece.
                "pop r11",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, r11",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "mov rsi, rsp",
                "mov r9, r11",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -48",
                "call {target}",
                "pop r11",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, r11",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -8",
                "ret",
                "2:",
                "jmp headway_hook_jumps + {offset}",
                ".cfi_endproc",
                off = const $crate::thread::OFF,
                offset = const 16 * ($crate::Function::$name as usize),
                target = sym $target,
            )
        }
    };
}

/// The stubs that are none of the usual kinds: `syscall`, `clone` and `vfork`.
#[macro_export]
macro_rules! special_stubs {
    ($tracer:ty) => {
        /// Replaces syscall(2). A call that returns on another stack, or twice on this one, is
        /// jumped to instead of called, and so not recorded: clone, clone3, fork, vfork.
        ///
        /// # Safety
        ///
        /// As for syscall(2).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn syscall() {
            ::std::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11, qword ptr [rip + headway_hook_thread@GOTTPOFF]",
                "cmp byte ptr fs:[r11], {off}",
                "je 4f",
                "cmp edi, {clone}",
                "je 2f",
                "cmp edi, {vfork}",
                "je 2f",
                "cmp edi, {fork}",
                "je 2f",
                "cmp edi, {clone3}",
                "je 2f",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 16]",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 16]",
                ".cfi_adjust_cfa_offset 8",
                "call {target}",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                // The registers as the kernel requires them; the return address stays on the stack,
                // as in libc's own function.
                "2:",
                "mov eax, edi",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "mov rdx, rcx",
                "mov r10, r8",
                "mov r8, r9",
                "mov r9, [rsp + 8]",
                "syscall",
                "cmp rax, -4095",
                "jae 3f",
                "ret",
                "3:",
                "mov rdi, rax",
                "jmp {failed}",
                "4:",
                "jmp headway_hook_jumps + {offset}",
                ".cfi_endproc",
                off = const $crate::thread::OFF,
                offset = const 16 * ($crate::Function::syscall as usize),
                clone = const ::libc::SYS_clone,
                vfork = const ::libc::SYS_vfork,
                fork = const ::libc::SYS_fork,
                clone3 = const ::libc::SYS_clone3,
                target = sym $crate::syscall_of::<$tracer>,
                failed = sym $crate::failed,
            )
        }

        /// Replaces vfork(2).
        ///
        /// # Safety
        ///
        /// As for vfork(2).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn vfork() {
            ::std::arch::naked_asm!(
                ".cfi_startproc",
                "mov rdi, [rsp]",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {before}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                // The child returns first and may overwrite the slot on the stack.
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_register rip, rdi",
                "mov eax, {number}",
                "syscall",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rip, -8",
                "test rax, rax",
                "jnz 2f",
                "ret",
                "2:",
                "mov rdi, rax",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {after}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                number = const ::libc::SYS_vfork,
                before = sym $crate::before_vfork::<$tracer>,
                after = sym $crate::after_vfork::<$tracer>,
            )
        }

        /// Replaces clone(2): jumped to, since its child begins in another function. See
        /// [`before_clone`]($crate::before_clone).
        ///
        /// # Safety
        ///
        /// As for clone(2).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn clone() {
            ::std::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, rdx",
                "call {before}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp rax",
                ".cfi_endproc",
                before = sym $crate::before_clone::<$tracer>,
            )
        }
    };
}
