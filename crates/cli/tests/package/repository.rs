//! An apt repository: apt takes the package from it if the signature is right, and rejects one that was changed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use headway_test_support::{find_program, skip};

use super::{lacks, package, run, script, succeeded};

/// apt-get with directories of its own.
fn apt(state: &Path, arguments: &[&str]) -> Output {
    for directory in ["lists/partial", "cache/archives/partial", "etc"] {
        fs::create_dir_all(state.join(directory)).expect("a directory");
    }
    fs::write(state.join("status"), "").expect("a file");
    let set = |name: &str, path: &str| format!("-o{name}={}", state.join(path).display());
    Command::new("apt-get")
        .args([
            set("Dir::State::lists", "lists"),
            set("Dir::State::status", "status"),
            set("Dir::Cache", "cache"),
            set("Dir::Etc::sourcelist", "sources.list"),
            set("Dir::Etc::sourceparts", "etc"),
            set("Dir::Etc::preferencesparts", "etc"),
        ])
        // The directories belong to this user, and not to apt's.
        .args(["-oAPT::Sandbox::User=root", "-oAcquire::Languages=none"])
        .args(["-oAcquire::Check-Valid-Until=false"])
        .args(arguments)
        .current_dir(state)
        .env("LC_ALL", "C")
        .output()
        .expect("apt-get runs")
}

/// Needs: dpkg, python3, apt-get and gpg
#[test]
fn apt_takes_the_package_from_a_signed_repository_and_rejects_a_changed_one() {
    const NAME: &str = "apt_takes_the_package_from_a_signed_repository_and_rejects_a_changed_one";
    let needed = ["apt-get", "gpg", "gpgv"];
    if lacks().is_some() || needed.iter().any(|name| find_program(name).is_none()) {
        return skip(NAME, "dpkg, python3, apt-get and gpg");
    }
    let state = tempfile::tempdir().expect("a directory");
    let state = state.path();
    let home = state.join("gnupg");
    fs::create_dir(&home).expect("a directory");
    let quick = ["--batch", "--passphrase", "", "--quick-generate-key"];
    let made = Command::new("gpg")
        .args(quick)
        .args(["headway-test", "ed25519", "sign", "never"])
        .env("GNUPGHOME", &home)
        .output();
    succeeded(&made.expect("gpg runs"));
    let repository = state.join("repository");
    let made = script("apt-repository")
        .arg(&repository)
        .arg(package(".deb").expect("a package"))
        .env("GNUPGHOME", &home)
        .env("SIGN_KEY", "headway-test")
        .output();
    succeeded(&made.expect("the script runs"));
    // gpg leaves an agent, which ends when its directory is gone; ask it to.
    let ended = Command::new("gpgconf")
        .args(["--kill", "all"])
        .env("GNUPGHOME", &home)
        .status();
    assert!(ended.expect("gpgconf runs").success());

    let key = repository.join("headway.gpg");
    let source = format!(
        "deb [signed-by={}] file:{} stable main\n",
        key.display(),
        repository.display()
    );
    fs::write(state.join("sources.list"), source).expect("a file");
    succeeded(&apt(state, &["update", "--error-on=any"]));
    succeeded(&apt(state, &["download", "headway"]));
    let taken = fs::read_dir(state).expect("a directory").find_map(|entry| {
        let path = entry.expect("an entry").path();
        (path.extension()? == "deb").then_some(path)
    });
    let taken = taken.expect("a package");
    let version = run(
        "dpkg-deb",
        &["--field", taken.to_str().expect("UTF-8"), "Version"],
    );
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));

    let release = repository.join("dists/stable/InRelease");
    let text = fs::read_to_string(&release).expect("the signed file");
    let changed = text.replace("Origin: Headway", "Origin: Another");
    assert_ne!(text, changed);
    fs::write(&release, changed).expect("the file");
    let rejected = apt(state, &["update", "--error-on=any"]);
    let errors = String::from_utf8_lossy(&rejected.stderr);
    assert!(
        !rejected.status.success() && errors.contains("BADSIG"),
        "{errors}"
    );
}
