//! A process whose address space is exhausted (`ulimit -v`). Needs root.

mod common;

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream as Kernel};
use std::process::Command;
use std::time::Duration;

use common::in_namespace;
use fullsend::{Stack, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

/// Address space of the process, in KiB.
const LIMIT_KIB: u32 = 400_000;
/// Bytes that a socket may queue in each direction.
const BUFFER: usize = 8 << 20;
/// Time limit of calls that would hang.
const LIMIT: Duration = Duration::from_secs(120);
/// Kinds of connection, sent as its first byte.
const ECHO: u8 = b'e';
const GREEDY: u8 = b'g';
/// Environment variable of the child process, which has the limit.
const CHILD: &str = "FULLSEND_MEMORY_LIMIT_CHILD";

/// Runs itself in a child process with the limit, as a process cannot raise its limit again.
#[test]
fn a_process_without_memory_survives_and_keeps_serving() {
    if env::var_os(CHILD).is_some() {
        return in_namespace(run_with_memory_limit);
    }
    let name = "a_process_without_memory_survives_and_keeps_serving";
    let command = format!("ulimit -v {LIMIT_KIB}; exec \"$0\" --exact {name} --nocapture");
    let child = Command::new("sh")
        .args(["-c", &command])
        .arg(env::current_exe().unwrap())
        .env(CHILD, "1")
        // Each arena of malloc reserves address space.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&child.stdout), text(&child.stderr));
    println!("{out}{err}");
    assert!(child.status.success(), "{}", child.status);
}

fn run_with_memory_limit() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let buffer = format!("4096 {BUFFER} {BUFFER}");
    let context = runtime.enter();
    let stack = Stack::builder()
        .tun("fs0")
        .address("10.9.0.2/24")
        .kernel_address("10.9.0.1/24")
        // Only the limit of the process bounds the memory of sockets.
        .sysctl("tcp_mem", "4000000 4000000 4000000")
        .sysctl("tcp_rmem", &buffer)
        .sysctl("tcp_wmem", &buffer)
        .build()
        .unwrap();
    let listener = TcpListener::bind(&stack, "10.9.0.2:80").unwrap();
    drop(context);
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    let mut healthy = [connect(ECHO).unwrap(), connect(ECHO).unwrap()];
    for stream in &mut healthy {
        echo(stream, 10);
    }
    let counter = |name: &str| {
        let all = stack.counters();
        let found = all.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    };
    // Each connection uses up to 16 MiB of the stack's memory.
    let mut greedy = Vec::new();
    while counter("TcpExtTCPMemoryPressures") == 0 {
        assert!(greedy.len() < 200, "the memory does not end");
        greedy.extend(connect(GREEDY).map(fill));
    }
    println!("{} connections took all memory", greedy.len());
    for _ in 0..20 {
        for stream in &mut healthy {
            echo(stream, 10);
        }
        for stream in &mut greedy {
            send(stream);
        }
    }
    let names = ["TcpExtPruneCalled", "TcpExtTCPRcvQDrop"];
    println!("{:?}", names.map(|name| (name, counter(name))));
    assert!(counter("TcpExtPruneCalled") > 0);
    // A new connection is refused now, and accepted once others have ended.
    let drops = counter("TcpExtListenDrops");
    while counter("TcpExtListenDrops") == drops {
        let to = SocketAddr::from(([10, 9, 0, 2], 80));
        let _ = Kernel::connect_timeout(&to, Duration::from_millis(100));
        greedy.iter_mut().for_each(send);
    }
    drop(greedy);
    while connect(ECHO)
        .map(|mut stream| echo(&mut stream, 1))
        .is_none()
    {}
}

/// Echoes, or sends without end and never reads.
async fn serve(mut stream: TcpStream) {
    let mut piece = vec![0; 64 << 10];
    let Ok(GREEDY) = stream.read_u8().await else {
        while let Ok(n @ 1..) = stream.read(&mut piece).await {
            stream.write_all(&piece[..n]).await.unwrap();
        }
        return;
    };
    loop {
        match stream.write_all(&piece).await {
            Ok(()) => {}
            // The test continues when memory is refused.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(_) => return,
        }
    }
}

fn connect(role: u8) -> Option<Kernel> {
    let to = SocketAddr::from(([10, 9, 0, 2], 80));
    let mut stream = Kernel::connect_timeout(&to, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[role]).unwrap();
    Some(stream)
}

fn echo(stream: &mut Kernel, times: usize) {
    for n in 0..times {
        let message = [n as u8; 1000];
        stream.write_all(&message).unwrap();
        let mut back = [0; 1000];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, message);
    }
}

fn fill(mut stream: Kernel) -> Kernel {
    stream.set_nonblocking(true).unwrap();
    send(&mut stream);
    stream
}

/// Sends until the kernel's buffer is full.
fn send(stream: &mut Kernel) {
    let piece = [7; 16 << 10];
    while let Ok(1..) = stream.write(&piece) {}
}
