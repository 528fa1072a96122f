//! Unix sockets of the host at paths that the sandbox hides.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use fullsend::control::SocketFile;
use nix::unistd::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::child::{Message, end_server, open_result, receive, send, send_result, start_server};
use super::failed;
use crate::reactor::register;

/// Most sockets that the process binds: its requests come from a process that parses packets of guests.
const SOCKETS_MAX: usize = 16_384;

// The first byte of a request. Only a removal has no answer.
const BIND: u8 = b'b';
const CONNECT: u8 = b'c';
const REMOVE: u8 = b'r';
const SETTLE: u8 = b's';
const END: u8 = b'e';

/// A process outside of the sandbox that binds listening Unix sockets, removes their files, and connects
/// to one socket. It removes the remaining files and ends when this value is dropped, or when its owner
/// ends for any reason.
#[derive(Debug)]
pub struct HostSockets {
    channel: OwnedFd,
    pid: Pid,
}

impl HostSockets {
    /// Starts the process. It binds sockets with `bind`, connects to `peer`, and calls `at_end` when it
    /// ends. Call this before [`Sandbox::apply`](super::Sandbox::apply), and before this process has
    /// threads.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn start(
        peer: Option<&Path>,
        bind: impl Fn(&Path) -> io::Result<UnixListener>,
        at_end: impl FnOnce(),
    ) -> io::Result<Self> {
        // The process has another current directory.
        let peer = peer.map(std::path::absolute).transpose()?;
        let (channel, pid) = start_server(|channel| {
            serve(channel, peer.as_deref(), bind);
            at_end();
        })?;
        Ok(Self { channel, pid })
    }

    /// Registers the process with the calling tokio runtime.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn started(&self) -> io::Result<StartedSockets> {
        let socket = Socket::from(self.channel.try_clone()?);
        socket.set_nonblocking(true)?;
        Ok(StartedSockets(Arc::new(Channel {
            socket: register(socket)?,
            turn: Mutex::new(()),
        })))
    }
}

impl Drop for HostSockets {
    fn drop(&mut self) {
        end_server(&self.channel, self.pid, &[END]);
    }
}

#[derive(Debug)]
struct Channel {
    socket: AsyncFd<Socket>,
    /// Locked by the request that waits for its answer.
    turn: Mutex<()>,
}

/// A [`HostSockets`] that is registered with a runtime. Clones refer to the same process.
#[derive(Clone, Debug)]
pub struct StartedSockets(Arc<Channel>);

impl StartedSockets {
    /// Listens at an absolute path.
    ///
    /// # Errors
    /// The error of binding the socket.
    pub async fn bind(&self, path: &Path) -> io::Result<HostSocket> {
        let request = [&[BIND], path.as_os_str().as_bytes()].concat();
        let channel = self.0.clone();
        self.exchange(request, |message| {
            let id = message.bytes.try_into().map_err(|_| no_answer())?;
            let file = HostSocketFile { channel, id };
            let socket = message.fds.into_iter().next().ok_or_else(no_answer)?;
            Ok(HostSocket {
                listener: socket.into(),
                file,
            })
        })
        .await
    }

    /// Connects to the peer's socket.
    ///
    /// # Errors
    /// The error of connecting.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        self.exchange(vec![CONNECT], |message| {
            let socket = message.fds.into_iter().next().ok_or_else(no_answer)?;
            Ok(socket.into())
        })
        .await
    }

    /// Sends a request, and returns the result of `open` for the answer.
    async fn exchange<T: Send + 'static>(
        &self,
        request: Vec<u8>,
        open: impl FnOnce(Message) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let channel = self.0.clone();
        // The task outlives its caller: an answer left in the channel would be taken for that of the next
        // request.
        let exchanged = tokio::spawn(async move {
            let _turn = channel.turn.lock().await;
            let socket = &channel.socket;
            let sent = socket.async_io(Interest::WRITABLE, |socket| send(socket, &request, &[]));
            sent.await?;
            let answer = socket.async_io(Interest::READABLE, receive).await?;
            open(open_result(answer.ok_or_else(no_answer)?)?)
        });
        exchanged.await.map_err(io::Error::other)?
    }
}

fn no_answer() -> io::Error {
    io::Error::other("the process that binds sockets has ended")
}

/// A listening socket of the host.
#[derive(Debug)]
pub struct HostSocket {
    listener: UnixListener,
    file: HostSocketFile,
}

impl HostSocket {
    /// Returns the socket, which may be in blocking mode, and its file.
    #[must_use]
    pub fn into_parts(self) -> (UnixListener, HostSocketFile) {
        (self.listener, self.file)
    }
}

/// The file of a [`HostSocket`], removed on drop unless another one has replaced it.
#[derive(Debug)]
pub struct HostSocketFile {
    channel: Arc<Channel>,
    id: [u8; 8],
}

impl HostSocketFile {
    /// Removes the file and waits until that is done.
    pub async fn remove(self) {
        let sockets = StartedSockets(self.channel.clone());
        drop(self);
        // Fails if the process has ended, which then has removed the file.
        let _ = sockets.exchange(vec![SETTLE], |_| Ok(())).await;
    }
}

impl Drop for HostSocketFile {
    fn drop(&mut self) {
        let request = [&[REMOVE][..], &self.id].concat();
        // If it fails, the file is removed when the process ends.
        let _ = send(self.channel.socket.get_ref(), &request, &[]);
    }
}

/// Answers requests until the other end is closed or requests the end.
fn serve(channel: &OwnedFd, peer: Option<&Path>, bind: impl Fn(&Path) -> io::Result<UnixListener>) {
    let mut files = Files::default();
    while let Ok(Some(message)) = receive(channel) {
        let answer = match message.bytes.split_first() {
            Some((&BIND, path)) => files.bind(Path::new(OsStr::from_bytes(path)), &bind),
            Some((&CONNECT, [])) => connect(peer),
            Some((&SETTLE, [])) => Ok(Message::default()),
            Some((&REMOVE, id)) => {
                files.remove(id);
                continue;
            }
            _ => break,
        };
        if send_result(channel, answer).is_err() {
            break;
        }
    }
}

/// The files of the sockets that the process has bound, removed on drop.
#[derive(Default)]
struct Files {
    last: u64,
    bound: BTreeMap<[u8; 8], SocketFile>,
}

impl Files {
    fn bind(
        &mut self,
        path: &Path,
        bind: impl Fn(&Path) -> io::Result<UnixListener>,
    ) -> io::Result<Message> {
        if !path.is_absolute() {
            let text = format!("{} is not the absolute path of a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.bound.len() >= SOCKETS_MAX {
            let text = format!("there are {SOCKETS_MAX} sockets already; remove some");
            return Err(io::Error::other(text));
        }
        let listener = bind(path)?;
        let file = SocketFile::of(path)
            .map_err(|error| failed(format!("use the socket {}", path.display()), error))?;
        self.last += 1;
        let id = self.last.to_ne_bytes();
        self.bound.insert(id, file);
        Ok(Message {
            bytes: id.to_vec(),
            fds: vec![listener.into()],
        })
    }

    fn remove(&mut self, id: &[u8]) {
        if let Ok(id) = <[u8; 8]>::try_from(id) {
            self.bound.remove(&id);
        }
    }
}

/// Connects to the peer's socket. Fails instead of waiting for room in its queue.
fn connect(peer: Option<&Path>) -> io::Result<Message> {
    let peer = peer.ok_or(io::ErrorKind::NotConnected)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(peer)?)?;
    Ok(Message {
        fds: vec![socket.into()],
        ..Message::default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};

    use super::*;

    #[tokio::test]
    async fn sockets_are_bound_connected_and_removed_outside() {
        let dir = std::env::temp_dir().join(format!("fullsend-sockets-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let at = |name: &str| dir.join(name);
        let peer = UnixListener::bind(at("peer")).unwrap();
        let bind = |path: &Path| UnixListener::bind(path);
        let at_end = || fs::write(at("ended"), "").unwrap();
        let process = HostSockets::start(Some(&at("peer")), bind, at_end).unwrap();
        let sockets = process.started().unwrap();

        let (listener, file) = sockets.bind(&at("one")).await.unwrap().into_parts();
        UnixStream::connect(at("one"))
            .unwrap()
            .write_all(b"x")
            .unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let error = sockets.bind(&at("one")).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        let error = sockets.bind(Path::new("one")).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        file.remove().await;
        assert!(!at("one").exists());

        // A caller that does not wait leaves no answer to the next request, and no file.
        let two = at("two");
        let cancelled = tokio::time::timeout(std::time::Duration::ZERO, sockets.bind(&two));
        let _ = cancelled.await;
        let mut sent = sockets.connect().await.unwrap();
        sent.write_all(b"y").unwrap();
        peer.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"y");
        let _kept = sockets.bind(&at("three")).await.unwrap();
        assert!(!two.exists() && at("three").exists());
        drop(process);
        assert!(!at("three").exists() && at("ended").exists());
        assert!(sockets.bind(&at("four")).await.is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
