//! `make package`: the Debian package is installed, serves, is reloaded and leaves nothing, on a machine of
//! its own: this one with private copies of its directories and a private network.
//!
//! What is packaged is the profile the tests are of.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::skip;

use super::install::built;

/// Makes the package in a directory, and returns its path.
fn package(out: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package");
    let made = Command::new(script)
        .arg(out)
        .env("BUILT", built())
        .env("COMPRESSION", "none")
        .output()
        .expect("the script runs");
    let errors = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{errors}");
    let mut files = fs::read_dir(out).expect("the packages");
    let is_package = |path: &PathBuf| path.extension().is_some_and(|name| name == "deb");
    let found = files.find_map(|file| Some(file.ok()?.path()).filter(is_package));
    found.expect("a package")
}

fn can_package() -> bool {
    Command::new("dpkg-deb").arg("--version").output().is_ok()
}

/// Needs: dpkg
#[test]
fn package_has_the_same_bytes_when_it_is_made_again() {
    const NAME: &str = "package_has_the_same_bytes_when_it_is_made_again";
    if !can_package() {
        return skip(NAME, "dpkg");
    }
    let out = tempfile::tempdir().expect("a directory");
    let both = ["one", "two"].map(|name| {
        let out = out.path().join(name);
        package(&out);
        fs::read_to_string(out.join("SHA256SUMS")).expect("the checksums")
    });
    assert_eq!(both[0], both[1]);
    assert_eq!(both[0].lines().count(), 2);
}

/// Installs, uses and purges the package. Each step is a line of its output.
const STEPS: &str = r#"
set -e
mount --make-rprivate /
for directory in usr etc var; do
    mkdir -p "$STATE/$directory/upper" "$STATE/$directory/work"
    mount -t overlay -o "lowerdir=/$directory,upperdir=$STATE/$directory/upper,workdir=$STATE/$directory/work" overlay "/$directory" || { echo no overlay; exit 0; }
done
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
ip link set lo up
export DEBIAN_FRONTEND=noninteractive
dpkg -i "$DEB" >"$STATE/dpkg" 2>&1 || { cat "$STATE/dpkg"; exit 1; }
echo installed
headway serve --config /etc/headway/headway.toml --check >/dev/null
headway serve --config /etc/headway/headway.toml --ready-file /run/ready 2>"$STATE/errors" &
server=$!
for attempt in $(seq 500); do [ -e /run/ready ] && break; sleep 0.02; done
curl -s http://localhost/ | grep -o 'Headway serves this page'
for pid in $(pgrep -P $server); do stat -c %U "/proc/$pid"; done | sort -u
kill -HUP $server
for attempt in $(seq 500); do
    curl -s http://127.0.0.1:9090/metrics | grep -q 'reloads_total{result="done"} 1' && break
    sleep 0.02
done
curl -s -o /dev/null -w '%{http_code}\n' http://localhost/
kill $server
wait $server
grep -c 'GET / ' /var/log/headway/access.log
dpkg --purge headway >"$STATE/dpkg" 2>&1 || { cat "$STATE/dpkg"; exit 1; }
ls -d /etc/headway /var/log/headway /usr/share/headway /usr/bin/headway /usr/lib/systemd/system/headway.service 2>/dev/null || echo nothing left
getent passwd headway || echo no user left
"#;

/// Needs: root, dpkg, adduser, curl, ip, pgrep, an overlay file system
#[test]
fn package_is_installed_serves_as_its_user_and_leaves_nothing_when_purged() {
    const NAME: &str = "package_is_installed_serves_as_its_user_and_leaves_nothing_when_purged";
    let is_there = |name: &&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {name}")])
            .output();
        found.is_ok_and(|found| found.status.success())
    };
    let needed = ["dpkg", "ip", "curl", "pgrep", "adduser", "deluser"];
    if !rustix::process::geteuid().is_root() || !needed.iter().all(is_there) {
        return skip(
            NAME,
            "root, dpkg, adduser, curl, ip, pgrep, an overlay file system",
        );
    }
    let state = tempfile::tempdir().expect("a directory");
    let package = package(&state.path().join("out"));
    let done = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            STEPS,
        ])
        .env("STATE", state.path())
        .env("DEB", package)
        .output()
        .expect("unshare runs");
    let printed = String::from_utf8_lossy(&done.stdout);
    if printed.starts_with("no overlay") {
        return skip(
            NAME,
            "root, dpkg, adduser, curl, ip, pgrep, an overlay file system",
        );
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let said = fs::read_to_string(state.path().join("errors")).unwrap_or_default();
    let expected =
        "installed\nHeadway serves this page\nheadway\n200\n2\nnothing left\nno user left\n";
    assert_eq!(printed, expected, "{errors}\n{said}");
}

/// Needs: systemd-analyze
#[test]
fn unit_has_a_low_exposure() {
    const NAME: &str = "unit_has_a_low_exposure";
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/headway.service");
    let done = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--no-pager", "--threshold=20"])
        .arg(unit)
        .output();
    let Ok(done) = done else {
        return skip(NAME, "systemd-analyze");
    };
    let printed = String::from_utf8_lossy(&done.stdout);
    // The threshold is in tenths.
    assert!(done.status.success(), "{printed}");
}
