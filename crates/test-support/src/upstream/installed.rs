//! Starts php-fpm, uWSGI and nginx for tests: each listens on `socket` in a directory of its own.

use std::fs;
use std::path::Path;

use super::{TestServer, scripts};

/// Arranges php-fpm: one pool with two processes. Only root needs to name a user, and must confirm
/// that root is meant.
fn arrange_php(directory: &Path) -> Vec<String> {
    let file = directory.join("fpm.conf");
    let text = format!(
        "[global]\ndaemonize = no\nerror_log = /dev/stderr\nlog_level = error\n[test]\nuser = root\ngroup = root\n\
         listen = {}/socket\npm = static\npm.max_children = 2\ncatch_workers_output = yes\n\
         php_admin_value[upload_max_filesize] = 8M\nphp_admin_value[post_max_size] = 9M\n\
         php_admin_value[upload_tmp_dir] = {}\nphp_admin_value[display_errors] = 0\nphp_admin_value[log_errors] = 1\n",
        directory.display(),
        directory.display(),
    );
    fs::write(&file, text).unwrap();
    ["-F", "-R", "-y"]
        .map(str::to_owned)
        .into_iter()
        .chain([file.display().to_string()])
        .collect()
}

/// Starts php-fpm.
pub fn php(test: &str) -> Option<TestServer> {
    TestServer::start(
        test,
        &["php-fpm8.2", "php-fpm8.3", "php-fpm8.4", "php-fpm"],
        arrange_php,
    )
}

fn arrange_uwsgi(directory: &Path) -> Vec<String> {
    let application = scripts("scgi").join("app.py");
    [
        "--master",
        "--need-app",
        "--die-on-term",
        "--disable-logging",
        "--processes=2",
        "--buffer-size=32768",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([
        format!("--scgi-socket={}/socket", directory.display()),
        format!("--wsgi-file={}", application.display()),
    ])
    .collect()
}

/// A Python application behind uWSGI's SCGI.
pub fn uwsgi(test: &str) -> Option<TestServer> {
    TestServer::start(
        test,
        &["uwsgi_python3", "uwsgi_python311", "uwsgi"],
        arrange_uwsgi,
    )
}

/// The content of nginx's `a.txt`.
pub const TEXT: &str = "some text that nginx serves\n";

fn arrange_nginx(directory: &Path) -> Vec<String> {
    let path = directory.display();
    fs::write(directory.join("a.txt"), TEXT).unwrap();
    fs::write(directory.join("large.bin"), vec![b'x'; 3_000_000]).unwrap();
    let text = format!(
        r#"daemon off; pid {path}/pid; error_log stderr; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; default_type text/plain; client_max_body_size 1m;
  client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;
  uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
  server {{
    listen unix:{path}/socket; root {path};
    location /chunked/ {{ alias {path}/; ssi on; ssi_types text/plain application/octet-stream; }}
    location /request {{ return 200 "$host|$http_forwarded|$http_x_forwarded_for|$http_via|$http_x_own|$http_connection|$request_uri"; }}
    location /old {{ keepalive_timeout 0; try_files /a.txt =404; }}
  }}
}}
"#
    );
    // Otherwise workers of root's nginx would run as `nobody`, which cannot read this directory.
    let text = match rustix::process::geteuid().is_root() {
        true => format!("user root;\n{text}"),
        false => text,
    };
    fs::write(directory.join("nginx.conf"), text).unwrap();
    ["-p", ".", "-e", "stderr", "-c"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("{path}/nginx.conf")])
        .collect()
}

/// nginx as an HTTP/1.1 server with a few files, and `/request`, which returns the request it got.
pub fn nginx(test: &str) -> Option<TestServer> {
    TestServer::start(test, &["nginx"], arrange_nginx)
}
