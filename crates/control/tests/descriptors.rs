//! A control socket outlives a process that has no file descriptors left for a time. The test uses
//! up the descriptors of its process, so it is the only one here.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fullsend_control::{Inspect, Reply, Server};
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A stack that is gone.
struct Gone;

impl Inspect for Gone {
    fn with_host<R>(&self, _: usize, _: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R {
        unreachable!("no request reaches a stack that is gone")
    }

    fn change<R>(&self, _: usize, _: impl FnOnce(&mut Host, Instant) -> R) -> Result<R, String> {
        unreachable!("no request reaches a stack that is gone")
    }

    fn started(&self) -> u64 {
        0
    }

    fn link_name(&self) -> &'static str {
        ""
    }
}

/// No descriptors are left.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Keeps the server's thread from accept(2), which reserves a descriptor before it waits.
fn until_exhausted() {
    while !EXHAUSTED.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

#[test]
fn a_client_is_accepted_when_descriptors_are_free_again() {
    let path = std::env::temp_dir().join(format!("fullsend-descriptors-{}", std::process::id()));
    let server = Server::open(&path, Weak::<Gone>::new(), until_exhausted).unwrap();
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(64),
        ..limit
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // One descriptor for the client's end, none for the server's.
    files.pop();
    let client = UnixStream::connect(&path).unwrap();
    EXHAUSTED.store(true, Ordering::Release);
    let mut lines = BufReader::new(&client);
    let mut writer = &client;
    writer.write_all(b"{\"cmd\":\"links\"}\n").unwrap();
    let mut line = Vec::new();
    // Time for a failed attempt to accept the client.
    let pause = Some(Duration::from_millis(300));
    client.set_read_timeout(pause).unwrap();
    lines.read_until(b'\n', &mut line).unwrap_err();

    files.clear();
    client.set_read_timeout(None).unwrap();
    lines.read_until(b'\n', &mut line).unwrap();
    assert_eq!(Reply::parse(&line), Ok(Reply::stopped()));
    drop(server);
    assert!(UnixStream::connect(&path).is_err());
}
