//! How a CGI program is started for a request: path, arguments, environment, directory.
//!
//! Sources: RFC 3875 sections 4 (variables), 5 (`nph-`), 7.2 (the current directory is the
//! program's).

use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};

use headway_gateway::cgi::{Context, Variables};
use headway_gateway::client_address::UNIX_CLIENT;
use headway_gateway::{Request, TlsClient};
use headway_request::{ProgramName, VirtualHost};
use headway_spawner::wire::{Launch, PROCESSES_DEFAULT};

use super::{Route, Routes};

/// `PATH` of programs, unless the configuration sets another one.
const PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The addresses of a request.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints<'c> {
    /// The server's address.
    pub local: SocketAddr,
    /// The client's address. Its port is 0 if only a proxy knows it.
    pub remote: SocketAddr,
    /// The sender of the request: the client, or a proxy.
    pub sender: SocketAddr,
    /// Whether that is a trusted proxy.
    pub is_trusted: bool,
    /// Whether the connection speaks TLS.
    pub is_tls: bool,
    /// The TLS of the client's connection.
    pub tls: Option<TlsClient<'c>>,
}

impl Endpoints<'_> {
    /// The client, if a trusted proxy has named it or speaks for itself.
    pub(super) fn named_client(&self) -> Option<IpAddr> {
        self.is_trusted.then(|| self.remote.ip().to_canonical())
    }

    /// Whether the client uses TLS: here, or as a trusted proxy says.
    fn is_https(&self, request: &Request<'_>) -> bool {
        let is = |value: &[u8]| value.eq_ignore_ascii_case(b"https");
        let named = || request.values(b"x-forwarded-proto").next().is_some_and(is);
        self.is_tls || (self.is_trusted && named())
    }
}

/// The CGI variables of a request.
pub fn variables(
    routes: &Routes,
    route: &Route,
    site: &VirtualHost,
    program: &ProgramName,
    request: &Request<'_>,
    endpoints: Endpoints<'_>,
    body_bytes: Option<u64>,
) -> Variables {
    let location = &route.location;
    // IPv6 addresses need brackets (RFC 3875, 4.1.14).
    let server_name = match endpoints.local.ip().to_canonical() {
        // The name is that of the Host header.
        _ if request.head.host.is_some() => String::new(),
        IpAddr::V6(address) => format!("[{address}]"),
        UNIX_CLIENT => "localhost".to_owned(),
        address => address.to_string(),
    };
    Variables::new(
        request,
        &Context {
            script_name: &program.script_name,
            path_info: &program.path_info,
            script_filename: &program.file,
            document_root: routes.document_root(site),
            remote: endpoints.remote,
            local: endpoints.local,
            server_name: server_name.as_bytes(),
            server_software: b"Headway",
            https: endpoints.is_https(request),
            tls: endpoints.tls,
            body_bytes,
            user: None,
            authorization: location.passes_authorization(),
        },
    )
}

/// The launch order for `program` with these variables. `process_tag`: the tag of its processes, or
/// 0.
pub fn launch(
    route: &Route,
    program: &ProgramName,
    variables: Variables,
    process_tag: u64,
) -> Launch {
    let location = &route.location;
    let path = string(&program.file);
    Launch {
        process_tag,
        memory_bytes_max: location.memory_max_bytes,
        cpu_s_max: location.cpu_s_max,
        open_files_max: location.open_files_max,
        processes_max: location.processes_max.unwrap_or(PROCESSES_DEFAULT),
        directory: string(directory_of(&program.file)),
        arguments: vec![path.clone()],
        path,
        environment: environment(variables, &location.variables),
        joined: false,
    }
}

/// The launch order for the program of a direct location, which gets its requests later.
/// `process_tag`: the tag of its processes, or 0.
pub fn launch_direct(route: &Route, command: &[String], process_tag: u64) -> Launch {
    let location = &route.location;
    let program = command.first().map_or(&b""[..], |word| word.as_bytes());
    let mut variables = Variables::default();
    variables.add(b"HEADWAY_DIRECT", b"1");
    Launch {
        process_tag,
        memory_bytes_max: location.memory_max_bytes,
        cpu_s_max: location.cpu_s_max,
        open_files_max: location.open_files_max,
        processes_max: location.processes_max.unwrap_or(PROCESSES_DEFAULT),
        directory: string(directory_of(program)),
        path: string(program),
        arguments: command.iter().map(|word| string(word.as_bytes())).collect(),
        environment: environment(variables, &location.variables),
        joined: true,
    }
}

/// The configured variables come last and do not replace those of the request.
fn environment(
    mut variables: Variables,
    configured: &std::collections::BTreeMap<String, String>,
) -> Vec<CString> {
    for (name, value) in configured {
        variables.add(name.as_bytes(), value.as_bytes());
    }
    variables.add(b"PATH", PATH);
    let mut environment = Vec::new();
    variables.write_environment(&mut environment);
    let strings = environment.split(|byte| *byte == 0);
    strings
        .filter(|string| !string.is_empty())
        .map(string)
        .collect()
}

/// Whether the program writes the status line and framing of its response itself.
pub fn is_nph(program: &ProgramName) -> bool {
    name_of(&program.file).starts_with(b"nph-")
}

fn directory_of(file: &[u8]) -> &[u8] {
    let length = file.len() - name_of(file).len();
    match &file[..length] {
        b"/" => b"/",
        directory => directory.strip_suffix(b"/").unwrap_or(directory),
    }
}

fn name_of(file: &[u8]) -> &[u8] {
    file.rsplit(|byte| *byte == b'/').next().unwrap_or(file)
}

/// Neither paths nor variables contain NUL: the request parser and the configuration check reject
/// it.
fn string(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_file_determines_directory_and_nph() {
        for (file, directory, nph) in [
            ("/srv/cgi/a", "/srv/cgi", false),
            ("/a", "/", false),
            ("/srv/nph-a", "/srv", true),
            ("/nph-dir/a", "/nph-dir", false),
        ] {
            assert_eq!(
                directory_of(file.as_bytes()),
                directory.as_bytes(),
                "{file}"
            );
            let program = ProgramName {
                route: 0,
                script_name: Vec::new(),
                path_info: Vec::new(),
                file: file.as_bytes().to_vec(),
            };
            assert_eq!(is_nph(&program), nph, "{file}");
        }
    }

    #[test]
    fn configured_variables_do_not_replace_those_of_the_request() {
        let mut variables = Variables::default();
        variables.add(b"REMOTE_ADDR", b"127.0.0.1");
        let configured = [("REMOTE_ADDR", "forged"), ("PATH", "/opt"), ("EMPTY", "")];
        let configured = configured.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = environment(variables, &configured.into_iter().collect());
        let expected = [c"REMOTE_ADDR=127.0.0.1", c"EMPTY=", c"PATH=/opt"];
        assert_eq!(environment, expected.map(CString::from));
    }
}
