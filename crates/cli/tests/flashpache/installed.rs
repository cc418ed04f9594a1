//! Apache with the module as `make install` and Debian's `a2enmod` leave them: the installed files
//! name each other and the service's socket rightly.

use super::command::{install, may_mount};
use super::faults::{NumberedFiles, built};
use super::support::{Apache, Backend, base, folder, get, make_cold, skip, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;

/// In the place of what follows, with the modules and the sockets of another tree where Apache
/// looks for its own.
const WITH_TREE: &str = r#"
modules=/usr/lib/apache2/modules
mount --bind "$0$modules" "$modules" && mount --bind "$0/run" /run && exec "$@""#;

/// A tree that has Debian's modules, with ours installed and switched on.
fn make_tree(tree: &Path, module: &Path) {
    let modules = tree.join("usr/lib/apache2/modules");
    fs::create_dir_all(&modules).unwrap();
    for module in fs::read_dir("/usr/lib/apache2/modules")
        .unwrap()
        .map(Result::unwrap)
    {
        if module.file_name() != "mod_headway.so" {
            fs::copy(module.path(), modules.join(module.file_name())).unwrap();
        }
    }
    for folder in ["run/headway", "etc/apache2/mods-enabled"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    install("apache", module.parent().unwrap(), tree);
    let enabled = Command::new("a2enmod")
        .arg("headway")
        .env("APACHE_CONFDIR", tree.join("etc/apache2"))
        .env("APACHE_STATE_DIRECTORY", tree.join("var/lib/apache2"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&enabled.stderr);
    assert!(enabled.status.success(), "a2enmod: {stderr}");
}

/// Needs: root, and the programs apache2, apxs, a2enmod and unshare: scripts/setup
#[test]
fn module_sends_files_when_it_is_installed_and_a2enmod_has_switched_it_on() {
    let name = "module_sends_files_when_it_is_installed_and_a2enmod_has_switched_it_on";
    let Some(module) = built(name) else { return };
    if !may_mount() {
        return skip(name, "root, and the program unshare");
    }
    if Command::new("a2enmod").arg("--help").output().is_err() {
        return skip(name, "no a2enmod");
    }
    let (tree, served) = (folder(), NumberedFiles::new());
    make_tree(tree.path(), &module);
    let socket = tree.path().join("run/headway/open.sock");
    let backend = Backend::start_with(&["--user", "www-data"], &served.root(), &socket);
    // As Debian's apache2.conf does.
    let enabled = tree.path().join("etc/apache2/mods-enabled");
    let configuration = format!(
        "{}IncludeOptional {1}/*.load\nIncludeOptional {1}/*.conf\nDocumentRoot {2}\n",
        base(),
        enabled.display(),
        served.root().display()
    );
    let under = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        WITH_TREE,
        tree.path().to_str().unwrap(),
    ];
    let apache = Apache::start_under(&under, "event", &configuration);
    let expected = fs::read_to_string(served.file(0)).unwrap();
    assert_eq!(get(&apache.address, "/f0"), expected);
    assert_eq!(apache.counter("Sent"), 1);
    // The socket that headway.conf names is the service's.
    wait_until("the service gets no request", || {
        make_cold(&served.file(0));
        assert_eq!(get(&apache.address, "/f0"), expected);
        apache.counter("Answered") > 0
    });
    assert!(backend.counter("requests_total") > 0);
    assert_eq!(apache.counter("Fallbacks"), 0);
}
