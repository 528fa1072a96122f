//! Helpers of the tests.
#![allow(dead_code, reason = "each test file uses only some items")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

/// The directory of the header.
pub(crate) const HEADER_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
/// The directory of the examples.
pub(crate) const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// Returns the path of the library that cargo has built beside this test (see Cargo.toml).
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let library = profile.join("examples/libfullsend.so");
    assert!(
        library.exists(),
        "{} is not there: run the tests as `cargo test -p fullsend-capi`, or build it with \
         `cargo build -p fullsend-capi --example fullsend`",
        library.display()
    );
    library
}

/// Creates a directory for this test.
pub(crate) fn temp_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("fullsend-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Compiles `code` with the header and the library, and nothing else.
pub(crate) fn compile(dir: &Path, name: &str, code: &str, flags: &[&str]) -> PathBuf {
    let source = dir.join(name);
    std::fs::write(&source, code).unwrap();
    let is_cxx = source.extension().is_some_and(|e| e == "cc");
    let compiler = if is_cxx { "c++" } else { "cc" };
    compile_file(compiler, &source, &source.with_extension("out"), flags)
}

pub(crate) fn compile_file(
    compiler: &str,
    source: &Path,
    program: &Path,
    flags: &[&str],
) -> PathBuf {
    let status = Command::new(compiler)
        .args(flags)
        .arg(format!("-I{HEADER_DIR}"))
        .arg(source)
        .arg(format!("-L{}", library().parent().unwrap().display()))
        .args(["-lfullsend", "-pthread", "-o"])
        .arg(program)
        .status()
        .expect("a C compiler, cc");
    assert!(status.success(), "{} does not compile", source.display());
    program.to_owned()
}

/// Returns a command for a program that needs the library.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library().parent().unwrap());
    command.env("FULLSEND_LIBRARY", library());
    command
}

/// Runs `test` in a thread with a network namespace of its own, which processes it starts share.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !geteuid().is_root() {
        println!("skipped: needs root, for a network namespace and a TUN device");
        return;
    }
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        test();
    });
    thread.join().unwrap();
}

/// A process that is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
