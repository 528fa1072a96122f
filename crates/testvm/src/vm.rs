//! A running guest.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use crate::console::Console;
use crate::{GuestImage, accelerator};

/// After this long without an expected line a test fails instead of hanging. Emulation on a busy
/// machine needs minutes to boot.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A kernel that panics ends QEMU. The rest is for emulation on a busy machine, whose timers are late: the
/// kernel would take this for a fault of the hardware.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 net.ifnames=0 no_timer_check \
                              clocksource=tsc tsc=reliable rcupdate.rcu_cpu_stall_suppress=1";

/// A guest before its start.
pub struct VmBuilder<'a> {
    image: &'a GuestImage,
    memory_mib: u32,
    cpus: u32,
    args: Vec<OsString>,
    script: String,
    files: Vec<(String, Vec<u8>)>,
}

impl<'a> VmBuilder<'a> {
    /// Returns a guest of one processor and 256 MiB of memory, without a network card.
    pub fn new(image: &'a GuestImage) -> Self {
        Self {
            image,
            memory_mib: 256,
            cpus: 1,
            args: Vec::new(),
            script: String::new(),
            files: Vec::new(),
        }
    }

    /// Sets the memory in MiB. It is a memfd that other processes can map (vhost-user).
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the number of processors.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Appends arguments of QEMU: `-netdev`, `-device`, `-chardev`.
    #[must_use]
    pub fn qemu_args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Appends lines for busybox's shell. When they end, the guest turns itself off.
    #[must_use]
    pub fn script(mut self, lines: &str) -> Self {
        self.script.push_str(lines);
        self.script.push('\n');
        self
    }

    /// Adds an executable file to the guest. The path begins without a slash.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }

    /// Adds a program of this machine, with the libraries that `ldd` lists, at the same paths.
    ///
    /// # Errors
    /// If the program or one of its libraries cannot be read.
    pub fn program(mut self, path: &str) -> io::Result<Self> {
        let output = Command::new("ldd").arg(path).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let libraries = text
            .split_whitespace()
            .filter(|word| word.starts_with('/') && Path::new(word).exists());
        for file in libraries.chain([path]) {
            self = self.file(file.trim_start_matches('/'), fs::read(file)?);
        }
        Ok(self)
    }

    /// Starts the guest.
    ///
    /// # Errors
    /// If QEMU or the initramfs, which is a temporary file, cannot be started or written.
    pub fn boot(&self) -> io::Result<Vm> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("fullsend-testvm-{}-{number}.cpio", process::id());
        let initramfs = TemporaryFile(env::temp_dir().join(name));
        fs::write(
            &initramfs.0,
            self.image.initramfs(&self.script, &self.files),
        )?;
        let mut process = self
            .command(&initramfs.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        Ok(Vm {
            console: output.map(Console::read).unwrap_or_default(),
            input,
            process,
            read: 0,
            timeout: TIMEOUT,
            _initramfs: initramfs,
        })
    }

    fn command(&self, initramfs: &Path) -> Command {
        let memory = self.memory_mib;
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-no-reboot", "-serial", "stdio"])
            .args(accelerator::arguments(self.image.kernel()))
            .args(["-smp", &self.cpus.to_string(), "-m", &format!("{memory}M")])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=mem,size={memory}M,share=on"
            ))
            .args(["-machine", "q35,memory-backend=mem"])
            .arg("-kernel")
            .arg(self.image.kernel())
            .arg("-initrd")
            .arg(initramfs)
            .args(["-append", KERNEL_OPTIONS])
            .args(&self.args);
        command
    }
}

/// A running guest; it ends when this is dropped.
pub struct Vm {
    process: Child,
    input: Option<ChildStdin>,
    console: Console,
    /// Bytes of the console that [`wait_for`](Self::wait_for) has passed.
    read: usize,
    timeout: Duration,
    _initramfs: TemporaryFile,
}

impl Vm {
    /// Waits for a line of the console that contains `marker`, after the line that the last call
    /// returned, and returns it.
    ///
    /// # Errors
    /// If the guest ends, or does not write such a line within five minutes; with the whole console.
    pub fn wait_for(&mut self, marker: &str) -> Result<String, String> {
        let found = self.console.wait_for(marker, self.read, self.timeout);
        let (line, at) = found.map_err(|error| match self.process.try_wait() {
            Ok(Some(status)) => format!("{error}\nQEMU: {status}"),
            _ => error,
        })?;
        self.read = at;
        Ok(line)
    }

    /// Writes a line to the console, for the `read` of the script.
    ///
    /// # Errors
    /// If QEMU has ended.
    pub fn send_line(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(line.as_bytes())?;
        input.write_all(b"\n")?;
        input.flush()
    }

    /// Returns everything that the guest has written to its console.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Ends the guest as if the machine lost its power, and waits until QEMU has ended.
    pub fn kill(&mut self) {
        // An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Returns the number of QEMU's process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A file that is removed when this is dropped.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
