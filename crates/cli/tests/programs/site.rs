//! A site with CGI programs, its server, and strict clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::executable;
use crate::serving::Server;

/// A document root with a directory of programs beside it.
pub struct Site {
    directory: TempDir,
}

impl Site {
    pub fn new() -> Site {
        let directory = tempfile::tempdir().unwrap();
        for name in ["root", "cgi", "notes"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::write(directory.path().join("root/file.txt"), "a file\n").unwrap();
        Site { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Lets every user into the directories, and write notes.
    pub fn open_to_all(&self) {
        for name in ["", "root", "cgi", "notes"] {
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
    }

    /// A file for a program's notes.
    pub fn note(&self, name: &str) -> PathBuf {
        self.path("notes").join(name)
    }

    /// Adds a shell script; `{notes}` is a directory for its notes.
    pub fn program(&self, name: &str, script: &str) {
        let script = script.replace("{notes}", &self.path("notes").display().to_string());
        self.file(
            &format!("cgi/{name}"),
            &format!("#!/bin/sh\n{script}\n"),
            0o755,
        );
    }

    pub fn file(&self, name: &str, text: &str, mode: u32) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        executable::write(&path, text, mode);
    }

    /// A server with one worker and the programs at `/cgi-bin/`; `more` is added to that location.
    pub fn serve(&self, more: &str) -> Server {
        self.serve_with("", more)
    }

    /// A server like that of [`Site::serve`], with `top` added to its settings.
    pub fn serve_with(&self, top: &str, more: &str) -> Server {
        let cgi = self.path("cgi");
        let location = format!(
            "[[location]]\nprefix = \"/cgi-bin/\"\ncgi = true\nroot = {:?}\n{more}\n",
            cgi.display()
        );
        self.serve_configured(&format!("{top}\n{location}"))
    }

    pub fn serve_configured(&self, text: &str) -> Server {
        let path = self.path("headway.toml");
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        Server::start_in(&self.path("root"), &["--workers", "1", "--config", path])
    }
}

/// A parsed response; its body without framing.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub fn send(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    stream.write_all(bytes.as_ref()).unwrap();
}

/// Reads one response, however its body is framed. A premature end is an error.
pub fn receive(stream: &mut TcpStream) -> Result<Response, String> {
    receive_response(stream, false)
}

/// Reads one response to HEAD.
pub fn receive_head(stream: &mut TcpStream) -> Result<Response, String> {
    receive_response(stream, true)
}

fn receive_response(stream: &mut TcpStream, bodiless: bool) -> Result<Response, String> {
    let head = until(stream, b"\r\n\r\n")?;
    let head = String::from_utf8(head).map_err(|error| error.to_string())?;
    let status = head.get(9..12).and_then(|digits| digits.parse().ok());
    let mut response = Response {
        status: status.ok_or_else(|| format!("no status: {head:?}"))?,
        head,
        body: Vec::new(),
    };
    if bodiless || matches!(response.status, 204 | 304) {
        return Ok(response);
    }
    response.body = match (
        response.field("Content-Length"),
        response.field("Transfer-Encoding"),
    ) {
        (Some(length), None) => exactly(stream, length.parse().unwrap())?,
        (None, Some("chunked")) => chunks(stream)?,
        (None, None) => {
            let mut rest = Vec::new();
            stream
                .read_to_end(&mut rest)
                .map_err(|error| error.to_string())?;
            rest
        }
        other => return Err(format!("framed as {other:?}")),
    };
    Ok(response)
}

fn until(stream: &mut TcpStream, end: &[u8]) -> Result<Vec<u8>, String> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(end) {
        let read = stream.read_exact(&mut byte);
        read.map_err(|error| format!("{error} after {:?}", String::from_utf8_lossy(&bytes)))?;
        bytes.push(byte[0]);
    }
    Ok(bytes)
}

fn exactly(stream: &mut TcpStream, length: usize) -> Result<Vec<u8>, String> {
    let mut body = vec![0; length];
    stream
        .read_exact(&mut body)
        .map_err(|error| error.to_string())?;
    Ok(body)
}

fn chunks(stream: &mut TcpStream) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let size = String::from_utf8(until(stream, b"\r\n")?).unwrap();
        let size = usize::from_str_radix(size.trim_end(), 16).map_err(|error| error.to_string())?;
        body.extend(exactly(stream, size)?);
        if until(stream, b"\r\n")? != b"\r\n" {
            return Err("a chunk does not end where it says".into());
        }
        if size == 0 {
            return Ok(body);
        }
    }
}

/// One request on a connection of its own.
pub fn exchange(server: &Server, request: impl AsRef<[u8]>) -> Response {
    let mut stream = server.connect();
    send(&mut stream, request);
    receive(&mut stream).unwrap()
}

pub fn get(server: &Server, path: &str) -> Response {
    exchange(server, format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"))
}

pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A counter of the whole server.
pub fn counter(server: &Server, name: &str) -> u64 {
    let status = server.status();
    let value = &status["total"]["counters"][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name}"))
}

/// The numbers that a program has noted in a file, once they are complete.
pub fn numbers(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

/// Checks that the server still answers and its loop has never blocked, except for
/// `fork-in-server`, where creating a process blocks.
pub fn is_well(server: &Server) {
    let response = get(server, "/file.txt");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "a file\n")
    );
    let status = server.status();
    let sleeps = status["total"]["trace"]["sleeps"].as_array().unwrap();
    let others = sleeps
        .iter()
        .filter(|sleep| sleep["call"] != "fork (waits)");
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&Value>::new());
    assert_eq!(status["master"]["worker_deaths"], 0);
}

/// Bytes in which each position differs from its neighbours.
pub fn contents(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}
