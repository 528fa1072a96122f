//! What the mounts of a command of `gateway run` and `pasta` hide from it and protect. Needs root.

mod ended;
mod inside;
mod pasta_net;

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ended::Ended;
use inside::{PASTA, PROGRAM, USERS, program, run, stdout};
use pasta_net::{Net, wait_until, with_net};

/// A control group, which is removed with the value.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group of the second version, with the files of a delegated one; `None` where the kernel has none,
    /// or no way to kill all processes of one.
    fn delegated(user: Option<u32>) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        let mount = mounts.find_map(|mut words| {
            let point = words.nth(1)?;
            (words.next()? == "cgroup2").then_some(point)
        })?;
        let name = format!("fullsend-{}-{}", std::process::id(), user.unwrap_or(0));
        let group = Self(Path::new(mount).join(name));
        fs::create_dir(&group.0).ok()?;
        for file in ["", "cgroup.kill", "cgroup.freeze", "cgroup.procs"] {
            let path = group.0.join(file);
            if !path.exists() {
                return None;
            }
            chown(path, user, user).unwrap();
        }
        Some(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        // Processes that have ended leave it a little later.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Runs a script of bash in a network, from a control group.
fn run_in(
    group: &ControlGroup,
    net: &Net,
    user: Option<u32>,
    arguments: &str,
    script: &str,
) -> Output {
    let owner = user.unwrap_or(0);
    chown(net.path("."), Some(owner), Some(owner)).unwrap();
    // Only root may move a process into a group from outside.
    let enter = format!(
        "echo $$ >$GROUP/cgroup.procs && exec setpriv --reuid {owner} --regid {owner} --clear-groups \
         {PROGRAM} {arguments} bash -c \"$SCRIPT\""
    );
    let output = Command::new("sh")
        .args(["-c", &enter])
        .env("DIR", net.path("."))
        .env("GROUP", &group.0)
        .env("MOUNT", group.0.parent().unwrap())
        .env("SCRIPT", script)
        .current_dir(net.path("."))
        .stdin(Stdio::null())
        .output();
    output.expect("the program starts")
}

/// A group that systemd has delegated contains the gateway, too: `cgroup.kill` would end both.
#[test]
fn a_command_does_not_end_its_gateway_by_their_control_group() {
    with_net(|net| {
        let script = r#"
            mkdir -p "$DIR/mnt"
            attack() {
                mount -o remount,rw "$MOUNT"; mount -o remount,bind,rw "$MOUNT"
                umount "$MOUNT"; umount -l "$MOUNT"; umount -l /sys
                for name in "$GROUP/cgroup.freeze" "$GROUP/cgroup.kill"; do echo 1 >"$name"; done
                echo 0 >"$MOUNT/cgroup.procs"
                mkdir "$GROUP/own"
                for new in '' --cgroup; do
                    unshare $new sh -c '
                        mount -t cgroup2 -o rw none "$DIR/mnt"; mount -o remount,bind,rw "$DIR/mnt"
                        for name in $(find "$DIR/mnt" -name cgroup.kill); do echo 1 >"$name"; done'
                done
            }
            attack >/dev/null 2>&1
            echo alive; ls -d "$GROUP/own" 2>/dev/null
            exit 7"#;
        for user in USERS {
            for arguments in ["gateway run --", PASTA] {
                let Some(group) = ControlGroup::delegated(user) else {
                    return println!("skipped: no control groups of version 2 with cgroup.kill");
                };
                let output = run_in(&group, net, user, arguments, script);
                assert_eq!(
                    stdout(&output),
                    "alive\n",
                    "{user:?} {arguments} {output:?}"
                );
                assert_eq!(output.status.code(), Some(7), "{output:?}");
            }
        }
    });
}

#[test]
fn the_first_process_shows_a_command_no_network_of_the_host() {
    with_net(|net| {
        let script = "cat /proc/[0-9]*/net/dev | grep -o '^ *up0:'; grep -o 'tap0' /proc/1/net/dev";
        for user in USERS {
            let output = run(net, user, "", script);
            assert_eq!(stdout(&output), "tap0\n", "{user:?} {output:?}");
        }
    });
}

#[test]
fn a_command_of_pasta_does_not_see_the_hosts_processes_below_its_proc() {
    with_net(|net| {
        for user in USERS {
            let script = r#"
                echo $$
                { umount /proc; umount -l /proc; umount -lR /proc
                  unshare --user --map-root-user --mount umount -l /proc; } >/dev/null 2>&1
                for process in /proc/[0-9]*; do
                    [ "$process" = /proc/1 ] || echo "$process: $(cat "$process/cmdline")"
                done
                # What containers need works.
                unshare --pid --fork --mount-proc sh -c 'echo $$'
                exit 7"#;
            let mut command = program(net, user, PASTA);
            let output = command.args(["bash", "-c", script]).output().unwrap();
            assert_eq!(stdout(&output), "1\n1\n", "{user:?} {output:?}");
            assert_eq!(output.status.code(), Some(7), "{output:?}");
        }
    });
}

#[test]
fn a_command_does_not_change_the_number_in_its_pid_file() {
    with_net(|net| {
        let script = r#"{ echo 1 >"$DIR/pid"; umount -l "$DIR/pid"; rm -f "$DIR/pid"; mv "$DIR/pid" "$DIR/old"
            echo 1 >"$DIR/new"; mv -f "$DIR/new" "$DIR/pid"; ln "$DIR/pid" "$DIR/link"; echo 1 >"$DIR/link"
            } >/dev/null 2>&1; until [ -s "$DIR/pid" ]; do sleep 0.02; done; exit 7"#;
        for user in USERS {
            for arguments in ["gateway run --pid pid --", &format!("{PASTA} --pid pid --")] {
                let _ = fs::remove_file(net.path("pid"));
                let mut command = program(net, user, arguments);
                let child = command.args(["bash", "-c", script]).spawn().unwrap();
                let mut child = Ended(child);
                let status = child.0.wait().unwrap();
                let written = fs::read_to_string(net.path("pid")).unwrap();
                assert_eq!(
                    written.trim(),
                    child.0.id().to_string(),
                    "{user:?} {arguments}"
                );
                assert_eq!(status.code(), Some(7));
            }
        }
    });
}

/// The operator permits programs of the host to open ports, and the command is none of them.
#[test]
fn a_command_does_not_connect_to_the_control_socket_of_its_pasta() {
    with_net(|net| {
        let script = r#"
import os, socket, sys, time
folder = os.environ["DIR"]
os.system("umount -l %s/socket 2>/dev/null" % folder)
try:
    socket.socket(socket.AF_UNIX).connect(folder + "/socket")
    print("connected")
except OSError as error:
    print(error.strerror)
sys.stdout.flush()
while not os.path.exists(folder + "/end"): time.sleep(0.02)
"#;
        for user in USERS {
            for name in ["end", "answers"] {
                let _ = fs::remove_file(net.path(name));
            }
            let mut command = program(net, user, &format!("{PASTA} -c socket --"));
            let child = command
                .args(["python3", "-c", script])
                .stdout(File::create(net.path("answers")).unwrap())
                .spawn();
            let mut child = Ended(child.unwrap());
            let answers = || fs::read_to_string(net.path("answers")).unwrap();
            wait_until("an answer", || answers().ends_with('\n'));
            UnixStream::connect(net.path("socket")).unwrap();
            fs::write(net.path("end"), "").unwrap();
            assert!(child.0.wait().unwrap().success());
            assert_eq!(answers(), "Connection refused\n", "{user:?}");
        }
    });
}

/// With a lease the kernel holds up each program that opens the file to write it.
#[test]
fn a_command_gets_no_lease_of_its_policy() {
    with_net(|net| {
        let script = r#"
import fcntl, os
try:
    fcntl.fcntl(os.open(os.environ["POLICY"], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
    print("a lease")
except OSError as error:
    print(error.strerror)
"#;
        for user in USERS {
            let policy = net.path("policy.toml");
            let _ = fs::remove_file(&policy);
            fs::write(&policy, "default = \"deny\"\n").unwrap();
            chown(&policy, user.or(Some(0)), user.or(Some(0))).unwrap();
            let mut command = program(net, user, "gateway run --policy policy.toml --");
            command.env("POLICY", &policy);
            let output = command.args(["python3", "-c", script]).output().unwrap();
            let want = "Resource temporarily unavailable\n";
            assert_eq!(stdout(&output), want, "{user:?} {output:?}");
        }
    });
}

#[test]
fn the_limit_of_descriptors_is_named() {
    with_net(|_| {
        for limit in [10, 12, 14] {
            let line = format!("ulimit -n {limit}; exec {PROGRAM} gateway run -- true");
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                continue;
            }
            assert!(errors.contains("ulimit -n"), "{limit}: {errors}");
        }
    });
}

/// The caller's session keyring has its keys of Kerberos, fscrypt and others.
#[test]
fn a_command_has_none_of_its_callers_keys() {
    with_net(|net| {
        let script = r#"
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
keyctl, add_key = (250, 248) if platform.machine() == "x86_64" else (219, 217)
if len(sys.argv) > 1:
    # Makes a keyring with a key, and executes the gateway.
    if libc.syscall(keyctl, 1, None) < 0 or libc.syscall(add_key, b"user", b"callers", b"secret", 6, -3) < 0:
        print("no keyrings"); sys.exit()
    assert libc.syscall(keyctl, 10, -3, b"user", b"callers", 0) > 0
    os.execv(sys.argv[1], sys.argv[1:])
print(libc.syscall(keyctl, 10, -3, b"user", b"callers", 0))
"#;
        fs::write(net.path("keys.py"), script).unwrap();
        for user in USERS {
            let owner = user.unwrap_or(0);
            chown(net.path("."), Some(owner), Some(owner)).unwrap();
            for arguments in ["gateway run --", PASTA] {
                let line = format!(
                    "exec setpriv --reuid {owner} --regid {owner} --clear-groups python3 keys.py {PROGRAM} \
                     {arguments} python3 keys.py"
                );
                let output = Command::new("sh")
                    .args(["-c", &line])
                    .current_dir(net.path("."))
                    // That of root may have programs that others cannot execute.
                    .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                    .output();
                let output = output.unwrap();
                if stdout(&output) == "no keyrings\n" {
                    return println!("skipped: the kernel has no keyrings");
                }
                assert_eq!(stdout(&output), "-1\n", "{user:?} {arguments} {output:?}");
            }
        }
    });
}
