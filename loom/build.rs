//! The modules of the server choose loom's atomics by this condition.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
