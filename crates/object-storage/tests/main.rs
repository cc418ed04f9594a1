//! Uploads and downloads against a server that checks signatures, and through a proxy that cuts connections.

mod storage;
mod support;
