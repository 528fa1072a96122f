//! Files and sockets that only the process's user can open, whatever the umask: captures contain the
//! guest's data, and sockets control a gateway.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::geteuid;

/// Read and write for the owner.
const MODE: u32 = 0o600;

/// Opens a file to be written from its start. `name` is the file's name in errors.
///
/// # Errors
/// Returns an error if the file is a symbolic link or belongs to another user, who could read it;
/// otherwise the error of the operating system.
pub(crate) fn create(path: &Path, name: &str) -> Result<File> {
    let file = open(path, name, false)?;
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        let shown = path.display();
        file.set_len(0)
            .with_context(|| format!("cannot empty the {name} {shown}"))?;
    }
    Ok(file)
}

/// Opens a file to be appended to. `name` is the file's name in errors.
///
/// # Errors
/// The errors of [`create`].
pub(crate) fn append(path: &Path, name: &str) -> Result<File> {
    open(path, name, true)
}

fn open(path: &Path, name: &str, append: bool) -> Result<File> {
    let shown = path.display();
    let opened = OpenOptions::new()
        .write(true)
        .append(append)
        .create(true)
        // The file is truncated only when it is known to belong to the caller.
        .truncate(false)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path);
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => bail!(
            "cannot write the {name} {shown}: it is a symbolic link; name the file that it leads to"
        ),
        opened => opened.with_context(|| format!("cannot write the {name} {shown}"))?,
    };
    let metadata = file.metadata()?;
    // A pipe or a terminal keeps its mode.
    if !metadata.is_file() {
        return Ok(file);
    }
    if metadata.uid() != geteuid().as_raw() {
        bail!(
            "cannot write the {name} {shown}: it belongs to the user {}, who could read it; remove it or name \
             another file",
            metadata.uid()
        );
    }
    if metadata.mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))
            .with_context(|| format!("cannot protect the {name} {shown}"))?;
    }
    Ok(file)
}

/// Returns a Unix socket that is bound to `path` but does not listen.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn bind_socket(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // The file gets the socket's mode without the umask's bits, and never has another mode.
    let socket = File::from(socket);
    socket.set_permissions(Permissions::from_mode(MODE))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn files_are_the_users_alone_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create(&path, "capture").unwrap().write_all(b"1").unwrap();
        assert_eq!(mode(&path), MODE);
        // A file that others could read is theirs no more, before it has new data.
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        append(&path, "log").unwrap().write_all(b"2").unwrap();
        assert_eq!(
            (mode(&path), &*fs::read(&path).unwrap()),
            (MODE, &b"12"[..])
        );
        create(&path, "capture").unwrap().write_all(b"3").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"3");

        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let error = create(&link, "capture").unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        symlink(dir.path().join("new"), dir.path().join("dangling")).unwrap();
        assert!(append(&dir.path().join("dangling"), "log").is_err());
        assert!(!dir.path().join("new").exists());
        assert_eq!(fs::read(&path).unwrap(), b"3");
    }

    #[test]
    fn a_file_of_another_user_is_neither_emptied_nor_written() {
        if !geteuid().is_root() {
            errln!("skipped: needs root for a file of another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "1").unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        let error = create(&path, "capture").unwrap_err().to_string();
        assert!(error.contains("user 12345"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"1");
    }

    #[test]
    fn a_pipe_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o640)).unwrap();
        let mut reader = OpenOptions::new();
        let _reader = reader.read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        create(&path, "capture").unwrap().write_all(b"1").unwrap();
        assert_eq!(mode(&path), 0o640);
    }

    #[test]
    fn the_file_of_a_socket_is_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("s", SockType::Stream),
            ("d", SockType::Datagram),
            ("p", SockType::SeqPacket),
        ] {
            let path = dir.path().join(name);
            let _socket = bind_socket(&path, kind).unwrap();
            assert_eq!(mode(&path), MODE, "{name}");
        }
    }
}
