//! Output into a pipe whose reader has closed it, like `| head`.

use std::io::pipe;
use std::process::{Command, Output, Stdio};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../script/scripts");

/// Runs the program with a line of arguments and these outputs.
fn run(line: &str, stdout: Stdio, stderr: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fullsend"))
        .args(line.split(' '))
        .stdout(stdout)
        .stderr(stderr)
        .output()
        .expect("the program starts")
}

/// Returns a pipe whose reading end is closed.
fn broken() -> Stdio {
    pipe().expect("a pipe").1.into()
}

#[test]
fn a_closed_pipe_ends_the_program_silently() {
    for line in [
        "lab list",
        "lab run tso-split",
        "lab run tso-split --json",
        "lab trace tso-split",
        &format!("script {SCRIPTS}"),
        "perf rr --time 0.1",
        "perf rr --time 0.1 --json",
        "perf idle --connections 2",
        "perf serve --kernel --bind 127.0.0.1:0",
    ] {
        let out = run(line, broken(), Stdio::piped());
        let errors = String::from_utf8_lossy(&out.stderr);
        // The status that a shell reports for a program that SIGPIPE ended.
        assert_eq!((out.status.code(), &*errors), (Some(141), ""), "{line}");
    }
}

#[test]
fn unprintable_errors_set_the_exit_status() {
    let out = run("script /nosuch.pkt", Stdio::null(), broken());
    assert_eq!(out.status.code(), Some(1));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let out = run("lab list", full.expect("/dev/full").into(), Stdio::piped());
    let errors = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        errors.starts_with("error: ") && !errors.contains("panicked"),
        "{errors}"
    );
}
