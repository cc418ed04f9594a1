//! System calls that a test has another process make, as code does which an attacker has brought into it.
//!
//! The process is stopped by ptrace(2), its registers are those of the call, and it makes one step. So the call
//! meets all that confines the process, and nothing of that was made for the test.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// `syscall` of x86-64.
const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Memory below the stack of the process that its functions do not use (the red zone), and room.
const BELOW: u64 = 4096;

/// A stopped process, which goes on when this is dropped.
pub struct Injector {
    pid: i32,
    before: libc::user_regs_struct,
    memory: File,
    /// Where the next argument in memory is put.
    free: u64,
}

/// An argument of a call.
pub enum Argument<'a> {
    Number(i64),
    Bytes(&'a [u8]),
}

impl Injector {
    /// Stops a process when it waits in a system call.
    pub fn stop(pid: i32) -> Injector {
        loop {
            let injector = Injector::attach(pid);
            let mut instruction = [0; 2];
            let at = injector.before.rip - 2;
            let read = injector.memory.read_exact_at(&mut instruction, at);
            read.expect("its code");
            if instruction == INSTRUCTION {
                return injector;
            }
            // It computes.
            drop(injector);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn attach(pid: i32) -> Injector {
        request(libc::PTRACE_ATTACH, pid, 0).expect("attach");
        wait_until_stopped(pid);
        let before = registers(pid);
        let memory = format!("/proc/{pid}/mem");
        let memory = File::options().read(true).write(true).open(memory);
        Injector {
            pid,
            before,
            memory: memory.expect("its memory"),
            free: before.rsp - BELOW,
        }
    }

    /// Has it make a call.
    pub fn call(&mut self, number: i64, arguments: &[Argument<'_>]) -> Result<i64, i32> {
        let mut values = [0; 6];
        self.free = self.before.rsp - BELOW;
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => number.cast_unsigned(),
                Argument::Bytes(bytes) => self.put(bytes),
            };
        }
        let [rdi, rsi, rdx, r10, r8, r9] = values;
        let call = libc::user_regs_struct {
            rip: self.before.rip - 2,
            rax: number.cast_unsigned(),
            // It was not interrupted in a call that has to be repeated.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.before
        };
        set_registers(self.pid, &call);
        request(libc::PTRACE_SINGLESTEP, self.pid, 0).expect("a step");
        wait_until_stopped(self.pid);
        match registers(self.pid).rax.cast_signed() {
            failed @ -4095..0 => Err(-failed as i32),
            value => Ok(value),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        self.free = (self.free - bytes.len() as u64) & !15;
        self.memory
            .write_all_at(bytes, self.free)
            .expect("its stack");
        self.free
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        set_registers(self.pid, &self.before);
        let _ = request(libc::PTRACE_DETACH, self.pid, 0);
    }
}

fn request(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: for these requests the address is unused, and `data` is a number or points to live registers.
    match unsafe { libc::ptrace(request, pid, none, data as *mut libc::c_void) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn registers(pid: i32) -> libc::user_regs_struct {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let at = (&raw mut registers) as usize;
    request(libc::PTRACE_GETREGS, pid, at).expect("its registers");
    registers
}

fn set_registers(pid: i32, registers: &libc::user_regs_struct) {
    let _ = request(libc::PTRACE_SETREGS, pid, (&raw const *registers) as usize);
}

/// The kernel stops it at once: it waits in a call that ends for a signal.
fn wait_until_stopped(pid: i32) {
    let mut status = 0;
    // SAFETY: it writes one number into a live variable.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    assert!(waited == pid && libc::WIFSTOPPED(status), "{status:x}");
}
