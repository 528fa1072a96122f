//! Tests of the library in other programs: packetdrill where it is installed, and a C program that
//! bypasses the interface, as packetdrill's `%{ }%` blocks do.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn temp_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("fullsend-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A program that closes the library's descriptors, and reads their options, through libc.
const OTHER_CALLS_PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    void *table[33];
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
    void (*init)(const char *, void **) = (void (*)(const char *, void **))dlsym(
        library, "packetdrill_interface_init");
    init("local=192.168.0.1", table);
    for (int i = 0; i < 33; i++)
        if (table[i] == NULL) return 1;
    int (*open_socket)(void *, int, int, int) = (int (*)(void *, int, int, int))table[2];
    int (*listen_on)(void *, int, int) = (int (*)(void *, int, int))table[4];

    int fd = open_socket(table[0], AF_INET, SOCK_STREAM, 0);
    int type = 0;
    socklen_t len = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_STREAM) return 2;
    struct tcp_info info;
    len = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return 3;
    unsigned memory[9];
    len = sizeof memory;
    if (getsockopt(fd, SOL_SOCKET, 55 /* SO_MEMINFO */, memory, &len) != 0) return 9;
    if (len != sizeof memory) return 10;
    char control[64];
    len = sizeof control;
    if (getsockopt(fd, IPPROTO_TCP, 26 /* TCP_CC_INFO */, control, &len) != 0) return 11;
    int file = open(argv[1], O_RDONLY);
    off_t offset = 1;
    if (sendfile(fd, file, &offset, 100) != -1 || errno != EPIPE || offset != 1) return 12;
    if (close(file) != 0) return 13;
    if (close(fd) != 0) return 4;
    if (listen_on(table[0], fd, 1) != -1 || errno != EBADF) return 5;
    if (fcntl(fd, F_GETFD) != -1) return 6;

    /* The kernel's own still work. */
    int real = socket(AF_INET, SOCK_DGRAM, 0);
    len = sizeof type;
    if (getsockopt(real, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_DGRAM) return 7;
    if (close(real) != 0 || close(real) != -1 || errno != EBADF) return 8;
    puts("done");
    return 0;
}
"#;

#[test]
fn the_preloaded_library_handles_calls_outside_the_interface() {
    let dir = temp_dir("preload");
    let (source, program) = (dir.join("past.c"), dir.join("past"));
    fs::write(&source, OTHER_CALLS_PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(&source).arg("-ldl");
    assert!(cc.status().expect("a C compiler, cc").success());
    let mut run = Command::new(&program);
    run.arg(common::library())
        .env("LD_PRELOAD", common::library());
    let output = run.output().unwrap();
    let code = output.status.code();
    assert_eq!((code, output.stdout.as_slice()), (Some(0), &b"done\n"[..]));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_invalid_setting_ends_the_program_with_a_message() {
    let dir = temp_dir("word");
    let (source, program) = (dir.join("past.c"), dir.join("past"));
    fs::write(
        &source,
        OTHER_CALLS_PROGRAM.replace("192.168.0.1", "nowhere"),
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(&source).arg("-ldl");
    assert!(cc.status().expect("a C compiler, cc").success());
    let output = Command::new(&program)
        .arg(common::library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("local=nowhere"), "{text}");
    fs::remove_dir_all(dir).unwrap();
}

/// A script in packetdrill's language.
const SCRIPT: &str = "\
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <...>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
+0 write(4, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1
+.1 < P. 1:6(5) ack 1001 win 257
+0 read(4, ..., 100) = 5
+0 close(4) = 0
+0 > F. 1001:1001(0) ack 6
";

#[test]
fn packetdrill_itself_runs_a_script() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join("packetdrill").is_file()) {
        println!("skipped: packetdrill is not installed");
        return;
    }
    let dir = temp_dir("packetdrill");
    let script = dir.join("own.pkt");
    fs::write(&script, SCRIPT).unwrap();
    for version in ["ipv4", "ipv6", "ipv4-mapped-ipv6"] {
        let mut run = Command::new(Path::new(WORKSPACE).join("contrib/packetdrill/run"));
        run.arg(version).arg(&script);
        run.env("FULLSEND_PACKETDRILL", common::library());
        let output = run.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {log}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_runner_passes_options_and_environment_to_packetdrill() {
    let dir = temp_dir("runner");
    let fake = dir.join("packetdrill");
    fs::write(&fake, "#!/bin/sh\necho \"$LD_PRELOAD $PATH\" \"$@\" *\n").unwrap();
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("+x").arg(&fake).status().unwrap().success());
    fs::write(dir.join("x.pkt"), "--mtu=9000\n// CMSG_LEVEL_IP\n").unwrap();
    let mut run = Command::new(Path::new(WORKSPACE).join("contrib/packetdrill/run"));
    run.args(["ipv6", "x.pkt", "--", "-v"]).current_dir(&dir);
    run.env("FULLSEND_PACKETDRILL", common::library());
    run.env("PACKETDRILL", &fake).env("SO_FLAGS", "tcp_sack=0");
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let library = common::library();
    for part in [
        library.to_str().unwrap(),
        "contrib/packetdrill/bin:",
        "--so_flags=local=fd3d:0a0b:17d6::1,prefix=64,remote=fd3d:fa7b:d17d::1,mtu=9000,settings=/",
        ",tcp_sack=0 --ip_version=ipv6 --local_ip=fd3d:0a0b:17d6::1 --remote_ip=fd3d:fa7b:d17d::1",
        " --mtu=9000 -D CMSG_LEVEL_IP=SOL_IPV6 -v x.pkt",
        "defaults.sh packetdrill set_sysctls.py x.pkt",
        "ok      ipv6 x.pkt",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fs::remove_dir_all(dir).unwrap();
}

/// A program that runs the commands of a script, as packetdrill does, and prints its arguments.
const COMMANDS: &str = r#"#!/bin/sh
echo "given: $*"
for script in "$@"; do :; done
sed -n 's/^`\(.*\)`$/\1/p' "$script" | while read -r command; do
  PACKETDRILL_PID=$$ sh -c "$command" || exit 1
done
cat "$FULLSEND_SETTINGS"
"#;

#[test]
fn nested_scripts_find_files_of_parent_directories() {
    let dir = temp_dir("deep");
    let fake = dir.join("packetdrill");
    fs::write(&fake, COMMANDS).unwrap();
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("+x").arg(&fake).status().unwrap().success());
    let (tree, deep) = (
        dir.join("tree"),
        dir.join("tree/tcp/fast open/server/opt34"),
    );
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir_all(tree.join("tcp/common")).unwrap();
    let common = |name: &str, text: &str| fs::write(tree.join("tcp/common").join(name), text);
    common("own.sh", "sysctl -q net.ipv4.tcp_dsack=0\n").unwrap();
    common("set_sysctls.py", "this writes to /proc/sys\n").unwrap();
    fs::write(
        deep.join("deep.pkt"),
        "`sh ../../../common/own.sh`\n`../../../common/defaults.sh`\n\
         `../../../common/set_sysctls.py /proc/sys/net/ipv4/tcp_sack=0`\n",
    )
    .unwrap();
    // The collection has no folder common/ there.
    fs::write(
        deep.join("../shallow.pkt"),
        "`../common/set_sysctls.py /proc/sys/net/ipv4/tcp_sack=1`\n",
    )
    .unwrap();
    let mut run = Command::new(Path::new(WORKSPACE).join("contrib/packetdrill/run"));
    run.args(["ipv4", "-D", "NAME=7", "tree", "--", "-v"]);
    run.env("FULLSEND_PACKETDRILL", common::library());
    let output = run.current_dir(&dir).env("PACKETDRILL", &fake).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{log}");
    for part in [
        "-D NAME=7 -v deep.pkt",
        "net.ipv4.tcp_dsack=0",
        "net.ipv4.tcp_fastopen_key=",
        "net.ipv4.tcp_sack=0",
        "ok      ipv4 tree/tcp/fast open/server/opt34/deep.pkt",
        "net.ipv4.tcp_sack=1",
        "ok      ipv4 tree/tcp/fast open/server/shallow.pkt",
    ] {
        assert!(text.contains(part), "{part}: {text}{log}");
    }
    let theirs = fs::read_to_string(tree.join("tcp/common/set_sysctls.py")).unwrap();
    assert_eq!(theirs, "this writes to /proc/sys\n");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn commands_that_affect_only_the_host_are_reported() {
    let dir = temp_dir("reported");
    let real = dir.join("ip");
    fs::write(&real, "#!/bin/sh\necho real \"$@\"\n").unwrap();
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("+x").arg(&real).status().unwrap().success());
    let bin = Path::new(WORKSPACE).join("contrib/packetdrill/bin");
    let usual = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{usual}", bin.display(), dir.display());
    let ip = |line: &str| {
        let mut run = Command::new(bin.join("ip"));
        run.args(line.split(' ')).env("PATH", &path);
        let output = run.env("FULLSEND_SETTINGS", dir.join("settings")).output();
        let output = output.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("real {line}\n")
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for line in [
        "route show",
        "-6 route get fd3d::1",
        "link set lo up",
        "-o addr",
        "link set lo mtu 999",
    ] {
        assert_eq!(ip(line), "", "{line}");
    }
    for line in [
        "route replace 192.0.2.0/24 dev tun0 mtu lock 1200",
        "-6 ro change default dev tun0 initcwnd 3",
        "address add 10.0.0.1/24 dev tun0",
        "neigh flush all",
        "rule add from all lookup 7",
    ] {
        assert!(
            ip(line).contains(&format!("for the host only: ip {line}")),
            "{line}"
        );
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_sysctl_wrapper_writes_the_librarys_settings_file() {
    let dir = temp_dir("sysctl");
    let settings = dir.join("settings");
    let run = |arguments: &[&str]| {
        let mut sysctl = Command::new(Path::new(WORKSPACE).join("contrib/packetdrill/bin/sysctl"));
        sysctl.args(arguments).env("FULLSEND_SETTINGS", &settings);
        let output = sysctl.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    run(&[
        "-q",
        "net.ipv4.tcp_sack=0",
        "net.ipv4.tcp_wmem=4096 16384 65536",
    ]);
    run(&["-q", "-w", "net/ipv4/tcp_sack=1"]);
    assert_eq!(run(&["-n", "net.ipv4.tcp_sack"]), "1\n");
    let written = fs::read_to_string(&settings).unwrap();
    let expected = "net.ipv4.tcp_sack=0\nnet.ipv4.tcp_wmem=4096 16384 65536\nnet.ipv4.tcp_sack=1\n";
    assert_eq!(written, expected);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn link_commands_of_scripts_reach_the_library() {
    let dir = temp_dir("link");
    let settings = dir.join("settings");
    for command in [
        "ethtool -K tun0 tso off gso on gro off",
        "tc qdisc replace dev tun0 root fq maxrate 1gbit",
        "tc qdisc add dev tun0 root pfifo",
        "tc qdisc delete dev tun0 root",
        "ip tcp_metrics flush all",
        "ip link set dev tun0 mtu 9000",
    ] {
        let mut words = command.split(' ');
        let bin = Path::new(WORKSPACE).join("contrib/packetdrill/bin");
        let mut run = Command::new(bin.join(words.next().unwrap()));
        run.args(words).env("FULLSEND_SETTINGS", &settings);
        assert!(run.status().unwrap().success(), "{command}");
    }
    let written = fs::read_to_string(&settings).unwrap();
    let expected = "tso=off\nqdisc=fq maxrate 1gbit\nqdisc=noqueue\nqdisc=noqueue\nmtu=9000\n";
    assert_eq!(written, expected);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn nstat_shows_counter_increments_of_the_library() {
    let dir = temp_dir("nstat");
    let counters = dir.join("counters");
    let nstat = |option: &str| {
        let mut run = Command::new(Path::new(WORKSPACE).join("contrib/packetdrill/bin/nstat"));
        run.arg(option).env("FULLSEND_COUNTERS", &counters);
        let output = run.output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    fs::write(&counters, "TcpInSegs 3\n").unwrap();
    assert_eq!(nstat("-n"), "");
    fs::write(&counters, "TcpInSegs 5\nTcpExtPAWSEstab 1\n").unwrap();
    assert_eq!(
        nstat("-s"),
        "#fullsend TcpInSegs 2 0.0 TcpExtPAWSEstab 1 0.0"
    );
    assert_eq!(
        nstat("-z"),
        "#fullsend TcpInSegs 2 0.0 TcpExtPAWSEstab 1 0.0"
    );
    assert_eq!(nstat("-z"), "#fullsend");
    assert!(nstat("-as").contains("TcpInSegs 5"));
    fs::remove_dir_all(dir).unwrap();
}
