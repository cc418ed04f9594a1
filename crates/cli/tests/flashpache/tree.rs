//! The files that the conversations are about.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use super::support::is_root;

const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
/// A number that no system gives to a person.
const SOMEBODY: u32 = 4711;

fn put(root: &Path, name: impl AsRef<OsStr>, contents: &[u8]) {
    let path = root.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

fn large() -> Vec<u8> {
    (0..300_000_usize).map(|at| (at % 251) as u8).collect()
}

/// Fills a directory with `site`, `other` and `passwords`.
pub fn fill(root: &Path) {
    let site = root.join("site");
    plain(&site);
    for folder in [
        "dir",
        "denied",
        "limited",
        "auth",
        "off",
        "env",
        "location",
        "sendfile",
        "mmapoff",
        "etagnone",
        "etaginode",
        "etagdigest",
        "digest",
        "expires",
        "headers",
        "accept",
        "nolinks",
        "override",
        "override/sub/deep",
        "nooverride",
        "broken",
        "htauth",
        "substituted",
        "locked",
        "execonly",
        "links/real",
        "files",
        "htclass",
        "htwrong",
        "htlist",
        "htlist/sub",
        "htsome/sub",
        "htlink",
        "htdir",
        "hthidden",
        "matched-12",
        "matched-ab",
        "conditional",
        "from/here",
        "from/elsewhere",
        "from/nothere",
    ] {
        put(&site, format!("{folder}/file.txt"), ALPHABET);
    }
    put(&site, "sendfile/big.bin", &large());
    put(&site, "mmapoff/big.bin", &large());
    directories(&site);
    rules(&site);
    rules_in_part(&site);
    links(&site);
    rules_of_another_name(&root.join("rules"));
    put(root, "other/file.txt", b"of the other host\n");
    put(root, "other/only-here.txt", b"only here\n");
    put(root, "other/sub/x.txt", b"x\n");
    put(root, "other/dir/x.txt", b"x\n");
    // The password is `pass`.
    put(
        root,
        "passwords",
        b"user:{SHA}nU4eI71bcnBGqeO0t9tXvY1u5oQ=\n",
    );
    stamp(root);
    modes(&site);
}

fn plain(site: &Path) {
    for name in [
        "file.txt",
        "noext",
        "image.png",
        ".hidden",
        "sp ace.txt",
        "pct%41.txt",
        "\u{fc}mlaut.txt",
        "plus+sign.txt",
        "semi;colon.txt",
        "quo\"te.txt",
        "back\\slash.txt",
        "star*.txt",
        "typed.special",
        "unreadable.txt",
        "forced/file.dat",
        "err/denied.txt",
        "files/secret.txt",
        "files/ok.txt",
        "files/Secret.txt",
    ] {
        put(site, name, ALPHABET);
    }
    put(site, OsStr::from_bytes(b"by\x01te\xff.txt"), ALPHABET);
    put(site, "index.html", b"<p>the index</p>\n");
    put(site, "empty.txt", b"");
    put(site, "exact8k.bin", &large()[..8192]);
    put(site, "big.bin", &large());
    put(site, "deflate/text.txt", &ALPHABET.repeat(200));
    put(
        site,
        "asis.asis",
        b"Status: 203 As It Is\r\nContent-Type: text/x-asis\r\n\r\nas it is\n",
    );
    put(
        site,
        "page.shtml",
        b"<!--#include virtual=\"/file.txt\" --> and <!--#fsize virtual=\"/big.bin\" -->\n",
    );
    put(
        site,
        "missing.shtml",
        b"<!--#include virtual=\"/none\" -->\n",
    );
    put(
        site,
        "includes/dir.shtml",
        b"<!--#include virtual=\"/indexed/\" --><!--#include file=\"part.txt\" -->\n",
    );
    put(site, "includes/part.txt", b"a part");
    put(
        site,
        "xbit/page.html",
        b"<!--#echo var=\"DOCUMENT_NAME\" -->\n",
    );
}

fn directories(site: &Path) {
    put(site, "indexed/index.html", b"<p>indexed</p>\n");
    put(site, "second/second.html", b"<p>second</p>\n");
    put(site, "slash/index.html", b"<p>slash</p>\n");
    for folder in ["listed", "fancy", "htlisted"] {
        for name in ["a.txt", "b.html", "c.png", "sub/inner.txt"] {
            put(site, format!("{folder}/{name}"), name.as_bytes());
        }
    }
    for (name, text) in [
        ("doc.html.en", "english\n"),
        ("doc.html.de", "deutsch\n"),
        ("pic.png", "a png\n"),
        ("pic.gif", "a gif\n"),
        (
            "map.var",
            "URI: doc.html.en\nContent-Type: text/html\nContent-Language: en\n\nURI: doc.html.de\nContent-Type: text/html\nContent-Language: de\n",
        ),
    ] {
        put(site, format!("multi/{name}"), text.as_bytes());
    }
}

fn rules(site: &Path) {
    put(site, "override/yes.txt", ALPHABET);
    put(site, "override/no.txt", ALPHABET);
    put(
        site,
        "override/.htaccess",
        b"Header set X-Override yes\n<Files no.txt>\nRequire all denied\n</Files>\n",
    );
    put(site, "override/sub/.htaccess", b"ForceType text/x-sub\n");
    put(site, "nooverride/.htaccess", b"Require all denied\n");
    put(site, "broken/.htaccess", b"NoSuchDirective\n");
    put(
        site,
        "htlisted/.htaccess",
        b"Options +Indexes\nIndexOptions -FancyIndexing\n",
    );
    let auth = "AuthType Basic\nAuthName ht\nAuthUserFile @PASSWORDS@\nRequire valid-user\n";
    // The place of the passwords changes with each mount, and a file that is missing is refused
    // alike.
    put(
        site,
        "htauth/.htaccess",
        auth.replace("@PASSWORDS@", "/nonexistent/passwords")
            .as_bytes(),
    );
}

/// Rules that may say some things and not others, and files of rules that are no plain files.
fn rules_in_part(site: &Path) {
    put(site, "htclass/.htaccess", b"Require valid-user\n");
    put(site, "htwrong/.htaccess", b"ForceType text/x-not-allowed\n");
    put(site, "htlist/.htaccess", b"ForceType text/x-listed\n");
    put(site, "htlist/sub/.htaccess", b"Require all denied\n");
    put(
        site,
        "htsome/sub/.htaccess",
        b"Options +Indexes\nIndexOptions -FancyIndexing\nForceType text/x-some\n",
    );
    put(site, "htlink/rules", b"Header set X-Linked yes\n");
    symlink("rules", site.join("htlink/.htaccess")).unwrap();
    fs::create_dir(site.join("htdir/.htaccess")).unwrap();
    put(site, "hthidden/.htaccess", b"Header set X-Hidden yes\n");
    put(site, "matched/yes.log", ALPHABET);
    put(site, "matched/no.secret", ALPHABET);
}

/// Of a host whose files of rules are called otherwise, or either way.
fn rules_of_another_name(rules: &Path) {
    for folder in ["", "closed/", "second/"] {
        put(rules, format!("{folder}file.txt"), ALPHABET);
    }
    put(rules, ".rules", b"Header set X-Rules yes\n");
    put(rules, "closed/.rules", b"Require all denied\n");
    put(rules, "second/.htaccess", b"ForceType text/x-second\n");
}

fn links(site: &Path) {
    for (name, target) in [
        ("links/inside.txt", "../file.txt"),
        ("links/outside.txt", "../../other/file.txt"),
        ("links/absolute.txt", "/etc/hostname"),
        ("links/dangling", "nowhere"),
        ("links/loop", "loop"),
        ("links/dir", "real"),
        ("links/deep", "../deep/inner"),
        ("links/chain.txt", "inside.txt"),
        ("links/todenied", "../denied"),
        ("nolinks/inside.txt", "../file.txt"),
        ("nolinks/dir", "../dir"),
        ("owner/mine.txt", "plain.txt"),
        ("owner/theirs.txt", "another.txt"),
        ("owner/mine", "../deep/inner"),
        ("owner/theirs", "../deep/inner"),
        ("dangling", "nowhere"),
    ] {
        let path = site.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }
    // By its text `links/deep/../which.txt` is one of them, by its directories the other.
    put(site, "links/which.txt", b"beside the link");
    put(site, "deep/which.txt", b"beside what it leads to");
    put(site, "deep/inner/file.txt", ALPHABET);
    put(site, "owner/plain.txt", ALPHABET);
    put(site, "owner/another.txt", ALPHABET);
    if is_root() {
        for name in ["owner/theirs.txt", "owner/theirs"] {
            lchown(site.join(name), Some(SOMEBODY), None).unwrap();
        }
        chown(site.join("owner/another.txt"), Some(0), None).unwrap();
    }
}

/// One old time for all, so that nothing depends on when the test runs.
pub fn stamp(folder: &Path) {
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_600_000_000, 0);
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            stamp(&entry.path());
        }
        if kind.is_dir() || kind.is_file() {
            fs::File::open(entry.path())
                .unwrap()
                .set_modified(then)
                .unwrap();
        }
    }
}

fn modes(site: &Path) {
    for (name, mode) in [
        ("unreadable.txt", 0),
        ("hthidden/.htaccess", 0),
        ("locked", 0),
        ("execonly", 0o711),
        ("xbit/page.html", 0o775),
    ] {
        fs::set_permissions(site.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if is_root() {
        for name in ["unreadable.txt", "hthidden/.htaccess", "locked", "execonly"] {
            chown(site.join(name), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
    }
}
