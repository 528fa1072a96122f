//! Attacks of commands of `gateway run` and `pasta` on their gateway, and its processes. Needs root, for
//! a host with servers of its own; the commands run as root and as another user.

mod ended;
mod inside;
mod pasta_net;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ended::Ended;
use inside::{PASTA, PROGRAM, USERS, program, run, stdout};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use pasta_net::{LOOPBACK, Net, serve, sh, wait_until, with_net, with_port};

const PORT: u16 = 8080;
const ALLOW: &str = "default = \"allow\"\n";
const DENY: &str = "default = \"deny\"\n";
/// Writes a file for a user.
fn write(path: &Path, content: &str, user: Option<u32>) {
    fs::write(path, content).unwrap();
    chown(path, user.or(Some(0)), user.or(Some(0))).unwrap();
}

/// Returns the direct children of a process.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap();
    let pids = text.split_ascii_whitespace();
    pids.map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_command_has_a_reaper_and_sees_its_own_processes() {
    with_net(|net| {
        for user in USERS {
            let script = r#"
                echo "$(cat /proc/1/comm) $$"
                id -u
                # Orphans become children of the first process, which waits for them.
                for i in 1 2 3; do (sh -c 'exec sleep 0.05' & ) ; done
                # The pattern is expanded without a process of its own, which would be counted, too.
                for i in $(seq 100); do
                    set -- /proc/[0-9]*
                    [ $# = 2 ] && echo "no orphans" && break
                    sleep 0.1
                done
                exit 7"#;
            let output = run(net, user, "", script);
            assert_eq!(output.status.code(), Some(7), "{output:?}");
            let text = stdout(&output);
            assert_eq!(text, "fullsend-init 2\n0\nno orphans\n", "{output:?}");
            let killed = run(net, user, "", "kill -9 $$");
            assert_eq!(killed.status.code(), Some(137), "{killed:?}");
        }
    });
}

#[test]
fn root_keeps_its_users_and_files() {
    with_net(|net| {
        let script = r#"
            echo x >"$DIR/file" && chown 1234:2345 "$DIR/file"
            setpriv --reuid 1000 --regid 1000 --clear-groups id -u
            ip tuntap add dev tap5 mode tap && echo interface
            mount -t tmpfs none /mnt && echo mount
            hostname inside && hostname"#;
        let output = run(net, None, "", script);
        assert_eq!(
            stdout(&output),
            "1000\ninterface\nmount\ninside\n",
            "{output:?}"
        );
        let file = fs::metadata(net.path("file")).unwrap();
        assert_eq!((file.uid(), file.gid()), (1234, 2345));
    });
}

#[test]
fn a_command_reaches_no_other_process_of_the_gateway() {
    with_net(|net| {
        for user in USERS {
            // The number of the gateway's process is that of the shell that it replaces.
            let script = r#"
                # Without a PID namespace the signals would go to the machine's processes.
                [ "$(cat /proc/1/comm)" = fullsend-init ] || exit 99
                try() { if "$@" >/dev/null 2>&1; then echo "DONE: $*"; fi; }
                try kill -0 "$GATEWAY"
                try ls "/proc/$GATEWAY/fd"
                for target in "$GATEWAY" 1; do
                    for kind in --net --mount --pid --ipc --user; do
                        try nsenter --target "$target" "$kind" true
                    done
                done
                try sh -c 'readlink /proc/1/fd/*'
                try ls /proc/1/root/
                try ls /proc/1/cwd/
                try readlink /proc/1/ns/net
                try cat /proc/1/environ
                try cat /proc/1/mem
                try cat /proc/1/maps
                for signal in KILL STOP HUP USR1 INT QUIT; do kill -$signal 1; done
                python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
pidfd = libc.syscall(434, 1, 0)
assert pidfd >= 0
print(["DONE: pidfd_getfd %d" % n for n in range(64) if libc.syscall(438, pidfd, n, 0) >= 0])
print(libc.ptrace(16, 1, 0, 0))'
                echo alive"#;
            let mut shell = Command::new("bash");
            shell
                .args([
                    "-c",
                    r#"GATEWAY=$$ exec "$PROGRAM" gateway run -- bash -c "$SCRIPT""#,
                ])
                .env("PROGRAM", PROGRAM)
                .env("SCRIPT", script)
                .current_dir(net.path("."));
            if let Some(user) = user {
                shell.uid(user).gid(user);
            }
            let output = shell.output().unwrap();
            assert_eq!(stdout(&output), "[]\n-1\nalive\n", "{user:?} {output:?}");
            assert!(output.status.success());
        }
    });
}

/// Attempts to change the file $POLICY and what is read from it.
const ATTACKS: &str = r#"
    # Without a PID namespace the signals would go to the machine's processes.
    [ "$(cat /proc/1/comm)" = fullsend-init ] || exit 99
    attack() {
        echo 'default = "allow"' >"$POLICY"
        umount "$POLICY"; umount -l "$POLICY"
        mount -o remount,rw "$POLICY"; mount -o remount,bind,rw "$POLICY"
        mount --bind / /mnt; mount --bind "$DIR" /mnt
        echo 'default = "allow"' >"/mnt/$POLICY"; echo 'default = "allow"' >/mnt/policy.toml
        unshare --mount --user --map-root-user sh -c 'umount "$POLICY"; echo x >"$POLICY"'
        rm -f "$POLICY"
        ln "$POLICY" "$DIR/link"; echo 'default = "allow"' >"$DIR/link"
        echo 'default = "allow"' >"$DIR/new"; mv -f "$DIR/new" "$POLICY"
        (cd "$DIR" && echo 'default = "allow"' >policy.toml)
        echo 'default = "allow"' >./policy.toml
        echo 'default = "allow"' >"/proc/self/cwd/policy.toml"
        trap '' HUP
        kill -HUP 0; kill -HUP 1; kill -HUP -1
        trap - HUP
    }
    attack >"$DIR/attacks" 2>&1
"#;

/// Asks whether a connection is allowed whenever the file $DIR/ask exists.
const ASK: &str = r#"
    until [ -e "$DIR/end" ]; do
        if [ -e "$DIR/ask" ]; then
            rm "$DIR/ask"
            if (exec 3<>/dev/tcp/10.0.2.2/8080) 2>/dev/null; then echo yes; else echo no; fi
        fi
        sleep 0.02
    done"#;

/// A command that answers whether its policy allows a connection.
struct Asked<'a> {
    net: &'a Net,
    child: Ended,
    answers: usize,
}

impl<'a> Asked<'a> {
    fn start(net: &'a Net, user: Option<u32>, policy: &Path, before: &str) -> Self {
        for name in ["end", "ask", "pid", "attacks", "new"] {
            let _ = fs::remove_file(net.path(name));
        }
        let arguments = "gateway run --control control --pid pid --policy";
        let mut command = program(net, user, arguments);
        let child = command
            .arg(policy)
            .args(["--", "bash", "-c", &format!("{before}{ASK}")])
            .env("POLICY", policy)
            .stdout(File::create(net.path("answers")).unwrap())
            .stderr(File::create(net.path("log")).unwrap())
            .spawn();
        Self {
            net,
            child: Ended(child.expect("the program starts")),
            answers: 0,
        }
    }

    fn ask(&mut self) -> String {
        fs::write(self.net.path("ask"), "").unwrap();
        fs::set_permissions(self.net.path("ask"), fs::Permissions::from_mode(0o666)).unwrap();
        self.answers += 1;
        let answers = || fs::read_to_string(self.net.path("answers")).unwrap();
        wait_until("an answer", || answers().lines().count() == self.answers);
        answers().lines().last().unwrap().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.net.path("log")).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.0.id().cast_signed())
    }

    fn hang_up(&self) {
        kill(self.pid(), Signal::SIGHUP).unwrap();
    }

    /// Returns the number of policies that were read again.
    fn changes(&self) -> u64 {
        let output = Command::new(PROGRAM)
            .args(["stat", "gateway", "--summary", "--socket"])
            .arg(self.net.path("control"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |line: &str| {
            line.strip_prefix("GatewayPolicyChanges")?
                .trim()
                .parse()
                .ok()
        };
        text.lines().find_map(line).unwrap_or(0)
    }

    fn end(mut self) {
        fs::write(self.net.path("end"), "").unwrap();
        assert!(self.child.0.wait().unwrap().success(), "{}", self.log());
    }
}

#[test]
fn a_command_does_not_change_its_policy() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let policy = net.path("policy.toml");
            let _ = fs::remove_file(&policy);
            write(&policy, DENY, user);
            let mut asked = Asked::start(net, user, &policy, ATTACKS);
            assert_eq!(asked.ask(), "no");
            assert_eq!(asked.changes(), 0, "{}", asked.log());
            assert_eq!(fs::read_to_string(&policy).unwrap(), DENY, "{user:?}");
            // What it may have written is not read.
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 1);
            assert_eq!(asked.ask(), "no");
            // The host changes it.
            fs::write(&policy, ALLOW).unwrap();
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 2);
            assert_eq!(asked.ask(), "yes");
            // A new file could be the command's.
            write(&net.path("new"), DENY, user);
            fs::rename(net.path("new"), &policy).unwrap();
            asked.hang_up();
            wait_until("the refusal", || asked.log().contains("cp, not mv"));
            assert_eq!((asked.changes(), &*asked.ask()), (2, "yes"));
            asked.end();
        }
    });
}

#[test]
fn a_command_changes_nothing_through_the_control_socket() {
    with_net(|net| {
        let script = format!(
            "{PROGRAM} stat --socket control sysctl tcp_mem
             {PROGRAM} stat --socket control sysctl tcp_mem='1 2 3' 2>&1
             {PROGRAM} stat --socket control sysctl tcp_mem"
        );
        let output = run(net, None, " --control control", &script);
        let text = stdout(&output);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{output:?}");
        assert!(lines[1].contains("read-only"), "{text}");
        assert_eq!(lines[0], lines[2]);
    });
}

#[test]
fn a_policy_in_the_programs_own_folder_may_be_replaced() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let folder = net.path(".config/fullsend");
            fs::create_dir_all(&folder).unwrap();
            for path in [net.path(".config"), folder.clone()] {
                chown(path, user.or(Some(0)), user.or(Some(0))).unwrap();
            }
            let policy = folder.join("policy.toml");
            write(&policy, DENY, user);
            let attacks = r#"{
                echo 'default = "allow"' >"$DIR/new" && mv -f "$DIR/new" "$POLICY"
                mv "$DIR/.config" "$DIR/moved"; mkdir -p "$DIR/.config/fullsend"
                echo 'default = "allow"' >"$POLICY"
                } >"$DIR/attacks" 2>&1"#;
            let mut asked = Asked::start(net, user, &policy, attacks);
            assert_eq!(asked.ask(), "no");
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 1);
            assert_eq!(asked.ask(), "no");
            // The folder is elsewhere now, and the same.
            let moved = net.path("moved/fullsend");
            write(&moved.join("new"), ALLOW, user);
            fs::rename(moved.join("new"), moved.join("policy.toml")).unwrap();
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 2);
            assert_eq!(asked.ask(), "yes");
            asked.end();
            fs::remove_dir_all(net.path("moved")).unwrap();
            fs::remove_dir_all(net.path(".config")).unwrap();
        }
    });
}

/// Starts a command that attempts to write its policy, which denies.
fn attack<'a>(net: &'a Net, user: Option<u32>, policy: &Path, script: &str) -> Asked<'a> {
    let script = format!(r#"{{ {script}; }} >"$DIR/attacks" 2>&1;"#);
    Asked::start(net, user, policy, &script)
}

#[test]
fn a_policy_with_a_second_name_is_not_read_again() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let policy = net.path("policy.toml");
            let _ = fs::remove_file(&policy);
            write(&policy, DENY, user);
            fs::hard_link(&policy, net.path("second")).unwrap();
            // Without the second name nothing shows what was written by it.
            let script = r#"echo 'default = "allow"' >"$DIR/second"; rm "$DIR/second""#;
            let mut asked = attack(net, user, &policy, script);
            assert_eq!(asked.ask(), "no");
            asked.hang_up();
            assert_eq!(fs::read_to_string(&policy).unwrap(), ALLOW);
            wait_until("the refusal", || {
                asked.log().contains("several names at the start")
            });
            assert_eq!((asked.changes(), &*asked.ask()), (0, "no"));
            asked.end();
        }
    });
}

#[test]
fn a_policy_is_not_read_again_if_the_command_has_a_descriptor_of_a_folder() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let policy = net.path("policy.toml");
            let _ = fs::remove_file(&policy);
            write(&policy, DENY, user);
            for name in ["end", "ask"] {
                let _ = fs::remove_file(net.path(name));
            }
            // Standard input here; another descriptor is the same.
            let script =
                format!(r#"echo 'default = "allow"' >"/proc/self/fd/0/policy.toml"; {ASK}"#);
            let child = program(
                net,
                user,
                "gateway run --control control --policy policy.toml",
            )
            .args(["--", "bash", "-c", &script])
            .stdin(File::open(net.path(".")).unwrap())
            .stdout(File::create(net.path("answers")).unwrap())
            .stderr(File::create(net.path("log")).unwrap())
            .spawn();
            let child = Ended(child.expect("the program starts"));
            let mut asked = Asked {
                net,
                child,
                answers: 0,
            };
            assert_eq!(asked.ask(), "no");
            assert_eq!(fs::read_to_string(&policy).unwrap(), ALLOW);
            asked.hang_up();
            wait_until("the refusal", || asked.log().contains("descriptor 0"));
            assert_eq!((asked.changes(), &*asked.ask()), (0, "no"));
            asked.end();
        }
    });
}

#[test]
fn a_policy_that_is_mounted_in_the_programs_own_folder_is_read_only() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            // As a container engine mounts it.
            let (real, folder) = (net.path("real.toml"), net.path(".config/fullsend"));
            fs::create_dir_all(&folder).unwrap();
            let policy = folder.join("policy.toml");
            write(&real, DENY, user);
            write(&policy, "", user);
            sh(&format!(
                "mount --bind {} {}",
                real.display(),
                policy.display()
            ));
            let script = r#"echo 'default = "allow"' >"$POLICY"
                echo 'default = "allow"' >"$DIR/real.toml""#;
            let mut asked = attack(net, user, &policy, script);
            assert_eq!(asked.ask(), "no");
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 1);
            assert_eq!(asked.ask(), "no", "{user:?}");
            // The host may change it.
            fs::write(&real, ALLOW).unwrap();
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 2);
            assert_eq!(asked.ask(), "yes");
            asked.end();
            sh(&format!("umount {}", policy.display()));
        }
    });
}

#[test]
fn a_later_mount_of_the_host_is_no_way_to_the_policy() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let (folder, shared) = (net.path("folder"), net.path("shared"));
            fs::create_dir_all(&folder).unwrap();
            fs::create_dir_all(&shared).unwrap();
            let policy = folder.join("policy.toml");
            write(&policy, DENY, user);
            sh(&format!(
                "mount --bind {0} {0} && mount --make-shared {0}",
                shared.display()
            ));
            for name in ["mounted", "ready"] {
                let _ = fs::remove_file(net.path(name));
            }
            let script = r#"touch "$DIR/ready"; until [ -e "$DIR/mounted" ]; do sleep 0.02; done
                echo 'default = "allow"' >"$DIR/shared/policy.toml""#;
            let mut asked = attack(net, user, &policy, script);
            wait_until("the command", || net.path("ready").exists());
            sh(&format!(
                "mount --bind {} {}",
                folder.display(),
                shared.display()
            ));
            fs::write(net.path("mounted"), "").unwrap();
            assert_eq!(asked.ask(), "no");
            assert_eq!(fs::read_to_string(&policy).unwrap(), DENY, "{user:?}");
            asked.end();
            sh(&format!("umount {0} && umount {0}", shared.display()));
        }
    });
}

#[test]
fn a_policy_in_the_layer_of_an_overlay_is_read_only_there() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let layers = net.path("layers");
            fs::create_dir_all(&layers).unwrap();
            sh(&format!(
                "mount -t tmpfs none {0} && cd {0} && mkdir lower upper work merged && chmod 777 upper && \
                 mount -t overlay overlay -o lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work merged",
                layers.display()
            ));
            let policy = layers.join("upper/policy.toml");
            write(&policy, DENY, user);
            let script = r#"echo 'default = "allow"' >"$DIR/layers/merged/policy.toml""#;
            let mut asked = attack(net, user, &policy, script);
            assert_eq!(asked.ask(), "no");
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 1);
            assert_eq!(asked.ask(), "no", "{user:?}");
            asked.end();
            sh(&format!(
                "umount {0}/merged && umount {0}",
                layers.display()
            ));
        }
    });
}

#[test]
fn a_hangup_of_any_process_ends_no_command() {
    with_net(|net| {
        serve(with_port(LOOPBACK[0], PORT));
        for user in USERS {
            let policy = net.path("policy.toml");
            let _ = fs::remove_file(&policy);
            write(&policy, ALLOW, user);
            let mut asked = Asked::start(net, user, &policy, "");
            assert_eq!(asked.ask(), "yes");
            let gateway = asked.pid().as_raw().cast_unsigned();
            let written = fs::read_to_string(net.path("pid")).unwrap();
            assert_eq!(written.trim(), gateway.to_string());
            // Processes of this program: the command's are below the second one.
            for child in children(gateway) {
                kill(Pid::from_raw(child.cast_signed()), Signal::SIGHUP).unwrap();
            }
            assert_eq!(asked.ask(), "yes");
            asked.hang_up();
            wait_until("the policy", || asked.changes() == 1);
            assert_eq!(asked.ask(), "yes");
            asked.end();
        }
    });
}

#[test]
fn a_hangup_of_pastas_process_group_does_not_read_the_policy() {
    with_net(|net| {
        let policy = net.path("policy.toml");
        write(&policy, ALLOW, None);
        let mut command = program(net, None, PASTA);
        // pasta of root becomes another user, and so does its command.
        fs::set_permissions(net.path("."), fs::Permissions::from_mode(0o777)).unwrap();
        let script =
            r#"trap '' HUP; echo >"$DIR/ready"; until [ -e "$DIR/end" ]; do sleep 0.02; done"#;
        let child = command
            .args(["--policy", "policy.toml", "--", "bash", "-c", script])
            .env("FULLSEND_CONTROL", net.path("control"))
            .stderr(File::create(net.path("log")).unwrap())
            .process_group(0)
            .spawn();
        let mut asked = Asked {
            net,
            child: Ended(child.unwrap()),
            answers: 0,
        };
        wait_until("the command", || net.path("ready").exists());
        killpg(asked.pid(), Signal::SIGHUP).unwrap();
        wait_until("the line", || asked.log().contains("ignored a SIGHUP"));
        assert_eq!(asked.changes(), 0);
        asked.hang_up();
        wait_until("the policy", || asked.changes() == 1);
        fs::write(net.path("end"), "").unwrap();
        assert!(asked.child.0.wait().unwrap().success());
    });
}

#[test]
fn a_command_goes_on_without_its_interface() {
    with_net(|net| {
        let script = r#"ip link delete "$(ls /sys/class/net | grep -v lo || echo tap0)" || ip link delete tap0
            until [ -e "$DIR/end" ]; do sleep 0.02; done
            echo on; exit 5"#;
        for arguments in ["gateway run --", &format!("{PASTA} -I tap0 --")] {
            let _ = fs::remove_file(net.path("end"));
            let child = program(net, None, arguments)
                .args(["sh", "-c", script])
                .stdout(Stdio::piped())
                .stderr(File::create(net.path("log")).unwrap())
                .spawn();
            let child = child.expect("the program starts");
            let log = || fs::read_to_string(net.path("log")).unwrap();
            wait_until("the line", || {
                log()
                    .contains("the command has no network any more: its interface tap0 was deleted")
            });
            fs::write(net.path("end"), "").unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(stdout(&output), "on\n", "{arguments} {}", log());
            // A stack is nothing that a user of the program builds.
            assert!(
                !log().contains("stack;") && !log().contains("new stack"),
                "{}",
                log()
            );
            assert_eq!(output.status.code(), Some(5), "{arguments}");
        }
    });
}

#[test]
fn an_unknown_option_is_none_of_the_command() {
    for arguments in ["--foo", "--foo -- true", "-x true"] {
        let output = Command::new(PROGRAM)
            .args(["gateway", "run"])
            .args(arguments.split(' '))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let option = arguments.split(' ').next().unwrap();
        let want = format!("unexpected argument '{option}' found");
        assert!(errors.contains(&want), "{errors}");
    }
}

#[test]
fn the_status_of_a_command_that_cannot_run_is_a_shells() {
    with_net(|net| {
        fs::write(net.path("script"), "").unwrap();
        for (command, status) in [
            ("./nothing", 127),
            ("nothing-of-this-name", 127),
            ("./script", 126),
        ] {
            let output = program(net, None, "gateway run --")
                .arg(command)
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(status), "{errors}");
            let line = format!("error: cannot run {command}: ");
            assert!(errors.starts_with(&line), "{errors}");
            // Options after the command are its own.
            let output = program(net, None, "gateway run echo --foo -- -x")
                .output()
                .unwrap();
            assert_eq!(stdout(&output), "--foo -- -x\n");
        }
    });
}

#[test]
fn a_limit_of_namespaces_is_named() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root for a network namespace");
    }
    for limit in [
        "max_net_namespaces",
        "max_user_namespaces",
        "max_pid_namespaces",
    ] {
        let script = format!("echo 0 >/proc/sys/user/{limit}; exec {PROGRAM} gateway run -- true");
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", &script])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("user.{limit} = 0")), "{errors}");
    }
}

#[test]
fn inherited_descriptors_are_the_commands_and_not_the_gateways() {
    with_net(|net| {
        let guest = pasta_net::Namespace::guest(false);
        let pid = guest.pid();
        let run = format!(
            "{PROGRAM} gateway run --pid pid -- sh -c 'test -e /proc/self/fd/9 && sleep 1000'"
        );
        let pasta =
            format!("{PROGRAM} {PASTA} --pid pid -- sh -c 'test -e /proc/self/fd/9 && sleep 1000'");
        let namespace = format!("{PROGRAM} {PASTA} --foreground --pid pid {pid}");
        let passt = format!("{PROGRAM} passt --foreground --quiet --socket s1 --pid pid");
        let gvproxy =
            format!("{PROGRAM} gvproxy -ssh-port -1 -listen-qemu unix://s2 -pid-file pid");
        let slirp = format!(
            "{PROGRAM} slirp4netns --ready-fd 8 -c {pid} tap1 8>ready & echo $! >pid; wait"
        );
        for line in [run, pasta, namespace, passt, gvproxy, slirp] {
            for name in ["pid", "ready", "control"] {
                let _ = fs::remove_file(net.path(name));
            }
            let child = Command::new("bash")
                .args(["-c", &format!("exec 9</; {line}")])
                .current_dir(net.path("."))
                .env("FULLSEND_CONTROL", net.path("control"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            let _child = Ended(child.unwrap());
            let gateway = || {
                fs::read_to_string(net.path("pid"))
                    .ok()?
                    .trim()
                    .parse::<i32>()
                    .ok()
            };
            wait_until("the process", || gateway().is_some());
            let gateway = gateway().unwrap();
            let is_restricted = || {
                let status = fs::read_to_string(format!("/proc/{gateway}/status")).unwrap();
                status.contains("NoNewPrivs:\t1") || net.path("ready").exists()
            };
            wait_until("the sandbox", is_restricted);
            for number in 3..64 {
                let target = fs::read_link(format!("/proc/{gateway}/fd/{number}"));
                assert_ne!(target.ok().as_deref(), Some(Path::new("/")), "{line}");
            }
            let _ = kill(Pid::from_raw(gateway), Signal::SIGTERM);
        }
    });
}

#[test]
fn a_reader_of_the_output_does_not_wait_for_pasta() {
    with_net(|net| {
        let guest = pasta_net::Namespace::guest(false);
        let line = format!(
            "(exec 9>&1; {PROGRAM} {PASTA} --quiet --pid pid {}) | cat",
            guest.pid()
        );
        let output = Command::new("timeout")
            .args(["60", "bash", "-c", &line])
            .current_dir(net.path("."))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        pasta_net::Pasta::of_file(&net.path("pid")).terminate();
    });
}

#[test]
fn an_interactive_shell_controls_its_jobs() {
    with_net(|net| {
        // Each key waits for what the one before has printed.
        let script = r#"
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], [sys.argv[1], "gateway", "run", "--", "bash", "--norc", "-i"])
seen = b""
def wait_for(text):
    global seen
    while text not in seen:
        assert select.select([terminal], [], [], 30)[0], (text, seen)
        seen += os.read(terminal, 4096)
    seen = seen.split(text, 1)[1]
def type(text):
    os.write(terminal, text)
type(b"PS1='> '; echo rea''dy\n")
wait_for(b"ready")
shell = os.tcgetpgrp(terminal)
# The command has the signals of a job when it prints.
type(b"sh -c \"echo run''ning; exec sleep 1000\"\n")
wait_for(b"running")
type(b"\x1a")
wait_for(b"Stopped")
wait_for(b"> ")
type(b"jobs; echo list''ed; fg\n")
wait_for(b"Stopped")
wait_for(b"listed")
while os.tcgetpgrp(terminal) == shell: time.sleep(0.01)
type(b"\x03")
wait_for(b"> ")
type(b"echo status $?.\n")
wait_for(b"status 130.")
type(b"exit 9\n")
while True:
    try:
        if not os.read(terminal, 4096): break
    except OSError: break
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "job control" in str(seen))
"#;
        let output = Command::new("timeout")
            .args(["100", "python3", "-c", script, PROGRAM])
            .current_dir(net.path("."))
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "9 False\n", "{output:?}");
    });
}

#[test]
fn a_command_that_stops_the_terminal_does_not_stop_its_gateway() {
    with_net(|net| {
        write(&net.path("policy.toml"), DENY, None);
        // A refused connection is one line on the terminal, which is the gateway's standard error, too.
        let command = r#"
import socket, sys, termios
termios.tcflow(0, termios.TCOOFF)
for port in range(1, 5):
    try: socket.create_connection(("10.0.2.2", port), 20)
    except ConnectionRefusedError: pass
sys.exit(7)
"#;
        let script = r"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
        let output = Command::new("timeout")
            .args(["--kill-after=1", "100", "python3", "-c", script, PROGRAM])
            .args(["gateway", "run", "--policy", "policy.toml", "--"])
            .args(["python3", "-c", command])
            .current_dir(net.path("."))
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "7\n", "{output:?}");
    });
}
