//! Programs that this process starts or becomes (exec, spawn), and its own end.
//!
//! A process is counted before it calls exec, and its file says so. A program into which the loader
//! will not load the library is noted, so that a report can say what it does not show. A program
//! that is started with an environment without the library is noted as well. With
//! `HEADWAY_TRACE_FOLLOW` it gets the variables back; that is not the default, since the program
//! can see them.
//!
//! All of it may run in a vfork child, so nothing here keeps memory. `execl`, `execlp` and `execle`, whose
//! arguments are a list, are made of those that take an array: on the stack a list is one.
//!
//! Sources: exec(3), execve(2), posix_spawn(3), vfork(2).

mod notes;

use std::ffi::{CStr, CString, c_char, c_int};

use headway_debox::collect::{Ended, NoteKind};
use headway_debox_hook::Function;
use headway_debox_hook::thread::{in_vfork_child, with_tracer};
use rustix::io::Errno;

use crate::config::{VARIABLES, config};
use crate::process;
use crate::thread::Thread;
use notes::{note_program, note_program_at, note_searched};

headway_debox_hook::five_stub! { execve, on_execve }
headway_debox_hook::five_stub! { execv, on_execv }
headway_debox_hook::five_stub! { execvp, on_execvp }
headway_debox_hook::five_stub! { execvpe, on_execvpe }
headway_debox_hook::five_stub! { fexecve, on_fexecve }
headway_debox_hook::five_stub! { execveat, on_execveat }
headway_debox_hook::list_stub! { execl, on_execv }
headway_debox_hook::list_stub! { execlp, on_execvp }
headway_debox_hook::list_stub! { execle, on_execle }
headway_debox_hook::five_stub! { _exit, on_exit }
headway_debox_hook::five_stub! { _Exit, on_exit }
headway_debox_hook::seven_stub! { posix_spawn, on_spawn }
headway_debox_hook::seven_stub! { posix_spawnp, on_spawnp }

unsafe extern "C" {
    static environ: *const *const c_char;
}

const SYS_EXECVE: u32 = libc::SYS_execve as u32;
const SYS_EXECVEAT: u32 = libc::SYS_execveat as u32;

/// How many environment variables fit beside ours; a program with more is not followed.
const VARIABLES_MAX: usize = 700;

/// Bytes of the program's own `LD_PRELOAD` that fit; a program with more keeps ours beside it.
const PRELOAD_MAX: usize = 4096;

/// An environment with our variables put back or taken out: pointers to the program's and to ours,
/// and the program's own `LD_PRELOAD`.
struct Environment {
    entries: [*const c_char; VARIABLES_MAX],
    preload: [u8; PRELOAD_MAX],
}

/// # Safety
///
/// As for execve(2).
unsafe extern "C-unwind" fn on_execve(
    path: usize,
    arguments: usize,
    given: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    // SAFETY: the caller's promise: a text.
    unsafe { note_program(path) };
    let exec = |given| {
        // SAFETY: the caller's promise; the environment is its own or one made of it.
        unsafe { call::<{ Function::execve as usize }>(path, arguments, given, site) }
    };
    // SAFETY: the caller's promise.
    unsafe { followed(path, given, site, SYS_EXECVE, exec) }
}

/// # Safety
///
/// As for execv(3).
unsafe extern "C-unwind" fn on_execv(
    path: usize,
    arguments: usize,
    _: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    // SAFETY: this function is that one with the program's environment.
    unsafe { on_execve(path, arguments, environment_address(), 0, 0, site) }
}

/// # Safety
///
/// As for execvpe(3).
unsafe extern "C-unwind" fn on_execvpe(
    file: usize,
    arguments: usize,
    given: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    // SAFETY: the caller's promise: a text.
    unsafe { note_searched(file) };
    let exec = |given| {
        // SAFETY: the caller's promise; the environment is its own or one made of it.
        unsafe { call::<{ Function::execvpe as usize }>(file, arguments, given, site) }
    };
    // SAFETY: the caller's promise.
    unsafe { followed(file, given, site, SYS_EXECVE, exec) }
}

/// # Safety
///
/// As for execvp(3).
unsafe extern "C-unwind" fn on_execvp(
    file: usize,
    arguments: usize,
    _: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    // SAFETY: this function is that one with the program's environment.
    unsafe { on_execvpe(file, arguments, environment_address(), 0, 0, site) }
}

/// # Safety
///
/// As for execle(3), with the address of the list.
unsafe extern "C-unwind" fn on_execle(
    path: usize,
    arguments: usize,
    _: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    let list = std::ptr::with_exposed_provenance::<*const c_char>(arguments);
    // SAFETY: the caller's promise: a list of texts that ends with null.
    let after = unsafe { entries(list) }.count() + 1;
    // SAFETY: the environment comes after the null.
    let given = unsafe { list.add(after) };
    // SAFETY: as above.
    let given = unsafe { *given }.expose_provenance();
    // SAFETY: the caller's promise.
    unsafe { on_execve(path, arguments, given, 0, 0, site) }
}

/// # Safety
///
/// As for execveat(2).
unsafe extern "C-unwind" fn on_execveat(
    directory: usize,
    path: usize,
    arguments: usize,
    given: usize,
    flags: usize,
    site: usize,
) -> usize {
    const EXECVEAT: usize = Function::execveat as usize;
    // SAFETY: the caller's promise: a text.
    unsafe { note_program_at(directory as c_int, path) };
    let exec = |given| {
        // SAFETY: the caller's promise; the environment is its own or one made of it.
        unsafe {
            headway_debox_hook::five::<Thread, EXECVEAT>(
                directory, path, arguments, given, flags, site,
            )
        }
    };
    // SAFETY: the caller's promise.
    unsafe { followed(path, given, site, SYS_EXECVEAT, exec) }
}

/// # Safety
///
/// As for fexecve(3).
unsafe extern "C-unwind" fn on_fexecve(
    descriptor: usize,
    arguments: usize,
    given: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    // SAFETY: a text.
    unsafe { note_program_at(descriptor as c_int, c"".as_ptr() as usize) };
    let exec = |given| {
        // SAFETY: the caller's promise; the environment is its own or one made of it.
        unsafe { call::<{ Function::fexecve as usize }>(descriptor, arguments, given, site) }
    };
    let name = c"(a descriptor)".as_ptr() as usize;
    // SAFETY: the caller's promise; the name is a text.
    unsafe { followed(name, given, site, SYS_EXECVEAT, exec) }
}

/// # Safety
///
/// As for posix_spawn(3).
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn on_spawn(
    pid: usize,
    path: usize,
    actions: usize,
    attributes: usize,
    arguments: usize,
    given: usize,
    site: usize,
    _: usize,
) -> usize {
    const SPAWN: usize = Function::posix_spawn as usize;
    // SAFETY: the caller's promise: a text.
    unsafe { note_program(path) };
    let mut new_environment = Environment::new();
    // SAFETY: the caller's promise: a list of texts that ends with null, or null.
    let given = unsafe { new_environment.follow(given, path) };
    // SAFETY: the caller's promise.
    unsafe {
        headway_debox_hook::seven::<Thread, SPAWN>(
            pid, path, actions, attributes, arguments, given, site, 0,
        )
    }
}

/// # Safety
///
/// As for posix_spawnp(3).
#[allow(clippy::too_many_arguments)]
unsafe extern "C-unwind" fn on_spawnp(
    pid: usize,
    file: usize,
    actions: usize,
    attributes: usize,
    arguments: usize,
    given: usize,
    site: usize,
    _: usize,
) -> usize {
    const SPAWNP: usize = Function::posix_spawnp as usize;
    // SAFETY: the caller's promise: a text.
    unsafe { note_searched(file) };
    let mut new_environment = Environment::new();
    // SAFETY: the caller's promise: a list of texts that ends with null, or null.
    let given = unsafe { new_environment.follow(given, file) };
    // SAFETY: the caller's promise.
    unsafe {
        headway_debox_hook::seven::<Thread, SPAWNP>(
            pid, file, actions, attributes, arguments, given, site, 0,
        )
    }
}

/// # Safety
///
/// None; the program ends.
unsafe extern "C-unwind" fn on_exit(
    status: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    site: usize,
) -> usize {
    const EXIT: usize = Function::_exit as usize;
    if !in_vfork_child() {
        count_departing_call(site, headway_debox_hook::number_of(EXIT));
        process::set_ended(Ended::Exit);
    }
    // SAFETY: `_exit` takes any number.
    unsafe { call::<EXIT>(status, 0, 0, site) }
}

/// # Safety
///
/// As for the function.
unsafe fn call<const F: usize>(a: usize, b: usize, c: usize, site: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { headway_debox_hook::five::<Thread, F>(a, b, c, 0, 0, site) }
}

/// Calls `exec` with the environment to pass on.
///
/// # Safety
///
/// `given` is a list of texts that ends with null, or null; `program` is a text.
unsafe fn followed(
    program: usize,
    given: usize,
    site: usize,
    number: u32,
    exec: impl FnOnce(usize) -> usize,
) -> usize {
    let mut new_environment = Environment::new();
    // SAFETY: the caller's promise.
    let given = unsafe { new_environment.follow(given, program) };
    replaced(site, number, || exec(given))
}

/// Counts the call before it, since it does not return if all goes well.
fn replaced(site: usize, number: u32, call: impl FnOnce() -> usize) -> usize {
    if in_vfork_child() {
        return call();
    }
    count_departing_call(site, number);
    process::set_ended(Ended::Exec);
    let result = call();
    // It failed and has been recorded like any call.
    with_tracer(|thread: &Thread| {
        if let Some(lane) = thread.lane() {
            lane.uncount_departing_call(site as u64, number);
        }
        thread.writer().set_ended(None, 0);
    });
    result
}

fn count_departing_call(site: usize, number: u32) {
    with_tracer(|thread: &Thread| {
        if let Some(lane) = thread.lane() {
            lane.count_departing_call(site as u64, number);
        }
    });
}

fn environment_address() -> usize {
    // SAFETY: libc's variable; changing it while another thread execs is a race of the program.
    unsafe { environ as usize }
}

/// # Safety
///
/// `address` is that of a text, or null.
unsafe fn text<'t>(address: usize) -> Option<&'t CStr> {
    if address == 0 {
        return None;
    }
    let start = std::ptr::with_exposed_provenance::<c_char>(address);
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(start) })
}

impl Environment {
    fn new() -> Environment {
        Environment {
            entries: [std::ptr::null(); VARIABLES_MAX],
            preload: [0; PRELOAD_MAX],
        }
    }

    /// The environment to pass on: the given one, or one with our variables in front.
    ///
    /// # Safety
    ///
    /// `given` is a list of texts that ends with null, or null; `program` is a text.
    unsafe fn follow(&mut self, given: usize, program: usize) -> usize {
        let Some(config) = config() else {
            return given;
        };
        let writer = process::current();
        let list = std::ptr::with_exposed_provenance::<*const c_char>(given);
        // SAFETY: the caller's promise.
        if let Some(variable) = unsafe { library(list) } {
            let confined = headway_debox::is_confined();
            if confined || is_reachable(variable) && is_writable(&config.directory) {
                return given;
            }
            // It could leave no record. And behind a chroot the loader would print an error of its own into the program's.
            if let Some(writer) = writer {
                // SAFETY: the caller's promise.
                let program = unsafe { text(program) }.map_or(&b""[..], CStr::to_bytes);
                writer.add_note(NoteKind::Unreachable, process::now_ns(), program);
            }
            // SAFETY: the caller's promise.
            return unsafe { self.leave_out(variable, list) }.unwrap_or(given);
        }
        // A process without a file is in the file of its ancestor.
        let Some(writer) = writer else {
            return given;
        };
        if config.follow.is_empty() {
            // SAFETY: the caller's promise.
            let program = unsafe { text(program) }.map_or(&b""[..], CStr::to_bytes);
            writer.add_note(NoteKind::Environment, process::now_ns(), program);
            return given;
        }
        // SAFETY: the caller's promise.
        unsafe { self.fill(&config.follow, list) }.unwrap_or(given)
    }

    /// The environment without our variables, and with what else `LD_PRELOAD` names; `None` if it
    /// has too many.
    ///
    /// # Safety
    ///
    /// As for [`Environment::fill`].
    unsafe fn leave_out(&mut self, preload: &CStr, list: *const *const c_char) -> Option<usize> {
        if !copy_without_library(preload.to_bytes(), &mut self.preload)? {
            // SAFETY: the caller's promise.
            return unsafe { self.fill(&[], list) };
        }
        let others = self.preload.as_ptr().cast();
        // SAFETY: the caller's promise.
        unsafe { fill_entries(&mut self.entries, [others].into_iter(), list) }
    }

    /// The environment with these in the place of our variables; `None` if it has too many.
    ///
    /// # Safety
    ///
    /// `list` is a list of texts that ends with null, or null.
    unsafe fn fill(&mut self, ours: &[CString], list: *const *const c_char) -> Option<usize> {
        let ours = ours.iter().map(|variable| variable.as_ptr());
        // SAFETY: the caller's promise.
        unsafe { fill_entries(&mut self.entries, ours, list) }
    }
}

/// Fills an environment with these in the place of our variables; `None` if it has too many.
///
/// # Safety
///
/// `list` is a list of texts that ends with null, or null.
unsafe fn fill_entries(
    filled: &mut [*const c_char; VARIABLES_MAX],
    ours: impl Iterator<Item = *const c_char>,
    list: *const *const c_char,
) -> Option<usize> {
    let mut used = 0;
    for (entry, variable) in filled.iter_mut().zip(ours) {
        *entry = variable;
        used += 1;
    }
    // SAFETY: the caller's promise.
    for variable in unsafe { entries(list) } {
        // SAFETY: the caller's promise: each is a text.
        if is_ours(unsafe { CStr::from_ptr(variable) }) {
            continue;
        }
        // One entry is left for the terminating null.
        if used + 1 == VARIABLES_MAX {
            return None;
        }
        filled[used] = variable;
        used += 1;
    }
    filled[used] = std::ptr::null();
    Some(filled.as_ptr().expose_provenance())
}

/// The entries of a null-terminated list.
///
/// # Safety
///
/// `list` is such a list, or null.
unsafe fn entries(list: *const *const c_char) -> impl Iterator<Item = *const c_char> {
    let mut next = list;
    std::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: the null has not been reached yet.
        let entry = unsafe { *next };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above, so there is another one.
        next = unsafe { next.add(1) };
        Some(entry)
    })
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The variable that names this library, if there is one.
///
/// # Safety
///
/// `list` is a list of texts that ends with null, or null.
unsafe fn library<'t>(list: *const *const c_char) -> Option<&'t CStr> {
    // SAFETY: the caller's promise.
    let mut entries = unsafe { entries(list) };
    entries.find_map(|entry| {
        // SAFETY: the caller's promise: each is a text.
        let entry = unsafe { CStr::from_ptr(entry) };
        let bytes = entry.to_bytes();
        (bytes.starts_with(PRELOAD) && names_library(bytes)).then_some(entry)
    })
}

fn names_library(text: &[u8]) -> bool {
    let library = b"debox_preload";
    text.windows(library.len()).any(|window| window == library)
}

/// Copies the variable `LD_PRELOAD` without this library. Whether it names others, or `None` if
/// they do not fit.
fn copy_without_library(variable: &[u8], copy: &mut [u8]) -> Option<bool> {
    let mut used = 0;
    let mut append = |part: &[u8]| {
        // One byte is left for the terminating zero.
        let room = copy.get_mut(used..used + part.len() + 1)?;
        room[..part.len()].copy_from_slice(part);
        room[part.len()] = 0;
        used += part.len();
        Some(())
    };
    append(PRELOAD)?;
    let mut others = false;
    let libraries = variable[PRELOAD.len()..].split(|byte| b" :".contains(byte));
    for library in libraries.filter(|library| !library.is_empty() && !names_library(library)) {
        if others {
            append(b":")?;
        }
        append(library)?;
        others = true;
    }
    Some(others)
}

/// Whether the loader will find the library. If others are preloaded too, that is left to it.
fn is_reachable(variable: &CStr) -> bool {
    let path = &variable.to_bytes_with_nul()[PRELOAD.len()..];
    if !path.starts_with(b"/") || path.iter().any(|byte| b" :".contains(byte)) {
        return true;
    }
    let path = CStr::from_bytes_with_nul(path);
    path.is_ok_and(|path| rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok())
}

/// Whether the program can leave its record, as the user that the process is now.
fn is_writable(directory: &[u8]) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, directory, access, AtFlags::EACCESS) {
        Ok(()) => true,
        // Linux before 5.8 has no faccessat2(2), and filters of containers refuse it: not known.
        Err(error) => matches!(error, Errno::NOSYS | Errno::PERM),
    }
}

fn is_ours(entry: &CStr) -> bool {
    let entry = entry.to_bytes();
    let name = entry.split(|&byte| byte == b'=').next().unwrap_or(entry);
    name == b"LD_PRELOAD" || VARIABLES.iter().any(|ours| ours.as_bytes() == name)
}
