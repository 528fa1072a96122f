//! The sockets on which gvproxy listens, given by URLs.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fullsend::control::SocketFile;
use nix::sys::socket::{Backlog, SockType, listen, setsockopt, sockopt};

use crate::gateway::json_socket;
use crate::private_file::bind_socket;

/// A URL of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    /// `unix:///PATH`
    Unix(PathBuf),
    /// `unixpacket:///PATH`
    UnixPacket(PathBuf),
    /// `unixgram:///PATH`
    UnixGram(PathBuf),
    /// `tcp://ADDRESS:PORT`
    Tcp(SocketAddr),
}

impl Endpoint {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once("://") else {
            bail!("it is not a URL; write e.g. unix:///tmp/network.sock");
        };
        let path = || {
            if rest.is_empty() {
                bail!("it has no path; write e.g. {scheme}:///tmp/network.sock");
            }
            Ok(PathBuf::from(rest))
        };
        Ok(match scheme {
            "unix" => Self::Unix(path()?),
            "unixpacket" => Self::UnixPacket(path()?),
            "unixgram" => Self::UnixGram(path()?),
            "tcp" => {
                let address = rest.strip_suffix('/').unwrap_or(rest).parse();
                Self::Tcp(address.context("its address is not one; write tcp://127.0.0.1:PORT")?)
            }
            "vsock" => bail!(
                "sockets of the scheme vsock are not supported; connect the virtual machine with \
                 -listen-qemu, -listen-vfkit or another option"
            ),
            _ => bail!("the scheme {scheme} is not supported; write unix or tcp"),
        })
    }

    /// Returns the endpoint if it is a stream.
    pub(super) fn of_stream(self, flag: &str) -> Result<Self> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(self),
            _ => bail!("-{flag} needs a stream; write unix:///PATH or tcp://ADDRESS:PORT"),
        }
    }

    /// Returns the endpoint if it is a Unix stream, which can pass the memory of a virtual machine.
    pub(super) fn of_memory(self) -> Result<Self> {
        match self {
            Self::Unix(_) => Ok(self),
            _ => bail!("-listen-vhost-user needs a Unix socket; write unix:///PATH"),
        }
    }

    /// Returns the endpoint if it preserves message boundaries.
    pub(super) fn of_messages(self) -> Result<Self> {
        match self {
            Self::UnixPacket(_) => Ok(self),
            _ => bail!("-listen-bess needs a socket of messages; write unixpacket:///PATH"),
        }
    }

    /// Returns the endpoint if it has datagrams.
    pub(super) fn of_datagrams(self) -> Result<Self> {
        match self {
            Self::UnixGram(_) => Ok(self),
            _ => bail!("-listen-vfkit needs a socket of datagrams; write unixgram:///PATH"),
        }
    }
}

/// A bound socket.
pub(super) struct Bound {
    pub(super) socket: OwnedFd,
    /// The file of a Unix socket, removed on drop.
    pub(super) file: Option<SocketPath>,
    /// The address of a TCP socket.
    pub(super) address: Option<SocketAddr>,
}

/// The path of a socket, removed on drop unless another socket has replaced it, as after a restart of
/// gvproxy. `None` if the file was already removed.
pub(super) struct SocketPath {
    file: Option<SocketFile>,
}

impl SocketPath {
    pub(super) fn of(path: &Path) -> Self {
        Self {
            file: SocketFile::of(path).ok(),
        }
    }

    /// Removes the file, in a process that can reach it.
    pub(super) fn remove(&self) {
        self.file.iter().for_each(SocketFile::remove);
    }
}

/// Removes a socket on which no process listens: gvproxy's callers start it again with the same path.
fn remove_old(path: &Path) -> Result<()> {
    // Fails if a process listens.
    drop(json_socket::bind(path, "gvproxy's")?);
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
}

impl Bound {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self> {
        let cannot = || format!("cannot listen on {endpoint:?}");
        let mut bound = None;
        let (socket, path): (OwnedFd, _) = match endpoint {
            Endpoint::Unix(path) => (json_socket::bind(path, "gvproxy's")?.into(), Some(path)),
            Endpoint::UnixPacket(path) => {
                remove_old(path)?;
                (seqpacket(path).with_context(cannot)?, Some(path))
            }
            Endpoint::UnixGram(path) => {
                remove_old(path)?;
                let socket = bind_socket(path, SockType::Datagram);
                (socket.with_context(cannot)?, Some(path))
            }
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).with_context(cannot)?;
                bound = Some(listener.local_addr()?);
                // Accepted sockets inherit the option. Frames must not wait for the acknowledgement of
                // earlier ones.
                setsockopt(&listener, sockopt::TcpNoDelay, &true)?;
                (listener.into(), None)
            }
        };
        Ok(Self {
            socket,
            file: path.map(|path| SocketPath::of(path)),
            address: bound,
        })
    }
}

fn seqpacket(path: &Path) -> io::Result<OwnedFd> {
    let socket = bind_socket(path, SockType::SeqPacket)?;
    listen(&socket, Backlog::new(16)?)?;
    Ok(socket)
}

/// A bound socket of the API that is not served yet.
pub(super) struct ApiSocket {
    endpoint: Endpoint,
    bound: Bound,
}

/// A socket of the API that is registered with a runtime.
pub(super) enum ApiListener {
    Unix {
        listener: tokio::net::UnixListener,
        _file: SocketPath,
    },
    Tcp(tokio::net::TcpListener),
}

impl ApiSocket {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self> {
        Ok(Self {
            endpoint: endpoint.clone(),
            bound: Bound::new(endpoint)?,
        })
    }

    /// Returns the file of a Unix socket.
    pub(super) const fn file(&self) -> Option<&SocketPath> {
        self.bound.file.as_ref()
    }

    /// Returns the address of a TCP socket.
    pub(super) const fn address(&self) -> Option<SocketAddr> {
        self.bound.address
    }

    /// Registers the socket with the calling runtime.
    pub(super) fn started(self) -> Result<ApiListener> {
        let Bound { socket, file, .. } = self.bound;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(match (self.endpoint, file) {
            (Endpoint::Tcp(_), _) => {
                let listener = tokio::net::TcpListener::from_std(socket.into())?;
                ApiListener::Tcp(listener)
            }
            (_, Some(file)) => {
                let listener = tokio::net::UnixListener::from_std(socket.into())?;
                ApiListener::Unix {
                    listener,
                    _file: file,
                }
            }
            (endpoint, None) => bail!("{endpoint:?} has no file"),
        })
    }
}
