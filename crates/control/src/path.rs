//! Paths of control sockets: creating, finding and removing them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf, absolute};
use std::time::SystemTime;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, listen,
    socket_with,
};

/// Backlog of a control socket.
const BACKLOG: i32 = 16;

/// Returns the default directory of control sockets: `$XDG_RUNTIME_DIR/fullsend`, or
/// `/run/fullsend`.
pub fn default_dir() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    PathBuf::from(base.unwrap_or_else(|| "/run".into())).join("fullsend")
}

/// Returns the path of this process's socket in [`default_dir`]. Creates the directory if needed.
///
/// # Errors
/// The operating system's error, with a message that names the remedy.
pub fn default_path() -> io::Result<PathBuf> {
    let dir = default_dir();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| {
            let text = format!(
                "cannot create directory {}: {error}; set XDG_RUNTIME_DIR, or choose a path for \
                 the control socket",
                dir.display()
            );
            Error::new(error.kind(), text)
        })?;
    Ok(dir.join(format!("{}.sock", std::process::id())))
}

/// A control socket in [`default_dir`] that accepts connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningSocket {
    /// The path of the socket.
    pub path: PathBuf,
    /// Whether the socket's name is only a process number, so that the socket is found without a name.
    pub main: bool,
}

/// Returns the control sockets in [`default_dir`] that accept connections, sorted by path.
pub fn running() -> Vec<RunningSocket> {
    let Ok(entries) = fs::read_dir(default_dir()) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new("sock")) && accepts_connections(path))
        .map(|path| {
            let stem = path.file_stem().and_then(OsStr::to_str);
            let main = stem.is_some_and(|s| s.parse::<u32>().is_ok());
            RunningSocket { path, main }
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn accepts_connections(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// A Unix socket, e.g. a control socket, whose clients wait until they are served. A process binds it
/// before it gives up its access to the path's directory.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a Unix socket. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketFile {
    /// The absolute path, as the working directory may change.
    path: PathBuf,
    /// The file's device and inode: a file that has replaced it must not be removed.
    id: FileId,
}

impl SocketFile {
    /// Returns the file of a socket that the caller has bound at `path`.
    ///
    /// # Errors
    /// The operating system's error of reading the file's identity.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: absolute(path)?,
            id: FileId::of(path)?,
        })
    }

    /// Removes the file, unless another one has replaced it.
    pub fn remove(&self) {
        if FileId::of(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Identity of a file, beside its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileId {
    device: u64,
    /// The number of the file, which some file systems assign again after it was removed.
    inode: u64,
    made: Option<SystemTime>,
}

impl FileId {
    fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            device: meta.dev(),
            inode: meta.ino(),
            made: meta.created().ok(),
        })
    }
}

impl BoundSocket {
    /// Listens at `path`. Replaces the socket of a process that has ended, but no live socket and no
    /// other file.
    ///
    /// # Errors
    /// The operating system's error for the socket or its file, with a message that names the remedy.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let with_path = |error: Error, advice: &str| {
            let text = format!(
                "cannot create the socket {}: {error}; {advice}",
                path.display()
            );
            Error::new(error.kind(), text)
        };
        remove_stale_socket(path)?;
        let unix = AddressFamily::UNIX;
        let socket = socket_with(unix, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The file gets the socket's mode, less the umask, from the start.
        let socket = File::from(socket);
        socket.set_permissions(fs::Permissions::from_mode(0o600))?;
        SocketAddrUnix::new(path)
            .and_then(|address| bind_socket(&socket, &address))
            .map_err(|error| {
                with_path(
                    error.into(),
                    "choose a path in a directory that you can write to",
                )
            })?;
        let own_dir = "choose a path in a directory that you own";
        let file = SocketFile::of(path).map_err(|error| with_path(error, own_dir))?;
        listen(&socket, BACKLOG).map_err(|error| with_path(error.into(), "choose another path"))?;
        Ok(Self {
            listener: OwnedFd::from(socket).into(),
            file,
        })
    }

    /// Returns the socket's file.
    pub fn file(&self) -> &SocketFile {
        &self.file
    }

    /// Returns the listening socket, and the file to remove at its end.
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

/// Removes a socket on which no process listens.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let refuse = |what: &str| {
        let text = format!(
            "cannot create the socket {}: {what}; choose another path",
            path.display()
        );
        Err(Error::new(ErrorKind::AddrInUse, text))
    };
    if !meta.file_type().is_socket() {
        return refuse("a file that is not a socket has this path");
    }
    match UnixStream::connect(path) {
        Ok(_) => refuse("another stack listens at this path"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => refuse(&error.to_string()),
    }
}
