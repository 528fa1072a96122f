//! Tests a C program whose threads wait in calls, on two stacks joined by callbacks.

mod common;

use std::path::Path;

use common::{command, compile_file, temp_dir};

#[test]
fn waiting_threads_are_woken_as_documented_in_the_header() {
    let dir = temp_dir("threads");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/threads.c");
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"];
    let program = compile_file("cc", &source, &dir.join("threads"), &strict);
    let output = command(program).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert_eq!(output.stdout, b"done\n");
    std::fs::remove_dir_all(dir).unwrap();
}
