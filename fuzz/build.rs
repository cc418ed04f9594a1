//! Compiles the oracle of the target http2_oracle, if nghttp2 is there (`scripts/setup fuzz`).

use std::path::Path;

const SOURCE: &str = "../crates/http2/tests/oracles/nghttp2.c";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nghttp2)");
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=build.rs");
    if Path::new("/usr/include/nghttp2/nghttp2.h").exists() {
        cc::Build::new().file(SOURCE).compile("nghttp2_oracle");
        println!("cargo::rustc-link-arg-bin=http2_oracle=-lnghttp2");
        println!("cargo::rustc-cfg=nghttp2");
    }
}
