//! A TUN whose connections and datagrams continue through a SOCKS5 proxy: see docs/examples.md.
//!
//! ```text
//! tun2socks --tun fs0 --proxy 127.0.0.1:1080
//! ip route add 203.0.113.0/24 dev fs0
//! ```

mod socks5 {
    //! The client's side of SOCKS5 (RFC 1928), without authentication.

    use std::io::{Error, Result};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    pub const CONNECT: u8 = 1;
    pub const UDP_ASSOCIATE: u8 = 3;

    /// Opens a connection to the proxy with a request, and returns it with the address of the reply.
    pub async fn request(
        proxy: SocketAddr,
        command: u8,
        to: SocketAddr,
    ) -> Result<(TcpStream, SocketAddr)> {
        let mut stream = TcpStream::connect(proxy).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&[5, 1, 0]).await?;
        let mut method = [0; 2];
        stream.read_exact(&mut method).await?;
        if method != [5, 0] {
            return Err(Error::other("the proxy requires authentication"));
        }
        let mut message = vec![5, command, 0];
        put_address(&mut message, to);
        stream.write_all(&message).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            return Err(Error::other(format!("the proxy's reply is {}", head[1])));
        }
        let mut bytes = vec![0; if head[3] == 4 { 18 } else { 6 }];
        stream.read_exact(&mut bytes).await?;
        let bound =
            address(head[3], &bytes).ok_or_else(|| Error::other("no address in the reply"))?;
        Ok((stream, bound.0))
    }

    /// Appends the type, the address and the port.
    pub fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
        match address.ip() {
            IpAddr::V4(ip) => {
                out.push(1);
                out.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(4);
                out.extend(ip.octets());
            }
        }
        out.extend(address.port().to_be_bytes());
    }

    /// Parses an address of this type, and returns it with the bytes after it.
    fn address(kind: u8, bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
        let (ip, rest) = match kind {
            1 => {
                let (ip, rest) = bytes.split_first_chunk::<4>()?;
                (IpAddr::from(Ipv4Addr::from(*ip)), rest)
            }
            4 => {
                let (ip, rest) = bytes.split_first_chunk::<16>()?;
                (IpAddr::from(Ipv6Addr::from(*ip)), rest)
            }
            _ => return None,
        };
        let (port, rest) = rest.split_first_chunk::<2>()?;
        Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
    }

    /// Returns a datagram for the proxy's relay.
    pub fn wrap(to: SocketAddr, data: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; 3];
        put_address(&mut datagram, to);
        datagram.extend_from_slice(data);
        datagram
    }

    /// Returns the sender and the data of a datagram from the relay. Fragments are not accepted.
    pub fn unwrap(datagram: &[u8]) -> Option<(SocketAddr, &[u8])> {
        let (head, rest) = datagram.split_first_chunk::<4>()?;
        (head[2] == 0).then(|| address(head[3], rest)).flatten()
    }
}

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fullsend::{PendingConnection, Stack, TransparentListener, UdpSocket, UnreachableCode};
use tokio::io::copy_bidirectional;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

/// Most connections that wait for the proxy.
const PENDING: usize = 256;
/// Memory of the datagrams that wait for this program, in bytes.
const UDP_QUEUE: usize = 1 << 20;
/// Most clients with datagrams, and most datagrams of each that wait for the proxy.
const UDP_CLIENTS: usize = 256;
const UDP_CLIENT_QUEUE: usize = 64;
/// How long a client without datagrams keeps its association with the proxy.
const UDP_IDLE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Args {
    /// TUN interface, created if it does not exist.
    #[arg(long, default_value = "fs0")]
    tun: String,
    /// Address of the SOCKS5 proxy.
    #[arg(long)]
    proxy: SocketAddr,
    /// Memory of the stack, in MiB.
    #[arg(long, default_value_t = 64)]
    memory: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let args = Args::parse();
    // The stack needs an address for its ICMP errors; connections have those of their clients.
    let stack = Stack::builder()
        .memory_bytes(args.memory << 20)
        .tun(&args.tun)
        .address("198.18.0.1/30")
        .kernel_address("198.18.0.2/30")
        .route("0.0.0.0/0", None)
        .route("::/0", None)
        .build()?;
    let listener = TransparentListener::any(&stack, PENDING)?;
    let datagrams = Arc::new(UdpSocket::bind_any(&stack, UDP_QUEUE)?);
    println!("{} leads to {}", args.tun, args.proxy);
    tokio::spawn(relay_datagrams(datagrams, args.proxy));
    loop {
        let pending = listener.accept().await?;
        tokio::spawn(async move {
            let (from, to) = (pending.peer_addr(), pending.local_addr());
            if let Err(error) = relay_connection(pending, args.proxy).await {
                eprintln!("{from} to {to}: {error}");
            }
        });
    }
}

/// Connects through the proxy first, so that the client sees a refused connection as such.
async fn relay_connection(pending: PendingConnection, proxy: SocketAddr) -> io::Result<()> {
    let to = pending.local_addr();
    match socks5::request(proxy, socks5::CONNECT, to).await {
        Ok((mut upstream, _)) => {
            let mut client = pending.accept().await?;
            copy_bidirectional(&mut client, &mut upstream).await?;
            Ok(())
        }
        Err(error) => {
            pending.reject_unreachable(UnreachableCode::Host)?;
            Err(error)
        }
    }
}

/// Passes each client's datagrams to a task of its own. Datagrams that find no room are dropped.
async fn relay_datagrams(socket: Arc<UdpSocket>, proxy: SocketAddr) -> io::Result<()> {
    let mut clients: HashMap<SocketAddr, Sender<(SocketAddr, Vec<u8>)>> = HashMap::new();
    let mut batch = Vec::new();
    loop {
        socket.recv_many(&mut batch, 64).await?;
        for datagram in batch.drain(..) {
            let mut data = vec![0; datagram.payload.len()];
            datagram.payload.copy_to(&mut data);
            if clients.get(&datagram.from).is_none_or(Sender::is_closed) {
                clients.retain(|_, sender| !sender.is_closed());
                if clients.len() == UDP_CLIENTS {
                    continue;
                }
                let (sender, receiver) = channel(UDP_CLIENT_QUEUE);
                clients.insert(datagram.from, sender);
                tokio::spawn(associate(socket.clone(), datagram.from, proxy, receiver));
            }
            let _ = clients[&datagram.from].try_send((datagram.to, data));
        }
    }
}

/// Relays the datagrams of one client. Its association ends with the connection to the proxy.
async fn associate(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    proxy: SocketAddr,
    mut datagrams: Receiver<(SocketAddr, Vec<u8>)>,
) -> io::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let (_control, mut relay) = socks5::request(proxy, socks5::UDP_ASSOCIATE, any).await?;
    if relay.ip().is_unspecified() {
        relay.set_ip(proxy.ip());
    }
    let local: IpAddr = match relay {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let upstream = tokio::net::UdpSocket::bind((local, 0)).await?;
    upstream.connect(relay).await?;
    let mut buf = vec![0; 65_536];
    loop {
        let next = async {
            tokio::select! {
                datagram = datagrams.recv() => {
                    let Some((to, data)) = datagram else {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    };
                    upstream.send(&socks5::wrap(to, &data)).await.map(drop)
                }
                received = upstream.recv(&mut buf) => {
                    let received = received?;
                    if let Some((from, data)) = socks5::unwrap(&buf[..received])
                        && from.is_ipv4() == client.is_ipv4()
                    {
                        socket.send_from(data, from, client).await?;
                    }
                    Ok(())
                }
            }
        };
        timeout(UDP_IDLE, next).await??;
    }
}
