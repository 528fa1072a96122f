//! Sets the SONAME of the library, which programs linked with it look up at their start.

fn main() {
    // The number changes with the C ABI, when programs must be linked again.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfullsend.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
