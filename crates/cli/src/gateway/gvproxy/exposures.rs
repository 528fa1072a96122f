//! The exposed ports and sockets of the host, which lead to the virtual machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fullsend::TcpStream;
use fullsend_gateway::namespace::{HostSocketFile, StartedSockets};
use fullsend_gateway::{Forward, ForwardId, Handle, PortId, Protocol, Side};
use serde::{Deserialize, Serialize};
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::AbortHandle;

/// Most bytes of each text of an entry.
const TEXT_MAX: usize = 256;

/// Most entries; each may have two forwards.
const ENTRIES_MAX: usize = 16_384;
/// Parts of the entries, and of the forwards, that one guest and all guests together add: the rest is the host's.
const PART_OF_GUEST: usize = 4;
const PART_OF_GUESTS: usize = 2;
/// Most connections of all Unix sockets together; further ones wait.
const UNIX_CONNECTIONS_MAX: usize = 1024;

/// The protocol of an entry's clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    #[default]
    Tcp,
    Udp,
    /// `local` is the path of a Unix socket, and `remote` a TCP port of the guest.
    Unix,
}

/// The JSON of an entry in requests and answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) local: String,
    #[serde(default)]
    pub(super) remote: String,
    #[serde(default)]
    pub(super) protocol: Transport,
}

/// The servers of an entry.
enum Server {
    Forwards(Vec<ForwardId>),
    Unix {
        task: AbortHandle,
        file: HostSocketFile,
    },
}

/// A client of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Client {
    Host,
    /// A virtual machine, which must not create files of the host, may add a part of the entries, and may
    /// remove only its own.
    Guest {
        /// The port of its link, or `None` if the link has ended.
        port: Option<PortId>,
        /// The address from which it uses the API, which no other guest can have.
        address: IpAddr,
    },
}

impl Client {
    /// Returns the port of a guest's link.
    pub(super) const fn port(self) -> Option<PortId> {
        match self {
            Self::Host => None,
            Self::Guest { port, .. } => port,
        }
    }

    /// Returns whether both are the same guest: they are now behind one link, or have one address, as a guest
    /// whose link was connected again has another port.
    fn is_guest(self, other: Self) -> bool {
        let (
            Self::Guest { port, address },
            Self::Guest {
                port: other_port,
                address: other,
            },
        ) = (self, other)
        else {
            return false;
        };
        port.is_some() && port == other_port || address == other
    }

    /// Returns whether the client may remove the entries of `owner`.
    fn may_remove_of(self, owner: Self) -> bool {
        self == Self::Host || self.is_guest(owner)
    }
}

impl Server {
    /// Returns the number of the gateway's forwards that the entry uses.
    const fn forwards(&self) -> usize {
        match self {
            Self::Forwards(ids) => ids.len(),
            Self::Unix { .. } => 0,
        }
    }
}

/// The destination of an entry, and its server.
struct Exposed {
    remote: String,
    owner: Client,
    server: Server,
}

/// The entries, by their protocol and their `local` text.
type Table = BTreeMap<(Transport, String), Exposed>;

/// The exposed ports and sockets of a gateway. Clones refer to the same table.
#[derive(Clone)]
pub(super) struct Exposures {
    handle: Handle,
    /// The process that binds Unix sockets.
    sockets: StartedSockets,
    table: Arc<Mutex<Table>>,
    unix_connections: Arc<Semaphore>,
}

impl Exposures {
    pub(super) fn new(handle: Handle, sockets: StartedSockets) -> Self {
        Self {
            handle,
            sockets,
            table: Arc::default(),
            unix_connections: Arc::new(Semaphore::new(UNIX_CONNECTIONS_MAX)),
        }
    }

    /// Adds an entry.
    pub(super) async fn expose(&self, entry: &Entry, owner: Client) -> Result<()> {
        // A port may have any number of leading zeros.
        if entry.local.len() > TEXT_MAX || entry.remote.len() > TEXT_MAX {
            bail!("local and remote have at most {TEXT_MAX} bytes; shorten them");
        }
        let mut table = self.table.lock().await;
        let key = (entry.protocol, entry.local.clone());
        if table.contains_key(&key) {
            // The text is gvproxy's, which callers search for.
            bail!("proxy already running");
        }
        if table.len() >= ENTRIES_MAX {
            bail!("there are {ENTRIES_MAX} entries already; remove some");
        }
        if owner != Client::Host {
            self.check_remote(entry, owner)?;
            self.check_parts(&table, owner)?;
        }
        let server = match entry.protocol {
            Transport::Tcp => self.forward(Protocol::Tcp, entry)?,
            Transport::Udp => self.forward(Protocol::Udp, entry)?,
            Transport::Unix => self.serve_unix(entry).await?,
        };
        let exposed = Exposed {
            remote: entry.remote.clone(),
            owner,
            server,
        };
        table.insert(key, exposed);
        Ok(())
    }

    /// Fails unless the entry of a guest leads to the guest: neither to another one, nor to a service of the
    /// gateway, which its forward would open to the host's network.
    fn check_remote(&self, entry: &Entry, owner: Client) -> Result<()> {
        let ip = parse_remote(&entry.remote)?.ip();
        let remote = Client::Guest {
            port: self.handle.guest_of(ip),
            address: ip,
        };
        if !owner.is_guest(remote) {
            bail!("{ip} is no address of this guest; expose it from the host");
        }
        Ok(())
    }

    /// Fails if a guest, or all guests together, have their part of the entries or of the forwards.
    fn check_parts(&self, table: &Table, owner: Client) -> Result<()> {
        let forwards_max = self.handle.forwards_max();
        let check = |of: &str, part: usize, is_counted: &dyn Fn(Client) -> bool| {
            let counted = table.values().filter(|exposed| is_counted(exposed.owner));
            let (entries, forwards) = counted.fold((0, 0), |(entries, forwards), exposed| {
                (entries + 1, forwards + exposed.server.forwards())
            });
            // An entry without an address has two forwards.
            if entries >= ENTRIES_MAX / part || forwards + 2 > forwards_max / part {
                bail!("{of} added {entries} entries with {forwards} forwards already; remove some");
            }
            Ok(())
        };
        check("this guest has", PART_OF_GUEST, &|other| {
            owner.is_guest(other)
        })?;
        check("guests have", PART_OF_GUESTS, &|other| {
            other != Client::Host
        })
    }

    /// Removes an entry. Its TCP connections continue.
    pub(super) async fn unexpose(&self, entry: &Entry, client: Client) -> Result<()> {
        let key = (entry.protocol, entry.local.clone());
        let mut table = self.table.lock().await;
        let owner = table.get(&key).map(|exposed| exposed.owner);
        if owner.is_some_and(|owner| !client.may_remove_of(owner)) {
            bail!(
                "{} was not exposed by this guest; remove it from the host",
                entry.local
            );
        }
        let removed = table.remove(&key);
        drop(table);
        match removed.map(|exposed| exposed.server) {
            Some(Server::Forwards(ids)) => {
                let mut result = Ok(());
                for id in ids {
                    result = result.and(self.handle.remove_forward(id));
                }
                Ok(result?)
            }
            Some(Server::Unix { task, file }) => {
                task.abort();
                file.remove().await;
                Ok(())
            }
            None => bail!("proxy not found"),
        }
    }

    pub(super) async fn list(&self) -> Vec<Entry> {
        let table = self.table.lock().await;
        let entry = |((protocol, local), exposed): (&(Transport, String), &Exposed)| Entry {
            local: local.clone(),
            remote: exposed.remote.clone(),
            protocol: *protocol,
        };
        table.iter().map(entry).collect()
    }

    /// Binds the forwards of an entry: two if it names no address.
    fn forward(&self, protocol: Protocol, entry: &Entry) -> Result<Server> {
        let remote = parse_remote(&entry.remote)?;
        let (required, optional) = parse_local(&entry.local)?;
        let add = |local| {
            let forward = Forward::new(Side::Host, protocol, local, remote);
            self.handle.add_forward(forward)
        };
        let mut ids = vec![add(required)?];
        // The host may have no IPv6, or a socket of another program for both families.
        ids.extend(optional.and_then(|local| add(local).ok()));
        Ok(Server::Forwards(ids))
    }

    /// Listens on a Unix socket of the host.
    async fn serve_unix(&self, entry: &Entry) -> Result<Server> {
        let remote = parse_remote(&entry.remote)?;
        let path = PathBuf::from(&entry.local);
        if !path.is_absolute() {
            bail!("{} is not the absolute path of a socket", entry.local);
        }
        let (listener, file) = self.sockets.bind(&path).await?.into_parts();
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let task = tokio::spawn(accept_unix(self.clone(), listener, remote));
        Ok(Server::Unix {
            task: task.abort_handle(),
            file,
        })
    }

    /// Connects a client to a TCP port of the guest.
    pub(super) async fn connect(&self, remote: SocketAddr) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.handle.stack(), remote).await;
        stream.with_context(|| format!("cannot connect to {remote}"))
    }
}

async fn accept_unix(exposures: Exposures, listener: UnixListener, remote: SocketAddr) {
    loop {
        let Ok(permit) = exposures.unix_connections.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((client, _)) => {
                let exposures = exposures.clone();
                tokio::spawn(async move {
                    if let Err(error) = relay_unix(&exposures, client, remote).await {
                        tracing::debug!("a connection of an exposed socket failed: {error:#}");
                    }
                    drop(permit);
                });
            }
            // Descriptors or memory are missing and may be free later.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn relay_unix(exposures: &Exposures, mut client: UnixStream, to: SocketAddr) -> Result<()> {
    let mut guest = exposures.connect(to).await?;
    copy_bidirectional(&mut client, &mut guest).await?;
    Ok(())
}

/// Parses `192.168.127.2:80` or `tcp://192.168.127.2:80`.
fn parse_remote(text: &str) -> Result<SocketAddr> {
    if text.starts_with("ssh-tunnel://") {
        bail!("{text} is not supported: it needs SSH; expose a port of the virtual machine");
    }
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let address = address.strip_suffix('/').unwrap_or(address);
    let parsed = address.parse();
    parsed.with_context(|| {
        format!("remote {text} is not an address with a port; write e.g. 192.168.127.2:80")
    })
}

/// Parses `:80` and `127.0.0.1:80`. Returns the address to bind, and a second address that may fail to
/// bind.
fn parse_local(text: &str) -> Result<(SocketAddr, Option<SocketAddr>)> {
    let wrong = || format!("local {text} is not an address with a port; write e.g. :8080");
    let Some(port) = text.strip_prefix(':') else {
        return Ok((text.parse().with_context(wrong)?, None));
    };
    let port: u16 = port.parse().with_context(wrong)?;
    let of = |ip: IpAddr| SocketAddr::new(ip, port);
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    Ok((of(v4), Some(of(v6))))
}

/// Parses bytes as an entry, for the fuzz target.
pub(super) fn parse_any(bytes: &[u8]) {
    let Ok(entry) = serde_json::from_slice::<Entry>(bytes) else {
        return;
    };
    let _ = parse_remote(&entry.remote);
    if let Ok((required, Some(optional))) = parse_local(&entry.local) {
        assert_eq!(required.port(), optional.port());
        assert_ne!(required.is_ipv4(), optional.is_ipv4());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locals_without_an_address_are_of_both_families() {
        let (first, second) = parse_local(":80").unwrap();
        assert_eq!(first, "0.0.0.0:80".parse().unwrap());
        assert_eq!(second, Some("[::]:80".parse().unwrap()));
        assert_eq!(
            parse_local("[::1]:80").unwrap(),
            ("[::1]:80".parse().unwrap(), None)
        );
        for text in ["", ":", ":x", "80", "localhost:80", ":70000"] {
            assert!(parse_local(text).is_err(), "{text}");
        }
    }

    #[test]
    fn remotes_are_addresses_or_urls_of_tcp() {
        let expected = "192.168.127.2:80".parse().unwrap();
        for text in [
            "192.168.127.2:80",
            "tcp://192.168.127.2:80",
            "tcp://192.168.127.2:80/",
        ] {
            assert_eq!(parse_remote(text).unwrap(), expected);
        }
        for text in [
            "",
            "guest:80",
            "ssh-tunnel://user@192.168.127.2:22/x",
            "192.168.127.2",
        ] {
            assert!(parse_remote(text).is_err(), "{text}");
        }
    }

    #[test]
    fn entries_have_the_names_of_gvproxy() {
        let text = r#"{"local":":6443","remote":"192.168.127.2:6443"}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(entry.protocol, Transport::Tcp);
        let text = r#"{"local":"/s","remote":"192.168.127.2:80","protocol":"unix"}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&entry).unwrap(), text);
        let wrong = r#"{"local":"/s","protocol":"npipe"}"#;
        assert!(serde_json::from_str::<Entry>(wrong).is_err());
    }
}
