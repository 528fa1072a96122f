//! The processes of a command: its parent in an outer level of namespaces, which makes mounts, and the
//! command in an inner level, which cannot change these mounts.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use landlock::{RulesetAttr, RulesetCreatedAttr, Scope};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, gettid};
use rustix::process::{PidfdFlags, pidfd_open};

use super::child::{Message, receive, send_result};
use super::command_parent::CommandParent;
use super::guarded_file::{Guard, hide_socket, protect_path};
use super::id_maps::Maps;
use super::mounts::{mount_none, mount_proc, protect_control_groups, replace_resolv_conf};
use super::spawn::{FirstProcess, NewNamespaces};
use super::sys::{close_copy, exit_now, fork_into, join_new_keyring};
use super::tap::open_here;
use super::{failed, namespace_limits};

/// Namespaces in two levels, and the processes in them.
pub(super) struct Nested<'a> {
    new: &'a NewNamespaces,
    /// The users and groups of the outer level.
    outer: Maps,
    /// Whether the thread that starts the command lives as long as its process.
    is_main_thread: bool,
}

impl<'a> Nested<'a> {
    /// Returns the levels of a command. Must be called in the process that starts it.
    pub(super) fn new(new: &'a NewNamespaces, outer: Maps) -> Self {
        namespace_limits::remember();
        Self {
            new,
            outer,
            is_main_thread: getpid() == gettid(),
        }
    }

    /// Writes the maps of the outer level from its maker, and lets the command's parent go on, which waits for that
    /// at the other end of `mapped`.
    pub(super) fn map_outer(&self, parent: Pid, mut mapped: PipeWriter) -> io::Result<()> {
        let written = self.outer.write(parent);
        written.map_err(|error| self.outer.explain(error))?;
        mapped.write_all(b"1")
    }

    /// Runs the command's parent, which has just begun in the outer level, and starts the command in the
    /// inner one. `channel` carries the results, and `gateway` the gateway's messages to the parent.
    /// `copies` are other descriptors of the gateway, to be closed.
    pub(super) fn run(
        &self,
        (channel, gateway): (OwnedFd, OwnedFd),
        mapped: PipeReader,
        copies: &[RawFd],
    ) -> ! {
        for copy in copies {
            close_copy(*copy);
        }
        let forked = self.enter_outer(&channel, mapped).and_then(|()| {
            let is_init = self.new.first == FirstProcess::Reaper;
            let parent = CommandParent::new(gateway, is_init)?;
            let steps = Steps::new()?;
            let maps = if self.new.user {
                self.outer.of_inner_level()
            } else {
                Maps::None
            };
            let own = self.between_levels();
            let forked = fork_into(own).map_err(|error| namespace_limits::explain(own, &error))?;
            Ok((parent, forked, steps, maps))
        });
        match forked {
            Ok((parent, None, steps, maps)) => self.run_command(&channel, parent, &maps, steps),
            Ok((parent, Some(command), steps, maps)) => {
                if let Err(error) = steps.lead(command, &maps) {
                    let _ = send_result(&channel, Err(error));
                    exit_now(1)
                }
                drop(channel);
                exit_now(parent.wait(command))
            }
            Err(error) => {
                let _ = send_result(&channel, Err(error));
                exit_now(1)
            }
        }
    }

    /// Prepares the mounts of the outer level, and reports on `channel` the reason if the command can
    /// write its guarded file.
    fn enter_outer(&self, channel: &OwnedFd, mapped: PipeReader) -> io::Result<()> {
        self.outer.await_and_enter(mapped)?;
        if !matches!(self.outer, Maps::None) {
            // In one of its own the command could mount its control group, which is the gateway's, too. A container
            // may have made the file read-only.
            let _ = fs::write("/proc/sys/user/max_cgroup_namespaces", "0");
        }
        if self.is_main_thread && self.new.first == FirstProcess::Reaper {
            // The parent may be stopped when the gateway ends. As the first process it ends all others
            // with it; a command that is the first process must be killed by its parent instead.
            set_pdeathsig(Signal::SIGKILL)?;
        }
        // A later mount of the host could lead to the guarded file, too.
        let propagation = if self.new.read_only.is_some() {
            MsFlags::MS_PRIVATE
        } else {
            MsFlags::MS_SLAVE
        };
        mount_none("/", MsFlags::MS_REC | propagation)
            .map_err(|e| failed("separate the mounts", e))?;
        if let Some(text) = &self.new.resolv_conf {
            replace_resolv_conf(text).map_err(|e| failed("replace /etc/resolv.conf", e))?;
        }
        let guarded = self.new.read_only.as_ref().map(Guard::protect);
        for path in &self.new.protected {
            protect_path(path)?;
        }
        for path in &self.new.hidden {
            hide_socket(path)?;
        }
        // A container may forbid it.
        let _ = protect_control_groups();
        if self.new.first == FirstProcess::Reaper {
            // A container may forbid it; the command then sees the host's /proc.
            let _ = mount_proc();
        }
        let unguarded = guarded.and_then(Result::err);
        let message = Message {
            bytes: unguarded
                .map(|e| e.to_string())
                .unwrap_or_default()
                .into_bytes(),
            ..Message::default()
        };
        send_result(channel, Ok(message))
    }

    /// Returns the namespaces in which the command's process begins. They belong to the outer level, so that the
    /// command cannot unmount the /proc that is mounted there.
    fn between_levels(&self) -> CloneFlags {
        match self.new.first {
            FirstProcess::Reaper => CloneFlags::empty(),
            FirstProcess::Command => CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS,
        }
    }

    /// Moves the command's process into the inner level.
    fn enter_inner(&self) -> io::Result<()> {
        if self.new.first == FirstProcess::Command {
            // A container may forbid it; the command then sees the host's /proc.
            let _ = mount_proc();
        }
        let inner = self.inner();
        unshare(inner).map_err(|error| namespace_limits::explain(inner, &error.into()))
    }

    fn inner(&self) -> CloneFlags {
        let mut inner = CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS;
        inner.set(CloneFlags::CLONE_NEWUSER, self.new.user);
        inner
    }

    /// Moves the command's process into the inner level, and executes the command once the gateway permits it.
    fn run_command(
        &self,
        channel: &OwnedFd,
        parent: CommandParent,
        maps: &Maps,
        steps: Steps,
    ) -> ! {
        let prepared = self
            .enter_inner()
            .and_then(|()| steps.follow(maps))
            .and_then(|()| self.prepare_command());
        let failed = prepared.is_err();
        if send_result(channel, prepared).is_err() || failed {
            exit_now(1);
        }
        // Without a message, the gateway has failed.
        let (Ok(Some(_)), Ok(_until_exec)) = (receive(channel), parent.enter_command()) else {
            exit_now(1);
        };
        confine_signals();
        self.exec(channel)
    }

    /// Opens the TAP, and the namespaces of this process. Returns them as a message.
    fn prepare_command(&self) -> io::Result<Message> {
        // Allows ping sockets for the command's groups, and low ports for all of its users.
        let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
        let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        join_new_keyring().map_err(|e| failed("make a keyring for the command", e))?;
        let mut message = open_here(&self.new.tap, Some(&self.new.setup))?;
        for name in ["net", "user"] {
            let file = fs::File::open(format!("/proc/thread-self/ns/{name}"));
            let file = file.map_err(|e| failed(format_args!("open a {name} namespace"), e))?;
            message.fds.push(file.into());
        }
        Ok(message)
    }

    /// Executes the command. On failure, reports the error and ends.
    fn exec(&self, channel: &OwnedFd) -> ! {
        let mut words = self.new.command.iter();
        let program = words.next().cloned().unwrap_or_default();
        let error = Command::new(&program).args(words).exec();
        let status = if error.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        };
        let error = failed(format_args!("run {}", program.display()), error);
        let _ = send_result(channel, Err(error));
        exit_now(status)
    }
}

/// The steps of the command's process and of its parent that wait for each other.
struct Steps {
    /// Written when the command's process is in the inner level.
    entered: (PipeReader, PipeWriter),
    /// Written when it may go on there: the parent has left the host's network, and has written the maps.
    mapped: (PipeReader, PipeWriter),
}

impl Steps {
    fn new() -> io::Result<Self> {
        Ok(Self {
            entered: io::pipe()?,
            mapped: io::pipe()?,
        })
    }

    /// Waits in the parent until the command's process is in the inner level. Enters its network, and writes its
    /// maps.
    fn lead(self, command: Pid, maps: &Maps) -> io::Result<()> {
        let ((mut entered, own), (reader, mut mapped)) = (self.entered, self.mapped);
        drop((own, reader));
        if entered.read_exact(&mut [0]).is_err() {
            // The command's process reports its error.
            return Ok(());
        }
        leave_network(command)?;
        // If it fails, the command's process ends.
        let written = maps.write(command);
        let _ = written.and_then(|()| mapped.write_all(b"1"));
        Ok(())
    }

    /// Reports in the command's process that it is in the inner level, and waits for its maps.
    fn follow(self, maps: &Maps) -> io::Result<()> {
        let ((reader, mut entered), (mapped, own)) = (self.entered, self.mapped);
        drop((reader, own));
        entered.write_all(b"1")?;
        maps.await_and_enter(mapped)
    }
}

/// Moves the calling process into the network of the command: a /proc that shows a process shows its readers the
/// sockets, neighbours and routes of its network.
fn leave_network(command: Pid) -> io::Result<()> {
    let enter = || {
        let pid =
            rustix::process::Pid::from_raw(command.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        setns(process, CloneFlags::CLONE_NEWNET)?;
        Ok(())
    };
    // Linux before 5.8 enters no namespace by a process.
    let own = |_: io::Error| Ok(unshare(CloneFlags::CLONE_NEWNET)?);
    enter()
        .or_else(own)
        .map_err(|e: io::Error| failed("leave the network of the host", e))
}

/// Prevents this process and its descendants from signalling the gateway, which is in their process
/// group. Has no effect before Linux 6.12.
fn confine_signals() {
    let confine = || {
        let ruleset = landlock::Ruleset::default()
            .scope(Scope::Signal)?
            .create()?;
        // The privilege in the process's user namespace permits this without `no_new_privs`.
        ruleset.no_new_privs(false).restrict_self()
    };
    let _ = confine();
}
