//! Mounts in a new mount namespace.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::mountinfo::{self, Mount};

/// The file systems of control groups, of both versions.
const CONTROL_GROUPS: [(&str, FsType); 2] = [
    ("cgroup", CGROUP_SUPER_MAGIC),
    ("cgroup2", CGROUP2_SUPER_MAGIC),
];

/// The flags that a remount must keep if a more privileged mount namespace set them.
const KEPT: [(FsFlags, MsFlags); 6] = [
    (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
    (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
    (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
    (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
    (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
];

/// Mounts the /proc of the calling process's PID namespace.
pub(super) fn mount_proc() -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)?;
    Ok(())
}

/// Mounts a file or directory over itself, read-only.
pub(super) fn mount_read_only(path: &Path) -> io::Result<()> {
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(path), path, None::<&str>, bind, None::<&str>)?;
    make_read_only(path)
}

/// Mounts a device that is no socket and no regular file over a file.
pub(super) fn mount_null(path: &Path) -> io::Result<()> {
    let bind = MsFlags::MS_BIND;
    mount(Some("/dev/null"), path, None::<&str>, bind, None::<&str>)?;
    Ok(())
}

/// Makes the control groups read-only, wherever they are mounted: their files end, stop and move the processes
/// in them, also those outside of the command.
pub(super) fn protect_control_groups() -> io::Result<()> {
    let mounts = mountinfo::read()?;
    let mut done = Ok(());
    for mount in mounts.lines().filter_map(Mount::parse) {
        let types = CONTROL_GROUPS.iter().find(|(name, _)| *name == mount.kind);
        // Another mount at the same path covers it for the command, too.
        let is_on_top = |(_, kind): &(_, FsType)| {
            statfs(&mount.point).is_ok_and(|stat| stat.filesystem_type() == *kind)
        };
        if types.is_some_and(is_on_top) {
            done = done.and(make_read_only(&mount.point));
        }
    }
    done
}

/// Makes the mount at `path` read-only.
fn make_read_only(path: &Path) -> io::Result<()> {
    let present = statvfs(path)?.flags();
    let kept = KEPT.iter().filter(|(flag, _)| present.contains(*flag));
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount_none(path, kept.fold(flags, |flags, (_, kept)| flags | *kept))
}

/// Changes an existing mount.
pub(super) fn mount_none(target: impl AsRef<Path>, flags: MsFlags) -> io::Result<()> {
    mount(
        None::<&str>,
        target.as_ref(),
        None::<&str>,
        flags,
        None::<&str>,
    )?;
    Ok(())
}

/// Mounts a file that contains `text` over /etc/resolv.conf, or over the file that it links to.
pub(super) fn replace_resolv_conf(text: &str) -> io::Result<()> {
    let target = match fs::canonicalize("/etc/resolv.conf") {
        Ok(target) => target,
        // The file, or the link's destination, does not exist: there is nothing to mount over.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // The file needs a file system, which stays after its directory is detached.
    let folder = Path::new("/tmp");
    mount(
        Some("tmpfs"),
        folder,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64k"),
    )?;
    let path = folder.join("resolv.conf");
    let mut file = File::create(&path)?;
    file.write_all(text.as_bytes())?;
    if target.starts_with(folder) {
        return Err(io::Error::other("it is below /tmp"));
    }
    let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    mount(
        Some(&from),
        &target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )?;
    umount2(folder, MntFlags::MNT_DETACH)?;
    Ok(())
}
