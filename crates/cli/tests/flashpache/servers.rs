//! lighttpd, PHP-FPM and Python's `http.server` as Debian has them, under the preload shim: the
//! same bytes as without, whatever becomes of the service. They serve the files of the
//! conversations; lighttpd hands programs to PHP-FPM, which includes and reads other files.

use super::conversations::{CASES, Tree, field, filled, masked, request};
use super::support::{
    Backend, clients, exchange, folder, free_ports, is_root, make_cold, skip, wait_until,
};
use super::tree::fill;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a program of PHP's does with files, with its own path left out of what it says.
const PROGRAM: &str = r#"<?php
$root = dirname(__DIR__);
set_error_handler(function ($number, $text) use ($root) { print str_replace($root, "", $text) . "\n"; return true; });
chdir(__DIR__);
include "lib/a.inc";
include __DIR__ . "/lib/b.inc";
include_once "lib/a.inc";
require_once "../php/lib/c.inc";
include "lib/none.inc";
include "lib/loop.inc";
include "lib/below/deep.inc";
set_include_path(__DIR__ . "/lib/below");
include "deep.inc";
print file_get_contents("../file.txt") . "\n";
$file = fopen("../big.bin", "r");
fseek($file, 100000);
print md5(fread($file, 50000)) . " " . md5_file("../big.bin") . "\n";
$names = ["../file.txt", "..", "none", "../file.txt/below", "lib/loop.inc", "../links/inside.txt", "../unreadable.txt",
    "../links/dangling", "../locked/file.txt", str_repeat("n", 300), "lib/link.inc"];
foreach ($names as $name) {
    clearstatcache();
    print json_encode([$name, file_exists($name), is_file($name), is_dir($name), is_link($name), is_readable($name),
        @filesize($name), @filetype($name), @fileperms($name), @filemtime($name) == @stat($name)["mtime"],
        @lstat($name)["size"] ?? null, @fopen($name, "r") !== false, str_replace($root, "", (string) @realpath($name))]);
    print "\n";
}
print implode(" ", scandir("lib")) . "\n";
print implode(" ", file("lib/lines.txt", FILE_IGNORE_NEW_LINES)) . "\n";
print (@file_put_contents("none/x", "y") === false ? "refused" : "written") . "\n";
"#;

fn fill_with_programs(root: &Path) {
    fill(root);
    let php = root.join("site/php");
    fs::create_dir_all(php.join("lib/below")).unwrap();
    for (name, text) in [
        ("files.php", PROGRAM),
        (
            "index.php",
            "<?php include 'lib/b.inc'; print $_SERVER['QUERY_STRING'];",
        ),
        (
            "lib/a.inc",
            "<?php print \"a\\n\"; return include 'lib/c.inc';",
        ),
        ("lib/b.inc", "<?php print \"b\\n\";"),
        ("lib/c.inc", "<?php print \"c\\n\";"),
        (
            "lib/below/deep.inc",
            "<?php print basename(__FILE__) . \"\\n\";",
        ),
        ("lib/lines.txt", "one\ntwo\nthree\n"),
    ] {
        fs::write(php.join(name), text).unwrap();
    }
    symlink("loop.inc", php.join("lib/loop.inc")).unwrap();
    symlink("a.inc", php.join("lib/link.inc")).unwrap();
}

/// What is put to them beside the conversations.
const PROGRAMS: [&str; 6] = [
    "GET /php/files.php",
    "GET /php/files.php?again",
    "GET /php/?query=1",
    "HEAD /php/index.php",
    "GET /php/none.php",
    "POST /php/index.php?posted | Content-Length: 3 >> abc",
];

const LIGHTTPD: &str = r#"
server.document-root = "@ROOT@/site"
server.bind = "127.0.0.1"
server.port = @PORT@
server.errorlog = "@FOLDER@/lighttpd.log"
server.upload-dirs = ("@FOLDER@")
server.modules = ("mod_alias", "mod_access", "mod_redirect", "mod_dirlisting", "mod_fastcgi")
index-file.names = ("index.html", "index.php")
static-file.exclude-extensions = (".php")
mimetype.assign = (".html" => "text/html", ".txt" => "text/plain", ".png" => "image/png", "" => "application/octet-stream")
alias.url = ("/alias/" => "@ROOT@/other/")
url.redirect = ("^/redirect/(.*)" => "http://elsewhere.test/$1")
fastcgi.server = (".php" => (("socket" => "@FOLDER@/php")))
$HTTP["url"] =~ "^/(listed|fancy)/" { dir-listing.activate = "enable" }
$HTTP["url"] =~ "^/denied/" { url.access-deny = ("") }
$HTTP["url"] =~ "^/nolinks/" { server.follow-symlink = "disable" }
$HTTP["host"] == "other.test" { server.document-root = "@ROOT@/other" }
"#;

const FPM: &str = "[global]\ndaemonize = no\nerror_log = @FOLDER@/php.log\n[test]\nlisten = @FOLDER@/php\nlisten.mode = 0666\n\
    pm = static\npm.max_children = 2\nphp_admin_value[display_errors] = 1\n";

/// A running program; ended when dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command, is_there: impl Fn() -> bool) -> Program {
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        wait_until("a program does not listen", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}");
            is_there()
        });
        Program(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Servers of one site.
struct SiteServers {
    _programs: Vec<Program>,
    address: String,
    _folder: tempfile::TempDir,
}

/// What a server is started with beside its configuration.
type Environment<'a> = &'a [(&'a str, &'a str)];

impl SiteServers {
    /// lighttpd with PHP-FPM behind it.
    fn lighttpd(php: &Path, root: &Path, environment: Environment<'_>) -> SiteServers {
        let folder = folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let [port] = free_ports();
        let write = |name: &str, text: &str, user: &str| {
            let file = folder.path().join(name);
            let text = text
                .replace("@ROOT@", root.to_str().unwrap())
                .replace("@FOLDER@", folder.path().to_str().unwrap())
                .replace("@PORT@", &port.to_string());
            // Only root may, and must, become another user.
            let user = if is_root() { user } else { "" };
            fs::write(&file, text + user).unwrap();
            file
        };
        let fpm = write("fpm.conf", FPM, "user = www-data\ngroup = www-data\n");
        let user = "server.username = \"www-data\"\nserver.groupname = \"www-data\"\n";
        let lighttpd = write("lighttpd.conf", LIGHTTPD, user);
        let start =
            |program: &Path, arguments: &[&str], file: &Path, is_there: &dyn Fn() -> bool| {
                let mut command = Command::new(program);
                command.args(arguments).arg(file);
                Program::start(command.envs(environment.iter().copied()), is_there)
            };
        let socket = folder.path().join("php");
        let php = start(php, &["-n", "-F", "-y"], &fpm, &|| {
            UnixStream::connect(&socket).is_ok()
        });
        let address = format!("127.0.0.1:{port}");
        let server = Path::new("/usr/sbin/lighttpd");
        let lighttpd = start(server, &["-D", "-f"], &lighttpd, &|| {
            TcpStream::connect(&address).is_ok()
        });
        SiteServers {
            _programs: vec![lighttpd, php],
            address,
            _folder: folder,
        }
    }

    fn python(root: &Path, environment: Environment<'_>) -> SiteServers {
        let [port] = free_ports();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new("python3");
        command
            .args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"])
            .arg(root.join("site"))
            .arg(port.to_string())
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Program::start(&mut command, || TcpStream::connect(&address).is_ok());
        SiteServers {
            _programs: vec![server],
            address,
            _folder: folder(),
        }
    }

    fn converse(&self) -> Vec<(String, Vec<u8>)> {
        let first = exchange(&self.address, &request("GET /file.txt"));
        // Python's has no entity tags.
        let etag = field(&first, "etag: ").unwrap_or_else(|| "\"x\"".into());
        let modified = field(&first, "last-modified: ").unwrap();
        let lines = CASES.lines().chain(PROGRAMS);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let line = filled(line, &etag, &modified);
                let response = exchange(&self.address, &request(&line));
                (line, masked(&response))
            })
            .collect()
    }

    fn answers(&self, expected: &[(String, Vec<u8>)], state: &str) {
        for ((case, expected), (_, actual)) in expected.iter().zip(&self.converse()) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(text(expected), text(actual), "{state}: {case}");
            assert_eq!(expected, actual, "{state}: {case}");
        }
    }
}

fn php_fpm() -> Option<PathBuf> {
    let found = fs::read_dir("/usr/sbin").ok()?.flatten();
    found.map(|entry| entry.path()).find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"))
    })
}

/// The conversation is about something.
fn spread(responses: &[(String, Vec<u8>)], version: &str, statuses: &[&str]) {
    for status in statuses {
        let start = format!("HTTP/{version} {status}");
        let found = responses
            .iter()
            .any(|(_, response)| response.starts_with(start.as_bytes()));
        assert!(found, "no response with {status}");
    }
}

/// Checks that a server with the shim sends the bytes it sent without, in every state of the
/// service.
fn agree(
    mut tree: Tree,
    start: impl Fn(&Path, Environment<'_>) -> SiteServers,
    check: impl Fn(&[(String, Vec<u8>)]),
) {
    let root = tree.make_cold();
    let site = start(&root, &[]);
    let expected = site.converse();
    drop(site);
    check(&expected);

    let root = tree.make_cold();
    let sockets = folder();
    let socket = sockets.path().join("socket");
    let backend = Backend::start(&root, &socket);
    let library = clients().unwrap().join("libheadway_preload.so");
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("HEADWAY_OPEN_SOCKET", socket.to_str().unwrap()),
        ("HEADWAY_OPEN_PREFIXES", root.to_str().unwrap()),
        ("HEADWAY_OPEN_TIMEOUT_MS", "300"),
    ];
    let site = start(&root, &environment);
    site.answers(&expected, "cold");
    if is_root() {
        // On a busy machine a client may give up the service for a while after its timeout.
        assert!(backend.counter("requests_total") > 0, "the disk was warm");
    }
    site.answers(&expected, "warm");
    let cool = || {
        for name in ["file.txt", "big.bin", "dir/file.txt", "indexed/index.html"] {
            make_cold(&root.join("site").join(name));
        }
    };
    cool();
    backend.signal(Signal::STOP);
    site.answers(&expected, "the service stands still");
    backend.signal(Signal::CONT);
    cool();
    backend.kill();
    site.answers(&expected, "the service is gone");
    // What still runs there would hold the disk.
    drop(site);
}

/// Needs: the programs lighttpd and php-fpm: scripts/setup
#[test]
fn lighttpd_and_php_answer_the_same_when_they_are_preloaded() {
    const NAME: &str = "lighttpd_and_php_answer_the_same_when_they_are_preloaded";
    let lighttpd = Path::new("/usr/sbin/lighttpd").is_file();
    let (Some(php), true) = (php_fpm(), lighttpd) else {
        return skip(
            NAME,
            "no lighttpd, or no php-fpm: scripts/setup installs them",
        );
    };
    let start =
        |root: &Path, environment: Environment<'_>| SiteServers::lighttpd(&php, root, environment);
    agree(Tree::filled(fill_with_programs), start, |responses| {
        let statuses = ["200", "206", "301", "304", "400", "403", "404", "416"];
        spread(responses, "1.1", &statuses);
        let program = responses
            .iter()
            .find(|(case, _)| case == PROGRAMS[0])
            .unwrap();
        let text = String::from_utf8_lossy(&program.1);
        for part in [
            "a\nc\n",
            "deep.inc",
            "abcdefghijklmnopqrstuvwxyz",
            "one two three",
            "refused",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

/// Needs: the program python3: scripts/setup
#[test]
fn pythons_server_answers_the_same_when_it_is_preloaded() {
    const NAME: &str = "pythons_server_answers_the_same_when_it_is_preloaded";
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(NAME, "no python3");
    }
    agree(Tree::new(), SiteServers::python, |responses| {
        spread(responses, "1.0", &["200", "301", "304", "404", "501"]);
    });
}
