//! Connections that the kernel did not accept, because a queue of a listener was full.

use std::fs;

/// The counter of a network namespace.
#[derive(Clone, Copy, Debug)]
pub struct ListenQueues {
    pid: u32,
    before: Option<u64>,
}

impl ListenQueues {
    /// Begins to count, in the namespace of a process.
    pub fn of(pid: u32) -> ListenQueues {
        ListenQueues {
            pid,
            before: overflows(pid),
        }
    }

    /// How many there were since then; `None` if the kernel does not say.
    pub fn overflows(&self) -> Option<u64> {
        overflows(self.pid)?.checked_sub(self.before?)
    }
}

/// `ListenOverflows` of `TcpExt`: a line of names, then a line of numbers (proc(5)).
fn overflows(pid: u32) -> Option<u64> {
    counter(&fs::read_to_string(format!("/proc/{pid}/net/netstat")).ok()?)
}

fn counter(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names
        .split(' ')
        .position(|name| name == "ListenOverflows")?;
    numbers.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{ListenQueues, counter};

    #[test]
    fn counter_is_found_by_its_name() {
        let text = "TcpExt: A ListenOverflows B\nTcpExt: 1 7 3\nIpExt: A\nIpExt: 4\n";
        assert_eq!(counter(text), Some(7));
        assert_eq!(counter("IpExt: A\nIpExt: 4\n"), None);
    }

    #[test]
    fn kernel_has_the_counter() {
        assert!(ListenQueues::of(std::process::id()).overflows().is_some());
    }
}
