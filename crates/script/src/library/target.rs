//! One run of a script through a library: its clock, its packets, the script's commands.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use super::table::Table;
use super::thread::CallThread;
use super::{CallOutput, Job, Library};
use crate::run::settings::RunSettings;
use crate::run::target::{Fd, SentPacket, Target};
use crate::script::Nanos;
use crate::shell::{self, ShellEffect};
use fullsend_posix::Errno;

/// The time before an event until which packetdrill sleeps before it polls the clock, in us.
const EARLY_US: i64 = 20;
/// Length of packetdrill's packet buffer, in bytes.
const PACKET_BUFFER_LEN: usize = 65_536;

/// One run of a script through a library.
pub(crate) struct LibraryTarget {
    pub(super) table: Table,
    pub(super) thread: CallThread,
    /// The next call may block.
    pub(super) may_block: bool,
    /// Open descriptors, and the ports of bound ones.
    pub(super) open: BTreeSet<i32>,
    pub(super) ports: BTreeMap<i32, u16>,
    /// Buffers lent with `MSG_ZEROCOPY`.
    pub(super) lent: Vec<Vec<Vec<u8>>>,
    /// The library's time at the script's time 0, in us.
    start_us: i64,
    now_us: i64,
    returned_us: i64,
    sent: VecDeque<SentPacket>,
    /// The settings file passed to the library; `None`: the shell runs the script's commands.
    settings: Option<PathBuf>,
}

impl LibraryTarget {
    pub(crate) fn new(library: &Library, settings: &RunSettings) -> Result<Self, String> {
        let user_flags = library.flags.as_deref().unwrap_or("");
        let has_local = user_flags.split(',').any(|flag| flag.starts_with("local="));
        let file = (!has_local).then(settings_file);
        let flags = match &file {
            None => user_flags.to_owned(),
            Some(file) => {
                let net = settings.local_net();
                let mut flags = format!(
                    "local={},prefix={},remote={},mtu={},settings={}",
                    net.addr,
                    net.prefix,
                    settings.remote,
                    settings.mtu,
                    file.display()
                );
                if settings.strict_segments {
                    flags.push_str(",tso=on");
                }
                if !user_flags.is_empty() {
                    flags = format!("{flags},{user_flags}");
                }
                flags
            }
        };
        let table = library.begin(&flags)?;
        let start_us = table.now_us();
        Ok(Self {
            table,
            thread: CallThread::new(&table)?,
            may_block: false,
            open: BTreeSet::new(),
            ports: BTreeMap::new(),
            lent: Vec::new(),
            start_us,
            now_us: start_us,
            returned_us: start_us,
            sent: VecDeque::new(),
            settings: file,
        })
    }

    fn update_clock(&mut self) {
        self.now_us = self.table.now_us();
    }

    fn script_nanos(&self, us: i64) -> Nanos {
        (us - self.start_us) * 1000
    }

    /// Makes a call, or takes the result of the blocked call; `pending` while that is blocked.
    pub(super) fn call(
        &mut self,
        pending: Errno,
        job: impl FnOnce(&Table) -> CallOutput + Send + 'static,
    ) -> Result<CallOutput, Errno> {
        let done = if self.thread.is_busy() {
            self.thread.take()
        } else if self.may_block {
            let job: Job = Box::new(job);
            self.thread.begin(job)
        } else {
            let mut done = job(&self.table);
            done.at_us = self.table.now_us();
            Some(done)
        };
        self.update_clock();
        let done = done.ok_or(pending)?;
        self.returned_us = done.at_us;
        done.result()
    }
}

/// Appends a line to a library's settings file.
fn set(file: &Path, key: &str, value: &str) -> Result<(), String> {
    let opened = fs::OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| writeln!(file, "{key}={value}"));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns a path that no other run uses.
fn settings_file() -> PathBuf {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let (id, run) = (process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(format!("fullsend-script-{id}-{run}"))
}

/// Runs a command with the shell, like packetdrill; a command that fails ends the script.
fn run_by_shell(command: &str) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    shell.env("PACKETDRILL_PID", process::id().to_string());
    let status = shell
        .status()
        .map_err(|error| format!("cannot run sh: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the command failed with {status}: {command}"))
}

impl Target for LibraryTarget {
    fn now(&self) -> Nanos {
        self.script_nanos(self.now_us)
    }

    fn script_time(&self, stamp: i64) -> Nanos {
        stamp - self.start_us * 1000
    }

    fn returned_at(&self) -> Nanos {
        self.script_nanos(self.returned_us)
    }

    fn step(&mut self, end: Nanos) -> bool {
        let end_us = self.start_us + end / 1000;
        let wait = end_us - EARLY_US - self.now_us;
        if let Ok(wait @ 1..) = u32::try_from(wait) {
            // SAFETY: the argument is a number.
            unsafe { (self.table.usleep)(self.table.ud, wait) };
        }
        self.update_clock();
        while self.now_us < end_us {
            self.update_clock();
        }
        self.thread.is_done()
    }

    fn step_to_packet(&mut self, end: Nanos) -> bool {
        let mut buffer = vec![0; PACKET_BUFFER_LEN];
        let (mut count, mut at_us) = (buffer.len(), 0);
        let start = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer has `count` bytes, and the pointers are to live numbers.
        let got = unsafe {
            (self.table.netdev_receive)(self.table.ud, start, &raw mut count, &raw mut at_us)
        };
        self.update_clock();
        if got != 0 || count == 0 {
            // The library reports no packet; it has printed the reason.
            return self.step(end);
        }
        buffer.truncate(count);
        let at = self.script_nanos(at_us);
        self.sent.push_back(SentPacket { at, bytes: buffer });
        self.thread.is_done()
    }

    fn receive(&mut self, bytes: &[u8]) {
        // SAFETY: the pointer and length are those of a live slice.
        unsafe { (self.table.netdev_send)(self.table.ud, bytes.as_ptr().cast(), bytes.len()) };
        self.update_clock();
    }

    fn sent(&mut self) -> &mut VecDeque<SentPacket> {
        &mut self.sent
    }

    fn command(&mut self, command: &str) -> Result<Vec<String>, String> {
        let Some(file) = &self.settings else {
            return run_by_shell(command).map(|()| Vec::new());
        };
        let mut skipped = Vec::new();
        for effect in shell::effects(command) {
            match effect {
                // The runner handles files.
                ShellEffect::Nothing
                | ShellEffect::FlushTcpMetrics
                | ShellEffect::WriteFile(..)
                | ShellEffect::RemoveFile(_) => {}
                ShellEffect::Sysctl(key, value) => set(file, &key, &value)?,
                ShellEffect::ChangeLink(key, value) => set(file, key, &value)?,
                ShellEffect::Unknown(text) => skipped.push(text),
            }
        }
        Ok(skipped)
    }

    fn finish(&mut self) -> Result<(), String> {
        for fd in std::mem::take(&mut self.open) {
            // SAFETY: the library returned the descriptor, and the script left it open. packetdrill
            // closes it without the interface, too.
            if unsafe { libc::close(fd) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(format!(
                    "cannot close descriptor {fd} at the end of the script: {error}"
                ));
            }
        }
        Ok(())
    }
}

impl Drop for LibraryTarget {
    fn drop(&mut self) {
        // SAFETY: this is the last call of the run. It makes a blocked call fail.
        unsafe { (self.table.free)(self.table.ud) };
        if let Some(file) = &self.settings {
            // The file exists only if a command set something.
            let _ = fs::remove_file(file);
        }
    }
}

impl LibraryTarget {
    /// Records a descriptor that the library returned.
    pub(super) fn opened(&mut self, done: &CallOutput) -> Fd {
        let fd = done.value as i32;
        self.open.insert(fd);
        Fd(fd)
    }
}
