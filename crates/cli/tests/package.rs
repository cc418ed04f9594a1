//! `make package`: the Debian package is installed, serves, is reloaded and leaves nothing, on a machine of
//! its own: this one with private copies of its directories and a private network. The other formats have modules.
//!
//! What is packaged is the profile the tests are of.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod bill;
mod image;
mod repository;
mod rpm;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use headway_test_support::{find_program, is_root, skip};

use super::install::built;

fn script(name: &str) -> Command {
    Command::new(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../scripts")
            .join(name),
    )
}

/// What a command printed, which must have succeeded.
fn succeeded(done: &Output) -> String {
    let (printed, errors) = (&done.stdout, String::from_utf8_lossy(&done.stderr));
    let printed = String::from_utf8_lossy(printed).into_owned();
    assert!(done.status.success(), "{printed}\n{errors}");
    printed
}

fn run(program: &str, arguments: &[&str]) -> String {
    succeeded(
        &Command::new(program)
            .args(arguments)
            .output()
            .expect(program),
    )
}

/// Has a script make packages of the programs which the tests are of.
fn make(mut script: Command, out: &Path) {
    script.arg(out).env("BUILT", built());
    script.env("COMPRESSION", "none").env_remove("FORMATS");
    succeeded(&script.output().expect("the script runs"));
}

/// The packages, which all tests share. They are in cargo's directory for such files, and are replaced by the next run.
fn packages() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
        fs::remove_dir_all(&out).ok();
        make(script("package"), &out);
        out
    })
}

/// The package whose name ends like this.
fn package(end: &str) -> Option<PathBuf> {
    let files = fs::read_dir(packages()).expect("the packages");
    let mut paths = files.map(|file| file.expect("a file").path());
    paths.find(|path| path.to_string_lossy().ends_with(end))
}

/// Why there are no packages here.
fn lacks() -> Option<&'static str> {
    let needed = ["dpkg-deb", "python3"];
    let is_missing = |name: &&str| find_program(name).is_none();
    needed.iter().any(is_missing).then_some("dpkg and python3")
}

/// The copy is at another place, with another time zone and stricter permissions. The programs are the same:
/// `scripts/reproducible` builds these twice, too.
///
/// Needs: dpkg, python3 and git
#[test]
fn packages_have_the_same_bytes_when_a_copy_of_the_sources_makes_them() {
    const NAME: &str = "packages_have_the_same_bytes_when_a_copy_of_the_sources_makes_them";
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]);
    let time = git.current_dir(&checkout).output();
    let Some(time) = time.ok().filter(|time| time.status.success()) else {
        return skip(NAME, "dpkg, python3 and git");
    };
    if lacks().is_some() {
        return skip(NAME, "dpkg, python3 and git");
    }
    let sums = |out: &Path| fs::read_to_string(out.join("SHA256SUMS")).expect("the checksums");
    let first = sums(packages());
    let place = tempfile::tempdir().expect("a directory");
    let copy = place.path().join("a copy");
    fs::create_dir(&copy).expect("a directory");
    let mut copying = Command::new("sh");
    copying.args([
        "-c",
        "umask 077 && git ls-files -z | xargs -0 cp --parents -t \"$0\"",
    ]);
    copying.arg(&copy).current_dir(&checkout);
    succeeded(&copying.output().expect("sh runs"));
    let mut script = Command::new("sh");
    script.args(["-c", "umask 077 && exec scripts/package \"$0\""]);
    script.current_dir(&copy).env("TZ", "Pacific/Chatham");
    let seconds = String::from_utf8_lossy(&time.stdout);
    script.env("SOURCE_DATE_EPOCH", seconds.trim());
    let out = place.path().join("out");
    make(script, &out);
    assert_eq!(first, sums(&out));
    for end in [".cdx.json\n", ".deb\n", ".tar.gz\n", ".oci.tar\n"] {
        assert!(first.contains(end), "{first}");
    }
}

/// Needs: dpkg and python3
#[test]
fn programs_that_need_a_newer_c_library_are_not_packaged() {
    if let Some(needed) = lacks() {
        return skip(
            "programs_that_need_a_newer_c_library_are_not_packaged",
            needed,
        );
    }
    let out = tempfile::tempdir().expect("a directory");
    let mut command = script("package");
    command.arg(out.path()).env("BUILT", built());
    command.env("FORMATS", "tar").env("GLIBC_MAX", "2.17");
    let done = command.output().expect("the script runs");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{errors}");
    assert!(errors.contains("and GLIBC_MAX is 2.17"), "{errors}");
    assert_eq!(fs::read_dir(out.path()).expect("a directory").count(), 0);
}

/// What Debian's lintian would look at: conffiles, checksums, modes, scripts, and texts that have to be there.
///
/// Needs: dpkg and python3
#[test]
fn debian_package_is_complete() {
    if let Some(needed) = lacks() {
        return skip("debian_package_is_complete", needed);
    }
    let root = tempfile::tempdir().expect("a directory");
    let tree = root.path().to_str().expect("UTF-8");
    let deb = package(".deb").expect("a package");
    let deb = deb.to_str().expect("UTF-8");
    run("dpkg-deb", &["--raw-extract", deb, tree]);
    let text = |name: &str| {
        fs::read_to_string(root.path().join("DEBIAN").join(name)).expect("a control file")
    };
    let listing = run("dpkg-deb", &["--contents", deb]);
    let mut files = BTreeSet::new();
    for line in listing.lines() {
        // drwxr-xr-x root/root 0 2026-11-29 08:00 ./usr/
        let parts: Vec<&str> = line.split_whitespace().collect();
        let (mode, owner, path) = (parts[0], parts[1], parts[5]);
        assert_eq!(owner, "root/root", "{line}");
        assert!(
            ["drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"].contains(&mode),
            "{line}"
        );
        if mode.starts_with('-') {
            files.insert(path[1..].to_owned());
        }
    }
    let conffiles: BTreeSet<String> = text("conffiles").lines().map(str::to_owned).collect();
    let in_etc = files.iter().filter(|path| path.starts_with("/etc/"));
    assert_eq!(conffiles, in_etc.cloned().collect());
    let summed = text("md5sums");
    let summed = summed
        .lines()
        .map(|line| format!("/{}", line.split_once("  ").expect("a sum").1));
    assert_eq!(files, summed.collect());
    for path in FILES {
        assert!(files.contains(*path), "{path}");
    }
    for name in ["postinst", "prerm", "postrm"] {
        let path = root.path().join("DEBIAN").join(name);
        run("sh", &["-n", path.to_str().expect("UTF-8")]);
    }
    let control = text("control");
    assert!(control.contains("\nDepends: libc6 (>= 2."), "{control}");
    assert!(control.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))));
}

const FILES: &[&str] = &[
    "/etc/apparmor.d/headway-server",
    "/etc/headway/headway.toml",
    "/etc/logrotate.d/headway",
    "/usr/bin/headway",
    "/usr/lib/systemd/system/headway.service",
    "/usr/lib/sysusers.d/headway.conf",
    "/usr/lib/tmpfiles.d/headway.conf",
    "/usr/share/doc/headway/changelog.gz",
    "/usr/share/doc/headway/copyright",
    "/usr/share/doc/headway/headway.cdx.json",
    "/usr/share/man/man1/headway.1.gz",
];

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
mkdir "$STATE/other"
echo 'another host' >"$STATE/other/index.html"
chmod a+rx "$STATE" "$STATE/other"
printf '[[host]]\nnames = "other.example"\nroot = "%s"\n' "$STATE/other" >/etc/headway/conf.d/other.toml
kill -HUP $server
for attempt in $(seq 500); do
    curl -s http://127.0.0.1:9090/metrics | grep -q 'reloads_total{result="done"} 1' && break
    sleep 0.02
done
curl -s -o /dev/null -w '%{http_code}\n' http://localhost/
curl -s -H 'Host: other.example' http://localhost/
rm /etc/headway/conf.d/other.toml
kill $server
wait $server
grep -c 'GET / ' /var/log/headway/access.log
dpkg --purge headway >"$STATE/dpkg" 2>&1 || { cat "$STATE/dpkg"; exit 1; }
# The upper directories have all that was written since the beginning. Those without a name in them were removed.
find "$STATE"/*/upper -not -type c | grep headway | grep -v /lib/dpkg/ || echo nothing left
getent passwd headway || getent group headway || echo no user left
"#;

/// Needs: root, dpkg, python3, adduser, curl, ip, pgrep, an overlay file system
#[test]
fn package_is_installed_serves_as_its_user_and_leaves_nothing_when_purged() {
    const NAME: &str = "package_is_installed_serves_as_its_user_and_leaves_nothing_when_purged";
    const NEEDED: &str = "root, dpkg, python3, adduser, curl, ip, pgrep, an overlay file system";
    let needed = ["dpkg", "ip", "curl", "pgrep", "adduser", "deluser"];
    let is_missing = |name: &&str| find_program(name).is_none();
    if !is_root() || lacks().is_some() || needed.iter().any(is_missing) {
        return skip(NAME, NEEDED);
    }
    let state = tempfile::tempdir().expect("a directory");
    let done = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["sh", "-c", STEPS])
        .env("STATE", state.path())
        .env("DEB", package(".deb").expect("a package"))
        .output()
        .expect("unshare runs");
    let printed = String::from_utf8_lossy(&done.stdout);
    if printed.starts_with("no overlay") {
        return skip(NAME, NEEDED);
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let said = fs::read_to_string(state.path().join("errors")).unwrap_or_default();
    let expected = "installed\nHeadway serves this page\nheadway\n200\nanother host\n3\nnothing left\nno user left\n";
    assert_eq!(printed, expected, "{errors}\n{said}");
}

/// Needs: apparmor_parser
#[test]
fn apparmor_profile_is_valid_and_only_complains() {
    const NAME: &str = "apparmor_profile_is_valid_and_only_complains";
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/headway.apparmor");
    let text = fs::read_to_string(&profile).expect("the profile");
    assert!(text.contains("profile headway-server flags=(complain) {"));
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/headway.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    assert!(unit.contains("\nAppArmorProfile=-headway-server\n"));
    let Some(parser) = find_program("apparmor_parser") else {
        return skip(NAME, "apparmor_parser");
    };
    // Parsed, compiled, and not loaded.
    let mut command = Command::new(parser);
    command
        .args(["--skip-kernel-load", "--skip-cache"])
        .arg(profile);
    succeeded(&command.output().expect("the parser runs"));
}

/// Needs: systemd-analyze
#[test]
fn unit_has_a_low_exposure() {
    const NAME: &str = "unit_has_a_low_exposure";
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/headway.service");
    // With it openat2(2) fails in services, and no worker starts.
    let text = fs::read_to_string(&unit).expect("the unit");
    assert!(!text.contains("\nRestrictSUIDSGID="));
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
