//! `headway version`: what to put into a bug report.

use super::Failure;

/// Prints the version, how this binary was built, and the kernel it runs on.
pub fn run() -> Result<(), Failure> {
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    super::output::print(&format!(
        "headway {} ({} {}, {build} build)\nkernel {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        kernel.trim(),
    ))
}
