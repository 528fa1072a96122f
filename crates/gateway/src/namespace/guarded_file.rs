//! A file that is read again while a command runs, which must not choose its contents.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};

use super::failed;
use super::mountinfo::{self, Mount};
use super::mounts::{mount_null, mount_read_only};
use super::spawn::{CommandFiles, Spawned};
use super::sys::passed_on;

/// The folder of this program's files, in the user's settings and in /etc.
const OWN_FOLDER: &str = "fullsend";
/// Write permission for the group and for others.
const OTHERS_WRITE: u32 = 0o022;

/// An open file, and the open directory in which it is opened again. Renamed directories do not matter.
#[derive(Debug)]
pub struct GuardedFile {
    /// The file, whose inode number stays in use while it is open.
    file: File,
    directory: OwnedFd,
    guard: Guard,
}

/// The part of a [`GuardedFile`] that makes it read-only for a command.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The path without symbolic links.
    path: PathBuf,
    file: Identity,
    /// Whether the directory contains only files of this program and is made read-only as a whole.
    /// `false` for a file that is a mount of its own and also exists elsewhere.
    has_own_folder: bool,
}

/// An inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl GuardedFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The error of opening the file, or `InvalidInput` if it is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let context = |error| failed(format_args!("open {}", path.display()), error);
        Self::try_open(path).map_err(context)
    }

    fn try_open(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let no_name = || io::Error::from(io::ErrorKind::IsADirectory);
        let folder = path.parent().ok_or_else(no_name)?;
        let name = path.file_name().ok_or_else(no_name)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(folder, flags, Mode::empty())?;
        // A command of the same user could delay all writers of the file with a lease, which the kernel grants
        // for no file that is open to be written.
        let file = open_in(&directory, name, OFlag::O_RDWR);
        let file = file.or_else(|_| open_in(&directory, name, OFlag::O_RDONLY))?;
        let guard = Guard {
            file: Identity::from(&file.metadata()?),
            has_own_folder: is_own_folder(folder, |name| std::env::var_os(name))
                && !is_mount(&file)?,
            path,
        };
        Ok(Self {
            file,
            directory,
            guard,
        })
    }

    /// Returns the open file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Returns the guard that makes the file read-only for a command, for
    /// [`NewNamespaces::read_only`](super::NewNamespaces::read_only).
    pub fn guard(&self) -> Guard {
        self.guard.clone()
    }

    /// Returns the file for opening it again while a command runs, for
    /// [`FileOpener::start_guarded`](super::FileOpener::start_guarded).
    pub fn beside(self, command: &Spawned) -> FileBeside {
        FileBeside {
            file: self,
            command: command.files().clone(),
        }
    }
}

/// A [`GuardedFile`], and the command that must not have written it.
#[derive(Debug)]
pub struct FileBeside {
    file: GuardedFile,
    command: CommandFiles,
}

impl FileBeside {
    /// Returns the descriptors that [`open`](Self::open) needs.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        let file = &self.file;
        [file.file.as_raw_fd(), file.directory.as_raw_fd()]
    }

    /// Opens the file that has the name now. Fails with `PermissionDenied` if the command may have
    /// written it.
    pub(super) fn open(&self) -> io::Result<File> {
        let guard = &self.file.guard;
        let path = guard.path.display();
        let name = guard.path.file_name().unwrap_or_default();
        let file = open_in(&self.file.directory, name, OFlag::O_RDONLY);
        let file = file.map_err(|error| failed(format_args!("open {path}"), error))?;
        let metadata = file.metadata()?;
        let directory = File::from(self.file.directory.try_clone()?);
        if self.is_foreign(&metadata) && self.is_foreign(&directory.metadata()?) {
            return Ok(file);
        }
        let refuse = |why: &str| {
            let text = format!("the command may have written {path}: {why}");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        };
        if let Some(why) = &self.command.unguarded {
            return refuse(why);
        }
        if metadata.nlink() != 1 {
            return refuse("it has several names; use a copy of it");
        }
        let is_of_own_folder = guard.has_own_folder && !is_mount(&file)?;
        if is_of_own_folder || Identity::from(&metadata) == guard.file {
            return Ok(file);
        }
        refuse(
            "another file was put in its place; change the file itself instead (cp, not mv), or keep it \
             in ~/.config/fullsend, /etc/fullsend or a directory of another user",
        )
    }

    /// Returns whether a file belongs to a user that the command cannot be, and no other user can write
    /// it.
    fn is_foreign(&self, metadata: &Metadata) -> bool {
        let owner = self.command.user.is_some_and(|user| user != metadata.uid());
        owner && metadata.mode() & OTHERS_WRITE == 0
    }
}

impl Guard {
    /// Makes the file read-only in the calling process's mount namespace, wherever it is mounted.
    pub(super) fn protect(&self) -> io::Result<()> {
        let protected = if self.has_own_folder {
            self.path.parent().unwrap_or(&self.path)
        } else {
            &self.path
        };
        let mounts = mountinfo::read()?;
        let metadata = fs::symlink_metadata(protected)?;
        for path in paths(protected, &mounts, Identity::from(&metadata)) {
            mount_read_only(&path).map_err(|e| read_only_failed(&path, e))?;
        }
        // The current directory is still the one below the old mount.
        let folder = std::env::current_dir().and_then(|folder| Ok(nix::unistd::chdir(&folder)?));
        folder.map_err(|e| failed("enter the current directory again", e))?;
        let metadata = fs::metadata(&self.path)?;
        if Identity::from(&metadata) != self.file {
            return Err(io::Error::other(
                "another file was put in its place at the start",
            ));
        }
        // The command could write the file under another name, and then remove that name.
        if metadata.nlink() != 1 {
            return Err(io::Error::other(
                "it had several names at the start; use a copy of it",
            ));
        }
        self.check_descriptors()
    }

    /// Fails if the command has a descriptor through which it can write the file: one of the file itself,
    /// or one of a directory, which is below the caller's mounts.
    fn check_descriptors(&self) -> io::Result<()> {
        for number in passed_on().map_err(|e| failed("list the open descriptors", e))? {
            let Ok(metadata) = fs::metadata(format!("/proc/self/fd/{number}")) else {
                continue;
            };
            if metadata.is_dir() || Identity::from(&metadata) == self.file {
                return Err(io::Error::other(format!(
                    "descriptor {number} of the command leads to it; close it for the command"
                )));
            }
        }
        Ok(())
    }
}

fn open_in(directory: &OwnedFd, name: &OsStr, access: OFlag) -> io::Result<File> {
    // Opening a pipe without a writer would block.
    let flags = access | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let text = "it is no regular file; write one";
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Returns whether a file is itself a mount. Linux before 5.8 does not report it.
fn is_mount(file: &File) -> io::Result<bool> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns whether a folder is this program's, in /etc or in the user's settings.
fn is_own_folder(folder: &Path, variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let settings = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let in_home = || Some(Path::new(&variable("HOME")?).join(".config"));
    let settings = settings.filter(|path| path.is_absolute()).or_else(in_home);
    let parents = [Some(PathBuf::from("/etc")), settings];
    parents
        .into_iter()
        .flatten()
        .any(|parent| fs::canonicalize(parent.join(OWN_FOLDER)).is_ok_and(|own| own == folder))
}

/// Returns all paths to the inode of `path`: at most one for each mount of its file system.
fn paths(path: &Path, mountinfo: &str, identity: Identity) -> Vec<PathBuf> {
    let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
    let is_same = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|other| Identity::from(&other) == identity)
    };
    // The last mount with the longest path is on top.
    let over = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    let over = over.max_by_key(|mount| mount.point.as_os_str().len());
    let mut found = vec![path.to_owned()];
    let Some(over) = over else {
        return found;
    };
    let Ok(below) = path.strip_prefix(&over.point) else {
        return found;
    };
    let in_file_system = joined(&over.root, below);
    for mount in mounts.iter().filter(|mount| mount.device == over.device) {
        let other = in_file_system.strip_prefix(&mount.root);
        let other = other.map(|below| joined(&mount.point, below));
        if let Ok(other) = other
            && !found.contains(&other)
            && is_same(&other)
        {
            found.push(other);
        }
    }
    found.extend(
        mounts
            .iter()
            .filter_map(|mount| through_overlay(path, mount)),
    );
    found
}

/// Returns the path of a file in an overlay that changes it: the file is in the overlay's upper directory. That
/// may be relative to a directory that is not known, so each one of this name counts.
fn through_overlay(path: &Path, overlay: &Mount<'_>) -> Option<PathBuf> {
    let upper = overlay.upper.as_deref()?;
    let upper = path.ancestors().find(|folder| folder.ends_with(upper))?;
    let in_overlay = path.strip_prefix(upper).ok()?;
    let below = in_overlay.strip_prefix(overlay.root.strip_prefix("/").ok()?);
    let other = joined(&overlay.point, below.ok()?);
    fs::symlink_metadata(&other).is_ok().then_some(other)
}

/// Makes a file read-only in the calling process's mount namespace, wherever it is mounted.
pub(super) fn protect_path(path: &Path) -> io::Result<()> {
    for path in all_paths(path)? {
        mount_read_only(&path).map_err(|e| read_only_failed(&path, e))?;
    }
    Ok(())
}

/// Hides a socket in the calling process's mount namespace, wherever its file is mounted: processes in it cannot
/// connect to it.
pub(super) fn hide_socket(path: &Path) -> io::Result<()> {
    for path in all_paths(path)? {
        mount_null(&path).map_err(|e| failed(format_args!("hide {}", path.display()), e))?;
    }
    Ok(())
}

fn read_only_failed(path: &Path, error: io::Error) -> io::Error {
    failed(format_args!("mount {} read-only", path.display()), error)
}

/// Returns all paths of a file.
fn all_paths(path: &Path) -> io::Result<Vec<PathBuf>> {
    let find = || fs::canonicalize(path).and_then(|path| Ok((fs::symlink_metadata(&path)?, path)));
    let found = find().map_err(|e| failed(format_args!("find {}", path.display()), e));
    let (metadata, path) = found?;
    Ok(paths(&path, &mountinfo::read()?, Identity::from(&metadata)))
}

/// Joins two paths, of which the second may be empty: a slash after a file's name would make it a
/// directory.
fn joined(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        path.to_owned()
    } else {
        path.join(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u32 = 7;

    fn beside(path: &Path, user: Option<u32>, unguarded: Option<&str>) -> FileBeside {
        FileBeside {
            file: GuardedFile::open(path).unwrap(),
            command: CommandFiles {
                user,
                unguarded: unguarded.map(str::to_owned),
            },
        }
    }

    #[test]
    fn a_file_is_opened_again_if_the_command_cannot_have_written_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        fs::write(&path, "one").unwrap();
        let own = fs::metadata(&path).unwrap().uid();
        // Neither the owner's nor root's command may write the file in its place.
        for user in [Some(own), None] {
            let file = beside(&path, user, None);
            fs::write(&path, "two").unwrap();
            file.open().unwrap();
            fs::hard_link(&path, folder.path().join("link")).unwrap();
            let error = file.open().unwrap_err();
            assert!(error.to_string().contains("several names"), "{error}");
            fs::remove_file(folder.path().join("link")).unwrap();
            fs::write(folder.path().join("new"), "three").unwrap();
            fs::rename(folder.path().join("new"), &path).unwrap();
            let error = file.open().unwrap_err();
            assert!(error.to_string().contains("cp, not mv"), "{error}");
        }
        // Another user's command may not.
        beside(&path, Some(own + OTHER), None).open().unwrap();
        let error = beside(&path, Some(own), Some("because"))
            .open()
            .unwrap_err();
        assert!(error.to_string().ends_with("because"), "{error}");
    }

    #[test]
    fn the_folder_of_this_program_is_found_by_the_users_settings() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let own = home.join(".config/fullsend");
        fs::create_dir_all(&own).unwrap();
        let variable = |name: &str| (name == "HOME").then(|| home.clone().into_os_string());
        assert!(is_own_folder(&own, variable));
        assert!(!is_own_folder(&home, variable));
        assert!(!is_own_folder(&own, |_| None));
    }

    #[test]
    fn each_mount_of_a_file_system_has_a_path_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        let (real, other) = (folder.join("a b"), folder.join("other"));
        fs::create_dir_all(&real).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(real.join("file"), "").unwrap();
        // A hard link stands for the same file under another mount.
        fs::hard_link(real.join("file"), other.join("file")).unwrap();
        fs::write(other.join("wrong"), "").unwrap();
        let escaped = real.to_str().unwrap().replace(' ', "\\040");
        let mounts = format!(
            "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 /x {escaped} rw - ext4 b rw\n\
             3 1 8:2 /x {other} rw - ext4 b rw\n4 1 8:3 /x {other}/wrong rw - ext4 b rw\n",
            other = other.display()
        );
        let path = real.join("file");
        let identity = Identity::from(&fs::metadata(&path).unwrap());
        assert_eq!(paths(&path, &mounts, identity), [path, other.join("file")]);
    }
}
