//! Runs the example of a host without I/O.

use std::path::Path;
use std::process::Command;

#[test]
fn the_sans_io_example_echoes_a_mebibyte() {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let example = profile.join("examples/sans_io");
    assert!(
        example.exists(),
        "{} is not there: run the tests as `cargo test -p fullsend-stack`",
        example.display()
    );
    // `timeout` ends a program that hangs.
    let output = Command::new("timeout")
        .arg("60")
        .arg(example)
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    assert!(out.contains("1048576 bytes came back"), "{out}");
}
