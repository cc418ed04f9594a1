//! The guide's tutorials and how-to pages do what they say: each is pasted, block by block, on a
//! machine of its own. How a block says whether and how it is run is in `page.rs`.

mod machine;
mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use machine::Outcome;
use page::{Block, Kind, missing_line, parse};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The tests are made by a macro, so the name of one is that of its thread.
fn skip(reason: &str) {
    let thread = std::thread::current();
    let path = thread.name().expect("a test's thread has its name");
    let test = path.rsplit("::").next().unwrap_or(path);
    headway_test_support::skip(test, reason);
}

/// Whether a program is installed, or with `python:MODULE` a module of Python.
fn is_there(need: &str) -> bool {
    if let Some(module) = need.strip_prefix("python:") {
        let line = format!("import {module}");
        let probe = Command::new(machine::python()).args(["-c", &line]).output();
        return probe.is_ok_and(|output| output.status.success());
    }
    headway_test_support::find_program(need).is_some()
}

fn check(path: &str) {
    let text = fs::read_to_string(repository().join(path)).expect("the page");
    let page = parse(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    if let Some(missing) = page.needs.iter().find(|need| !is_there(need)) {
        return skip(&format!("{missing} is not installed"));
    }
    match machine::run(path, &page) {
        Outcome::Passed => {}
        Outcome::NoMachine(reason) => skip(&format!("no machine of its own: {reason}")),
        Outcome::Failed(text) => panic!("{path}, {text}"),
    }
}

macro_rules! pages {
    ($($test:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $test() {
                check($path);
            }
        )*
    };
}

pages! {
    // Each needs: root: makes a network, a mount and a process namespace
    readme_works_when_pasted: "README.md",
    tutorial_serve_a_site_works_when_pasted: "docs/src/tutorials/serve-a-site.md",
    tutorial_measure_a_server_works_when_pasted: "docs/src/tutorials/measure-a-server.md",
    tutorial_find_why_slow_works_when_pasted: "docs/src/tutorials/find-why-slow.md",
    howto_acme_works_when_pasted: "docs/src/howto/acme.md",
    howto_apache_works_when_pasted: "docs/src/howto/apache.md",
    howto_bad_p99_works_when_pasted: "docs/src/howto/bad-p99.md",
    howto_behind_a_load_balancer_works_when_pasted: "docs/src/howto/behind-a-load-balancer.md",
    howto_benchmark_works_when_pasted: "docs/src/howto/benchmark.md",
    howto_cache_headers_works_when_pasted: "docs/src/howto/cache-headers.md",
    howto_compare_servers_works_when_pasted: "docs/src/howto/compare-servers.md",
    howto_custom_404_works_when_pasted: "docs/src/howto/custom-404.md",
    howto_directory_listing_works_when_pasted: "docs/src/howto/directory-listing.md",
    howto_explain_works_when_pasted: "docs/src/howto/explain.md",
    howto_flame_graph_perfetto_works_when_pasted: "docs/src/howto/flame-graph-perfetto.md",
    howto_watch_loop_works_when_pasted: "docs/src/howto/watch-loop.md",
    howto_client_certificates_work_when_pasted: "docs/src/howto/client-certificates.md",
    howto_http2_works_when_pasted: "docs/src/howto/http2.md",
    howto_https_works_when_pasted: "docs/src/howto/https.md",
    howto_load_live_works_when_pasted: "docs/src/howto/load-live.md",
    howto_load_kubernetes_works_when_pasted: "docs/src/howto/load-kubernetes.md",
    howto_load_test_https_works_when_pasted: "docs/src/howto/load-test-https.md",
    howto_load_scenario_works_when_pasted: "docs/src/howto/load-scenario.md",
    howto_load_from_access_log_works_when_pasted: "docs/src/howto/load-from-access-log.md",
    howto_log_rotation_works_when_pasted: "docs/src/howto/log-rotation.md",
    howto_logs_to_stdout_works_when_pasted: "docs/src/howto/logs-to-stdout.md",
    howto_mime_types_works_when_pasted: "docs/src/howto/mime-types.md",
    howto_nfs_works_when_pasted: "docs/src/howto/nfs.md",
    howto_overload_works_when_pasted: "docs/src/howto/overload.md",
    howto_packages_works_when_pasted: "docs/src/howto/packages.md",
    howto_pandas_polars_duckdb_works_when_pasted: "docs/src/howto/pandas-polars-duckdb.md",
    howto_php_fastcgi_works_when_pasted: "docs/src/howto/php-fastcgi.md",
    howto_port_80_without_root_works_when_pasted: "docs/src/howto/port-80-without-root.md",
    howto_precompressed_files_works_when_pasted: "docs/src/howto/precompressed-files.md",
    howto_prometheus_works_when_pasted: "docs/src/howto/prometheus.md",
    howto_reload_works_when_pasted: "docs/src/howto/reload.md",
    howto_restrict_access_works_when_pasted: "docs/src/howto/restrict-access.md",
    howto_reverse_proxy_works_when_pasted: "docs/src/howto/reverse-proxy.md",
    howto_sandbox_works_when_pasted: "docs/src/howto/sandbox.md",
    howto_single_page_app_works_when_pasted: "docs/src/howto/single-page-app.md",
    howto_status_page_works_when_pasted: "docs/src/howto/status-page.md",
    howto_systemd_works_when_pasted: "docs/src/howto/systemd.md",
    howto_trace_requests_works_when_pasted: "docs/src/howto/trace-requests.md",
    howto_virtual_hosts_works_when_pasted: "docs/src/howto/virtual-hosts.md",
}

#[test]
fn every_page_is_run_when_it_is_a_tutorial_or_a_recipe() {
    let mut there = BTreeSet::from(["README.md".to_owned()]);
    for part in ["docs/src/tutorials", "docs/src/howto"] {
        for entry in fs::read_dir(repository().join(part)).expect("a directory") {
            let name = entry.expect("an entry").file_name();
            there.insert(format!("{part}/{}", name.to_string_lossy()));
        }
    }
    let run: BTreeSet<String> = PAGES.iter().map(|&path| path.to_owned()).collect();
    assert_eq!(run, there);
}

fn block(line: usize, kind: Kind, text: &str) -> Block {
    let text = text.to_owned();
    Block { line, kind, text }
}

#[test]
fn blocks_are_found_with_their_lines_when_a_page_is_read() {
    let text = "<!-- needs: nginx, cc -->\n```sh run\ntrue\n```\n<!-- machine\nb\n-->\n\
        ```toml file=a.toml\nx = 1\n```\n```json\n{}\n```\n```sh skip: no root\nc\n```\n```text output\nd\n```\n";
    let page = parse(text).expect("a page");
    let expected = vec![
        block(3, Kind::Run, "true\n"),
        block(6, Kind::Run, "b\n"),
        block(9, Kind::File("a.toml".to_owned()), "x = 1\n"),
        block(15, Kind::Skipped("no root".to_owned()), "c\n"),
        block(18, Kind::Output, "d\n"),
    ];
    assert_eq!(page.needs, ["nginx", "cc"]);
    assert_eq!(page.blocks, expected);
}

#[test]
fn page_is_an_error_when_a_block_does_not_say_whether_it_is_run() {
    for text in [
        "```sh\ntrue\n```\n",
        "```toml\n```\n",
        "```sh skip:\n```\n",
        "```sh rum\n```\n",
        "```sh run\n",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn missing_line_is_named_when_the_output_lacks_it_or_has_another_order() {
    let printed = "HTTP/1.1 200 OK\nDate: today\nETag: \"1\"\n";
    for good in ["HTTP/1.1 200 OK\nETag: …\n", "…200…\n", "Date: …day\n", ""] {
        assert_eq!(missing_line(good, printed), None, "{good}");
    }
    assert_eq!(missing_line("ETag: …\nDate: …\n", printed), Some("Date: …"));
    assert_eq!(
        missing_line("HTTP/1.1 200\n", printed),
        Some("HTTP/1.1 200")
    );
    assert_eq!(missing_line("Date: …x\n", printed), Some("Date: …x"));
}

/// Runs a page of these blocks.
fn outcome(text: &str) -> Outcome {
    machine::run("a page", &parse(text).expect("a page"))
}

/// Needs: root: makes a network, a mount and a process namespace
#[test]
fn failure_names_the_block_when_a_command_fails_or_an_output_is_wrong() {
    let passed = outcome(
        "```sh run background\npython3 -m http.server 8080\n```\n```sh run\necho a b\n```\n```text output\na …\n```\n",
    );
    if let Outcome::NoMachine(reason) = passed {
        return skip(&format!("no machine of its own: {reason}"));
    }
    assert!(matches!(passed, Outcome::Passed), "{passed:?}");
    for (text, why) in [
        ("```sh run\ntrue\nfalse\n```\n", "line 2: a command failed"),
        (
            "```sh run\necho a\n```\n```text output\nb\n```\n",
            "line 5: the line `b` is missing",
        ),
        ("```sh run background\necho gone\n```\n", "it has ended"),
    ] {
        let Outcome::Failed(found) = outcome(text) else {
            panic!("{text} does not fail");
        };
        assert!(found.contains(why), "{found}");
    }
}

/// Needs: root: makes a network, a mount and a process namespace
#[test]
fn nothing_is_left_when_a_page_leaves_processes_and_files_behind() {
    let mark = Path::new("/etc/headway-guide-test");
    let passed = outcome(&format!(
        "```sh run\nsleep 1000 & echo $! >{}\n```\n",
        mark.display()
    ));
    if let Outcome::NoMachine(reason) = passed {
        return skip(&format!("no machine of its own: {reason}"));
    }
    assert!(matches!(passed, Outcome::Passed), "{passed:?}");
    assert!(!mark.exists());
    let page = "<!-- host process numbers -->\n```sh run\nenv -i sleep 987654 &\n```\n";
    let passed = outcome(page);
    assert!(matches!(passed, Outcome::Passed), "{passed:?}");
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let left = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    assert_eq!(left.filter(|line| line == b"sleep\0987654\0").count(), 0);
}
