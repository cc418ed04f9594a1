//! The processes that `-p` names: process ids, and names of programs.

use std::fs;
use std::path::Path;

use super::super::Failure;
use super::run::print_line;

/// The kernel cuts a process's name after this many bytes.
const COMM_BYTES_MAX: usize = 15;

/// The process ids that the words mean, each once. A word is a process id, the name of a program,
/// or several of them separated by spaces or commas, as `pidof` prints them. Says which processes
/// were found for a name.
pub fn pids(targets: &[String]) -> Result<Vec<u32>, Failure> {
    pids_in(Path::new("/proc"), targets, std::process::id())
}

fn pids_in(proc: &Path, targets: &[String], own: u32) -> Result<Vec<u32>, Failure> {
    let mut pids = Vec::new();
    let separated = |letter: char| letter.is_whitespace() || letter == ',';
    let targets = targets.iter().flat_map(|target| target.split(separated));
    for target in targets.filter(|target| !target.is_empty()) {
        if target.bytes().all(|byte| byte.is_ascii_digit()) {
            let pid = target.parse();
            pids.push(pid.map_err(|_| Failure::Usage(format!("no such process: {target}")))?);
            continue;
        }
        let found = processes_named(proc, target, own);
        if found.is_empty() {
            return Err(Failure::Usage(format!("no process is named {target}")));
        }
        let numbers: Vec<String> = found.iter().map(u32::to_string).collect();
        let plural = if found.len() == 1 { "" } else { "es" };
        print_line(&format!(
            "trace: found {} process{plural} named {target}: {}",
            found.len(),
            numbers.join(", ")
        ));
        pids.extend(found);
    }
    if pids.is_empty() {
        return Err(Failure::Usage(
            "-p needs a process id or the name of a program; none was given (is the program running?)"
                .to_owned(),
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    pids.retain(|pid| seen.insert(*pid));
    Ok(pids)
}

/// Processes with this name or whose executable has it, lowest process id first. Kernel threads
/// and this process are left out.
fn processes_named(proc: &Path, name: &str, own: u32) -> Vec<u32> {
    let mut found: Vec<u32> = (fs::read_dir(proc).into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own && has_name(&proc.join(pid.to_string()), name))
        .collect();
    found.sort_unstable();
    found
}

fn has_name(process: &Path, name: &str) -> bool {
    // A kernel thread and a zombie have an empty command line.
    if fs::read(process.join("cmdline")).is_ok_and(|line| line.is_empty()) {
        return false;
    }
    let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let cut = name.get(..COMM_BYTES_MAX).unwrap_or(name);
    let executable = fs::read_link(process.join("exe")).unwrap_or_default();
    let executable = executable.file_name().unwrap_or_default().to_string_lossy();
    // The program's file may have been replaced while it runs.
    let executable = executable.strip_suffix(" (deleted)").unwrap_or(&executable);
    // A script's name is in `comm`; a name that was cut counts only where the whole one is unknown.
    executable == name || comm.trim_end() == cut && (cut == name || executable.is_empty())
}

#[cfg(test)]
mod tests {
    use super::pids_in;
    use std::fs;
    use std::path::Path;

    fn process(proc: &Path, pid: u32, comm: &str, executable: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("comm"), format!("{comm}\n")).expect("a file");
        fs::write(folder.join("cmdline"), "x\0").expect("a file");
        std::os::unix::fs::symlink(executable, folder.join("exe")).expect("a link");
    }

    fn command_line(arguments: &[&str]) -> Vec<String> {
        arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect()
    }

    #[test]
    fn process_ids_are_separated_when_spaces_or_commas_are_between_them() {
        let proc = tempfile::tempdir().expect("a folder");
        let pids = |list: &[&str]| pids_in(proc.path(), &command_line(list), 1).ok();
        assert_eq!(pids(&["12 13\n14", "15,12"]), Some(vec![12, 13, 14, 15]));
        assert_eq!(pids(&[""]), None);
        assert_eq!(pids(&["99999999999"]), None);
    }

    #[test]
    fn name_means_all_processes_with_it_when_several_run() {
        let proc = tempfile::tempdir().expect("a folder");
        process(proc.path(), 30, "nginx", "/usr/sbin/nginx");
        process(proc.path(), 4, "nginx", "/usr/sbin/nginx (deleted)");
        process(
            proc.path(),
            5,
            "a-very-long-nam",
            "/opt/a-very-long-name-indeed",
        );
        process(proc.path(), 6, "script", "/usr/bin/python3");
        process(proc.path(), 7, "nginx", "/usr/sbin/nginx");
        let pids = |word: &str| pids_in(proc.path(), &command_line(&[word]), 7).ok();
        assert_eq!(pids("nginx"), Some(vec![4, 30]));
        assert_eq!(pids("a-very-long-name-indeed"), Some(vec![5]));
        assert_eq!(pids("a-very-long-name"), None);
        assert_eq!(pids("script,nginx"), Some(vec![6, 4, 30]));
        assert_eq!(pids("apache2"), None);
    }
}
