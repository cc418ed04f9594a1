//! A Python program behind uWSGI, by SCGI.

use crate::arrange;
use crate::site::*;

#[test]
fn python_program_answers_when_it_owns_a_prefix() {
    let Some(peer) = arrange::uwsgi("python_program_answers_when_it_owns_a_prefix") else {
        return;
    };
    let site = Site::new();
    let server = site.serve_configured(&format!(
        "[[location]]\nprefix = \"/app\"\nscgi = \"unix:{}\"\nbody-max = \"8MiB\"\n",
        peer.socket().display()
    ));
    let known = get(&server, "/app/environment?a=b");
    for line in [
        "SCRIPT_NAME=/app",
        "PATH_INFO=/environment",
        "QUERY_STRING=a=b",
    ] {
        assert!(
            known.text().lines().any(|found| found == line),
            "{line} is not in\n{}",
            known.text()
        );
    }
    let body = contents(2_000_000);
    assert!(ask(&server, post("/app/echo", &body)).body == body);
    let chunked = "POST /app/echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(ask(&server, chunked).text(), "abcde");
    assert_eq!(
        get(&server, "/app/parts").text(),
        "part 0\npart 1\npart 2\npart 3\npart 4\n"
    );
    assert_eq!(
        get(&server, "/app/redirect").field("Location"),
        Some("/elsewhere")
    );
    assert_eq!(get(&server, "/app/none").status, 204);
    assert_eq!(get(&server, "/app/absent").status, 404);
    assert_eq!(get(&server, "/apple").status, 404);
    is_well(&server);
}
