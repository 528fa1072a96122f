//! The files of a guest: kernel, modules and busybox of the machine that runs the test.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::Archive;

/// Modules that a guest loads, with those that they depend on.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];

/// Runs as the first process of the guest.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
ip link set lo up
for module in /modules/*.ko; do insmod $module || echo \"$module cannot be loaded\"; done
. /script
poweroff -f
";

/// A file or program that a guest needs and that this machine lacks.
#[derive(Debug)]
pub struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The kernel, the modules and the programs of a guest.
pub struct GuestImage {
    kernel: PathBuf,
    /// The content of each module, in the order in which they are loaded.
    modules: Vec<(String, Vec<u8>)>,
    busybox: Vec<u8>,
}

impl GuestImage {
    /// Finds the newest cloud kernel below `/boot` with its modules, and a static busybox.
    ///
    /// # Errors
    /// The missing file or program, and the package of Debian that has it: the reason for which a test is
    /// skipped.
    pub fn find() -> Result<Self, Missing> {
        let installed = Command::new("qemu-system-x86_64").arg("--version").output();
        if installed.is_err() {
            return Err(Missing(
                "qemu-system-x86_64 is not installed; install qemu-system-x86".to_owned(),
            ));
        }
        let (kernel, version) = newest_kernel()?;
        let modules = Path::new("/lib/modules").join(version);
        let busybox = fs::read("/bin/busybox").map_err(|e| {
            Missing(format!(
                "qemu guests need /bin/busybox ({e}); install busybox-static"
            ))
        })?;
        Ok(Self {
            kernel,
            modules: load_modules(&modules)?,
            busybox,
        })
    }

    pub(crate) fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// Returns an initramfs whose first process runs `script` with busybox's shell and then turns the
    /// machine off. `files` are added with their paths, which begin without a slash.
    pub(crate) fn initramfs(&self, script: &str, files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut archive = Archive::default();
        for folder in ["proc", "sys", "dev", "tmp", "run", "etc", "root"] {
            archive.folder(folder);
        }
        archive.character_device("dev/console", (5, 1));
        archive.character_device("dev/null", (1, 3));
        archive.file("bin/busybox", &self.busybox);
        archive.symlink("bin/sh", "busybox");
        for (index, (name, content)) in self.modules.iter().enumerate() {
            archive.file(&format!("modules/{index:02}-{name}.ko"), content);
        }
        archive.file("init", INIT.as_bytes());
        archive.file("script", script.as_bytes());
        for (path, content) in files {
            archive.file(path, content);
        }
        archive.finish()
    }
}

/// Returns the newest cloud kernel and its version.
fn newest_kernel() -> Result<(PathBuf, String), Missing> {
    let entries = fs::read_dir("/boot").into_iter().flatten().flatten();
    let mut versions: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("vmlinuz-")?;
            let cloud = version.contains("-cloud-")
                && Path::new("/lib/modules")
                    .join(version)
                    .join("modules.dep")
                    .exists();
            cloud.then(|| version.to_owned())
        })
        .collect();
    // The numbers of a version are compared one by one: 6.12 is newer than 6.1.
    versions.sort_by_key(|version| {
        let numbers = version.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<u32> = numbers.filter_map(|n| n.parse().ok()).collect();
        numbers
    });
    let version = versions.pop().ok_or_else(|| {
        Missing(
            "qemu guests need /boot/vmlinuz-*-cloud-*; install linux-image-cloud-amd64".to_owned(),
        )
    })?;
    Ok((PathBuf::from(format!("/boot/vmlinuz-{version}")), version))
}

/// Reads the modules, those first that others depend on.
fn load_modules(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Missing> {
    let table = folder.join("modules.dep");
    let text = fs::read_to_string(&table)
        .map_err(|e| Missing(format!("qemu guests need {}: {e}", table.display())))?;
    let mut modules: Vec<(String, Vec<u8>)> = Vec::new();
    for wanted in MODULES {
        // A line is `path: dependencies`, and the last dependency is loaded first. A kernel may have a
        // module built in.
        let Some(line) = text.lines().find(|line| {
            line.split_once(':')
                .is_some_and(|(path, _)| module_name(path) == wanted)
        }) else {
            continue;
        };
        for path in line.split([':', ' ']).rev().filter(|path| !path.is_empty()) {
            let name = module_name(path);
            if modules.iter().all(|(known, _)| *known != name) {
                modules.push((name, read_module(&folder.join(path))?));
            }
        }
    }
    Ok(modules)
}

/// Returns the name of a module's file without its folders and endings.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Reads a module, which may be compressed.
fn read_module(path: &Path) -> Result<Vec<u8>, Missing> {
    let missing =
        |e: &dyn fmt::Display| Missing(format!("qemu guests need {}: {e}", path.display()));
    let (program, args): (&str, &[&str]) = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => ("/bin/busybox", &["unxz", "-c"]),
        Some("gz") => ("/bin/busybox", &["gunzip", "-c"]),
        Some("zst") => ("zstd", &["-dc"]),
        _ => return fs::read(path).map_err(|e| missing(&e)),
    };
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.map_err(|e| missing(&format_args!("{program}: {e}")))?;
    if !output.status.success() {
        return Err(missing(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::module_name;

    #[test]
    fn module_names() {
        assert_eq!(module_name("kernel/net/core/failover.ko"), "failover");
        assert_eq!(
            module_name("kernel/char/hw_random/virtio-rng.ko.xz"),
            "virtio_rng"
        );
    }
}
