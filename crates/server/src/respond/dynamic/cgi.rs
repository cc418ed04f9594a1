//! A program started for one request: what it is called with.
//!
//! Sources: RFC 3875 sections 4 (variables), 5 (`nph-`), 7.2 (the current directory is the
//! program's).

use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};

use headway_gateway::Request;
use headway_gateway::cgi::{Context, Variables};

use super::{Place, Places};
use crate::forker::wire::{Launch, PROCESSES_UNSAID};
use crate::request::{ProgramName, VirtualHost};

/// Where programs find others, unless the configuration says something else.
const PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// Both ends of the client's connection.
#[derive(Clone, Copy, Debug)]
pub struct LocalParty {
    /// Ours.
    pub local: SocketAddr,
    /// The client's.
    pub remote: SocketAddr,
}

/// What a program is asked, in variables.
pub fn variables(
    places: &Places,
    place: &Place,
    site: &VirtualHost,
    program: &ProgramName,
    request: &Request<'_>,
    parties: LocalParty,
    body_bytes: Option<u64>,
) -> Variables {
    let location = &place.location;
    // In brackets if need be (RFC 3875, 4.1.14).
    let server_name = match parties.local.ip().to_canonical() {
        IpAddr::V6(address) => format!("[{address}]"),
        address => address.to_string(),
    };
    Variables::new(
        request,
        &Context {
            script_name: &program.script_name,
            path_info: &program.path_info,
            script_filename: &program.file,
            document_root: places.document_root(site),
            remote: parties.remote,
            local: parties.local,
            server_name: server_name.as_bytes(),
            server_software: b"Headway",
            https: false,
            body_bytes,
            user: None,
            authorization: location.passes_authorization(),
        },
    )
}

/// How `program` is started for a request that `variables` describe. `mark`: what it is known by, 0
/// for nothing.
pub fn launch(place: &Place, program: &ProgramName, variables: Variables, mark: u64) -> Launch {
    let location = &place.location;
    let path = string(&program.file);
    Launch {
        mark,
        memory_bytes_max: location.memory_max_bytes,
        processes_max: location.processes_max.unwrap_or(PROCESSES_UNSAID),
        directory: string(directory_of(&program.file)),
        arguments: vec![path.clone()],
        path,
        environment: environment(variables, &location.variables),
        joined: false,
    }
}

/// How the program of a direct location is started: it learns of requests later. `mark`: what it is
/// known by.
pub fn launch_direct(place: &Place, command: &[String], mark: u64) -> Launch {
    let location = &place.location;
    let program = command.first().map_or(&b""[..], |word| word.as_bytes());
    let mut variables = Variables::default();
    variables.add(b"HEADWAY_DIRECT", b"1");
    Launch {
        mark,
        memory_bytes_max: location.memory_max_bytes,
        processes_max: location.processes_max.unwrap_or(PROCESSES_UNSAID),
        directory: string(directory_of(program)),
        path: string(program),
        arguments: command.iter().map(|word| string(word.as_bytes())).collect(),
        environment: environment(variables, &location.variables),
        joined: true,
    }
}

/// The configuration's variables come last, and take no place of a request's.
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

/// The program writes its reply's head and framing itself.
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

/// Neither paths nor variables hold NUL: `http` and the configuration refuse it.
fn string(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_and_kind_follow_from_the_file_when_a_program_is_named() {
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
                place: 0,
                script_name: Vec::new(),
                path_info: Vec::new(),
                file: file.as_bytes().to_vec(),
                document_root: Vec::new(),
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
