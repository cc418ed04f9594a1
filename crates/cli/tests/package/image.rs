//! The container image: its layer is unpacked into a directory, and its command is run there as a runtime would run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use headway_test_support::{find_program, is_root, skip};
use serde_json::Value;

use super::{lacks, package, run};

/// The layout of the image, unpacked.
struct Layout(PathBuf);

impl Layout {
    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&fs::read(self.0.join(path)).expect(path)).expect("JSON")
    }

    /// The path of a blob, whose digest and size are right.
    fn blob(&self, reference: &Value) -> String {
        let digest = reference["digest"].as_str().expect("a digest");
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let file = self.0.join(&path);
        assert_eq!(sha256(&file), digest, "{path}");
        assert_eq!(reference["size"], file.metadata().expect("a file").len());
        path
    }
}

fn sha256(path: &Path) -> String {
    let printed = run("sha256sum", &[path.to_str().expect("UTF-8")]);
    let (sum, _) = printed.split_once(' ').expect("a sum");
    format!("sha256:{sum}")
}

fn words(value: &Value) -> String {
    let words = value.as_array().expect("a list").iter();
    let words: Vec<&str> = words.map(|word| word.as_str().expect("a word")).collect();
    // For the shell: none of them has a quote.
    words
        .iter()
        .map(|word| format!("'{word}'"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a runtime does, with a root that cannot be written to. Each step is a line of the output.
const STEPS: &str = r#"
set -e
mount --make-rprivate /
ip link set lo up
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/dev"
mknod -m 666 "$ROOT/dev/null" c 1 3
mount -o remount,bind,ro "$ROOT"
touch "$ROOT/tmp/file" 2>/dev/null || echo read-only
chroot=$(command -v chroot)
inside() { env -i PATH=/usr/bin "$chroot" --userspec="$OWNER" --groups= "$ROOT" "$@"; }
eval inside "$COMMAND" >"$STATE/log" 2>"$STATE/errors" &
for attempt in $(seq 500); do curl -sf -o /dev/null http://localhost:8080/ && break; sleep 0.02; done
curl -s http://localhost:8080/ | grep -o 'Headway serves this page'
curl -s http://localhost:9090/readyz
for pid in $(pgrep headway); do awk '/^(Uid|CapEff):/ { print $1, $2 }' "/proc/$pid/status"; done | sort -u
eval inside "$HEALTH" >"$STATE/health" 2>&1 && echo healthy
kill $(pgrep -o headway)
wait
grep -c '"status":200' "$STATE/log"
"#;

/// Needs: root, dpkg, python3, curl, ip and pgrep
#[test]
fn image_serves_as_its_user_when_its_root_is_read_only() {
    const NAME: &str = "image_serves_as_its_user_when_its_root_is_read_only";
    let needed = ["curl", "ip", "pgrep", "unshare"];
    let is_missing = |name: &&str| find_program(name).is_none();
    if !is_root() || lacks().is_some() || needed.iter().any(is_missing) {
        return skip(NAME, "root, dpkg, python3, curl, ip and pgrep");
    }
    let state = tempfile::tempdir().expect("a directory");
    let path = |name: &str| state.path().join(name).to_str().expect("UTF-8").to_owned();
    let (layout, root) = (Layout(path("layout").into()), path("root"));
    fs::create_dir(&layout.0).expect("a directory");
    fs::create_dir(&root).expect("a directory");
    let image = package(".oci.tar").expect("an image");
    run(
        "tar",
        &["-xf", image.to_str().expect("UTF-8"), "-C", &path("layout")],
    );
    assert_eq!(layout.json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let manifest = layout.json(&layout.blob(&layout.json("index.json")["manifests"][0]));
    let image = layout.json(&layout.blob(&manifest["config"]));
    let layer = layout.blob(&manifest["layers"][0]);
    let layer = format!("{}/{layer}", path("layout"));
    let unpacked = path("layer.tar");
    run("sh", &["-c", &format!("gzip -dc '{layer}' >'{unpacked}'")]);
    assert_eq!(image["rootfs"]["diff_ids"][0], sha256(Path::new(&unpacked)));
    run("tar", &["-xpf", &unpacked, "-C", &root]);
    let config = &image["config"];
    assert_eq!(config["ExposedPorts"], serde_json::json!({"8080/tcp": {}}));
    let owner = config["User"].as_str().expect("a user");
    let passwd = fs::read_to_string(Path::new(&root).join("etc/passwd")).expect("users");
    assert!(passwd.contains(&format!("headway:x:{owner}:")), "{passwd}");

    let mut health = config["Healthcheck"]["Test"].clone();
    assert_eq!(health.as_array_mut().expect("a list").remove(0), "CMD");
    let done = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "sh", "-c", STEPS])
        .env("ROOT", &root)
        .env("STATE", state.path())
        .env("OWNER", owner)
        .env("HEALTH", words(&health))
        .env(
            "COMMAND",
            format!("{} {}", words(&config["Entrypoint"]), words(&config["Cmd"])),
        )
        .output()
        .expect("unshare runs");
    let read = |name| fs::read_to_string(state.path().join(name)).unwrap_or_default();
    let expected = "read-only\nHeadway serves this page\nok\n\
        CapEff: 0000000000000000\nUid: 65532\nhealthy\n2\n";
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        expected,
        "{}\n{}\n{}",
        String::from_utf8_lossy(&done.stderr),
        read("errors"),
        read("health")
    );
}
