//! Tests of the examples, compiled with the header only, against the kernel's TCP over a TUN.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{EXAMPLES, Running, command, compile, compile_file, in_namespace, temp_dir};

const SETTINGS: &str = "tun=fs0,address=10.9.0.2/24,kernel_address=10.9.0.1/24";
const STRICT: [&str; 4] = ["-std=c11", "-Wall", "-Wextra", "-Werror"];

fn example(dir: &Path, name: &str) -> PathBuf {
    let source = Path::new(EXAMPLES).join(name).with_extension("c");
    compile_file("cc", &source, &dir.join(name), &STRICT)
}

/// Creates a page larger than all buffers, and starts a web server on the kernel's TCP that serves
/// it.
fn start_kernel_server(dir: &Path) -> (Vec<u8>, Running) {
    let page: Vec<u8> = (0..2_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    fs::write(dir.join("page"), &page).unwrap();
    // It prints a line once it listens.
    let code = "import http.server, os, sys; os.chdir(sys.argv[1]); \
                s = http.server.ThreadingHTTPServer(('0.0.0.0', 8000), \
                http.server.SimpleHTTPRequestHandler); print('ready', flush=True); \
                s.serve_forever()";
    let mut python = Command::new("python3");
    python.args(["-c", code]).arg(dir).stderr(Stdio::null());
    let mut server = Running::start(&mut python);
    wait_until_ready(&mut server);
    (page, server)
}

fn wait_until_ready(server: &mut Running) {
    let mut line = String::new();
    let out = server.0.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
}

fn check(output: &Output, page: &[u8]) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(log.contains("200 OK"), "{log}");
    assert!(output.stdout == page, "{} bytes", output.stdout.len());
}

#[test]
fn fetch_c_and_fetch_py_fetch_a_page_from_a_kernel_server() {
    in_namespace(|| {
        let dir = temp_dir("fetch");
        let (page, _server) = start_kernel_server(&dir);
        let arguments = [SETTINGS, "10.9.0.1", "8000", "/page"];
        let fetch = example(&dir, "fetch");
        check(&command(fetch).args(arguments).output().unwrap(), &page);
        let fetch = Path::new(EXAMPLES).join("fetch.py");
        check(&command(fetch).args(arguments).output().unwrap(), &page);
        fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn curl_fetches_from_serve_c_over_a_tun() {
    serve(SETTINGS);
}

#[test]
fn curl_fetches_from_serve_c_over_a_tap() {
    serve("tap=fs1,address=10.9.0.2/24,kernel_address=10.9.0.1/24");
}

/// Starts our server and fetches from it with four instances of curl.
fn serve(settings: &'static str) {
    in_namespace(move || {
        let dir = temp_dir(&format!("serve-{}", &settings[..3]));
        let mut serve = command(example(&dir, "serve"));
        serve
            .args([settings, "8000", "3000000"])
            .stdin(Stdio::piped());
        let mut server = Running::start(&mut serve);
        wait_until_ready(&mut server);
        let curls: Vec<_> = (0..4)
            .map(|_| {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "--max-time", "30", "http://10.9.0.2:8000/"]);
                curl.stdout(Stdio::piped()).spawn().expect("curl")
            })
            .collect();
        for curl in curls {
            let output = curl.wait_with_output().unwrap();
            assert!(output.status.success());
            assert_eq!(output.stdout.len(), 3_000_000);
            assert!(output.stdout.starts_with(b"abcdef"));
        }
        // It exits at the end of its standard input.
        drop(server.0.stdin.take());
        assert!(server.0.wait().unwrap().success());
        fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn opening_an_unavailable_device_reports_an_error_text() {
    let dir = temp_dir("words");
    let fetch = example(&dir, "fetch");
    let arguments = ["tun=fs0,adress=10.9.0.2/24", "10.9.0.1", "80", "/"];
    let output = command(fetch).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("\"adress\""), "{text}");
    fs::remove_dir_all(dir).unwrap();
}

/// Accepts 50 connections, writes to each, closes it, and ends with the stack.
const FAREWELL: &str = r#"
#include <fullsend.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static void fail(const char *call) { perror(call); _Exit(1); }

int main(int argc, char **argv) {
    fs_stack *stack = fs_stack_create(argv[argc - 1], NULL);
    if (stack == NULL) fail("create");
    int listener = fs_socket(stack, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
    if (fs_bind(listener, (struct sockaddr *)&any, sizeof any) < 0) fail("bind");
    if (fs_listen(listener, 64) < 0) fail("listen");
    printf("ready\n");
    fflush(stdout);
    int fds[50];
    for (int i = 0; i < 50; i++)
        if ((fds[i] = fs_accept(listener, NULL, NULL)) < 0) fail("accept");
    static char page[20000];
    memset(page, 'x', sizeof page);
    for (int i = 0; i < 50; i++) {
        if (fs_write(fds[i], page, sizeof page) != (ssize_t)sizeof page) fail("write");
        if (fs_close(fds[i]) < 0) fail("close");
    }
    if (fs_stack_shutdown(stack, 60000) < 0) fail("shutdown");
    if (fs_stack_shutdown(stack, 0) == 0 || errno != EINVAL) fail("a destroyed stack");
    return 0;
}
"#;

#[test]
fn fs_stack_shutdown_delivers_what_closed_sockets_have_written() {
    in_namespace(|| {
        let dir = temp_dir("farewell");
        let program = compile(&dir, "farewell.c", FAREWELL, &STRICT);
        let mut server = Running::start(command(program).arg(SETTINGS));
        wait_until_ready(&mut server);
        let client = "import socket, sys; \
             all = [socket.create_connection(('10.9.0.2', 7), 60) for _ in range(50)]; \
             whole = [s.makefile('rb').read() == b'x' * 20000 for s in all]; \
             print(whole.count(True))";
        let output = Command::new("python3").args(["-c", client]).output();
        let output = output.unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "50\n", "{log}");
        assert!(server.0.wait().unwrap().success());
    });
}
