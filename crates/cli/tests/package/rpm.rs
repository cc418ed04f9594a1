//! The RPM has the files of the other packages at the places of its distributions, and can be installed.

use std::fs;

use headway_test_support::{find_program, is_root, skip};

use super::{lacks, package, run};

/// Needs: root, dpkg, python3, rpmbuild and rpm
#[test]
fn rpm_is_installed_into_a_root_of_its_own_and_erased() {
    const NAME: &str = "rpm_is_installed_into_a_root_of_its_own_and_erased";
    let has_rpm = find_program("rpmbuild").is_some() && find_program("rpm").is_some();
    if !is_root() || !has_rpm || lacks().is_some() {
        return skip(NAME, "root, dpkg, python3, rpmbuild and rpm");
    }
    let path = package(".rpm").expect("an RPM");
    let path = path.to_str().expect("UTF-8");
    let listed = run("rpm", &["--query", "--list", "--package", path]);
    for file in [
        "/etc/headway/headway.toml",
        "/usr/bin/headway",
        "/usr/lib/systemd/system/headway.service",
        "/usr/lib64/libdebox.so",
        "/usr/share/doc/headway/headway.cdx.json",
        "/usr/share/licenses/headway/LICENSE-MIT",
        "/usr/share/man/man1/headway.1.gz",
    ] {
        assert!(listed.lines().any(|line| line == file), "{file}: {listed}");
    }
    let kept = run("rpm", &["--query", "--configfiles", "--package", path]);
    assert_eq!(
        kept,
        "/etc/headway/headway.toml\n/etc/logrotate.d/headway\n"
    );
    let needed = run("rpm", &["--query", "--requires", "--package", path]);
    assert!(needed.contains("libc.so.6(GLIBC_"), "{needed}");

    // Its scripts want programs which such a root has not.
    let root = tempfile::tempdir().expect("a directory");
    let tree = root.path().to_str().expect("UTF-8");
    let options = ["--root", tree, "--nodeps", "--noscripts"];
    run("rpm", &[&options[..], &["--install", path]].concat());
    let program = root.path().join("usr/bin/headway");
    let version = run(program.to_str().expect("UTF-8"), &["--version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")));
    run("rpm", &["--root", tree, "--verify", "--nodeps", "headway"]);
    let description =
        fs::read_to_string(root.path().join("usr/lib64/pkgconfig/debox.pc")).expect("a file");
    assert!(
        description.contains("\nlibdir=${prefix}/lib64\n"),
        "{description}"
    );
    run("rpm", &[&options[..], &["--erase", "headway"]].concat());
    assert!(!program.exists() && !root.path().join("etc/headway").exists());
}
