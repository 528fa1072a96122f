//! A process that opens a file that the sandbox hides.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::prctl::set_no_new_privs;
use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::child::{
    Message, open_result, receive, send, send_result, start_server, start_server_with,
};
use super::guarded_file::FileBeside;
use super::sandbox::keep_no_capability;
use super::{Identity, failed};
use crate::reactor::register;

/// A process outside of the sandbox that opens one file for reading on each request. It ends when this
/// value is dropped.
#[derive(Debug)]
pub struct FileOpener {
    channel: OwnedFd,
}

impl FileOpener {
    /// Starts the process. `path` must be absolute. Call this before
    /// [`Sandbox::apply`](super::Sandbox::apply), and before this process has threads.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start(path: &Path) -> io::Result<Self> {
        Self::start_as(path, None)
    }

    /// Starts the process as `user`, who must be able to read the file.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_as(path: &Path, user: Option<Identity>) -> io::Result<Self> {
        let (channel, _) = start_server(|channel| {
            if user.is_none_or(|user| give_up_privileges(user).is_ok()) {
                serve(channel, || open(path));
            }
        })?;
        Ok(Self { channel })
    }

    /// Starts the process like [`start`](Self::start), for a file that a command must not have written.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start_guarded(file: &FileBeside) -> io::Result<Self> {
        // Otherwise the process would close the descriptors of the file.
        let (channel, _) = start_server_with(file.descriptors(), |channel| {
            serve(channel, || file.open());
        })?;
        Ok(Self { channel })
    }

    /// Opens the file that the path refers to now. Blocks until it is open.
    ///
    /// # Errors
    /// The error of opening the file; `InvalidInput` if it is not a regular file.
    pub(crate) fn open_now(&self) -> io::Result<File> {
        send(&self.channel, b"open", &[])?;
        opened(receive(&self.channel)?)
    }

    /// Registers the opener with the calling tokio runtime.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn started(self) -> io::Result<StartedOpener> {
        Ok(StartedOpener(Mutex::new(register(Socket::from(
            self.channel,
        ))?)))
    }
}

/// A [`FileOpener`] that is registered with a runtime.
#[derive(Debug)]
pub struct StartedOpener(Mutex<AsyncFd<Socket>>);

impl StartedOpener {
    /// Opens the file that the path refers to now.
    ///
    /// # Errors
    /// The error of opening the file; `InvalidInput` if it is not a regular file.
    pub async fn open(&self) -> io::Result<File> {
        let channel = self.0.lock().await;
        send(channel.get_ref(), b"open", &[])?;
        // Each request reads its answer: one left in the channel would be taken for the answer to the
        // next request.
        let answer = channel.async_io(Interest::READABLE, receive);
        opened(answer.await?)
    }
}

/// Returns the file in an answer.
fn opened(answer: Option<Message>) -> io::Result<File> {
    let gone = || io::Error::other("the process that opens files has ended");
    let message = open_result(answer.ok_or_else(gone)?)?;
    let file = message.fds.into_iter().next().ok_or_else(gone)?;
    Ok(file.into())
}

/// Changes the process to a user without privileges.
fn give_up_privileges(user: Identity) -> io::Result<()> {
    user.assume()?;
    keep_no_capability()?;
    Ok(set_no_new_privs()?)
}

/// Answers requests until the other end is closed.
fn serve(channel: &OwnedFd, open: impl Fn() -> io::Result<File>) {
    while let Ok(Some(_)) = receive(channel) {
        let opened = open().map(|file| Message {
            fds: vec![file.into()],
            ..Message::default()
        });
        if send_result(channel, opened).is_err() {
            break;
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe without a writer would block.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let file = file.map_err(|error| failed(format!("open {}", path.display()), error))?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let text = format!("{} is no regular file; write one", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn the_file_that_is_at_the_path_now_is_opened() {
        let dir = std::env::temp_dir().join(format!("fullsend-opener-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        let opener = FileOpener::start(&path).unwrap().started().unwrap();
        let error = opener.open().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("file"), "{error}");
        for content in ["one", "two"] {
            // Editors replace files.
            std::fs::write(dir.join("new"), content).unwrap();
            std::fs::rename(dir.join("new"), &path).unwrap();
            let mut read = String::new();
            let mut file = opener.open().await.unwrap();
            file.read_to_string(&mut read).unwrap();
            assert_eq!(read, content);
        }
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(opener.open().await.is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
