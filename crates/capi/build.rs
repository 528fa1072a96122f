//! Gives the library a SONAME, which programs that link with it ask for when they start.

fn main() {
    // The number changes when a program must be linked anew: with a change of the C ABI.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfullsend.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
