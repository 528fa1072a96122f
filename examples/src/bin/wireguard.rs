//! A WireGuard peer whose tunnel ends in sockets of this process: it needs neither root nor a TUN.
//! See docs/examples.md.
//!
//! ```text
//! wireguard genkey
//! wireguard run --private-key KEY --peer-key KEY --bind 0.0.0.0:51820 --endpoint 192.0.2.1:51820 \
//!     --address 10.9.0.2/24 --forward 127.0.0.1:8080=10.9.0.1:80 --expose 22=127.0.0.1:22
//! ```

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use clap::{Args, Parser};
use fullsend::{PacketPort, PacketSender, Stack, TcpListener, TcpStream, UserDeviceConfig};
use tokio::io::copy_bidirectional;
use tokio::net::UdpSocket;

/// MTU of the tunnel in bytes: 1500 less the headers of IPv6, UDP and WireGuard.
const MTU: u32 = 1420;
/// Longest datagram of the tunnel, in bytes.
const DATAGRAM: usize = 2048;
/// Packets that are processed before the timers and the other direction.
const BATCH: usize = 64;

#[derive(Parser)]
enum Command {
    /// Prints a private key and its public key.
    Genkey,
    /// Runs the tunnel.
    Run(Options),
}

#[derive(Args)]
struct Options {
    /// This peer's private key, base64.
    #[arg(long)]
    private_key: String,
    /// The other peer's public key, base64.
    #[arg(long)]
    peer_key: String,
    /// The host's address for the tunnel's datagrams.
    #[arg(long, default_value = "0.0.0.0:0")]
    bind: SocketAddr,
    /// The other peer's address; without it, this peer waits for the other one.
    #[arg(long)]
    endpoint: Option<SocketAddr>,
    /// Address in the tunnel, with its prefix length.
    #[arg(long)]
    address: String,
    /// Forwards connections to an address of the host into the tunnel: LOCAL=REMOTE.
    #[arg(long, value_parser = pair::<SocketAddr, SocketAddr>)]
    forward: Vec<(SocketAddr, SocketAddr)>,
    /// Forwards connections to a port in the tunnel to an address of the host: PORT=LOCAL.
    #[arg(long, value_parser = pair::<u16, SocketAddr>)]
    expose: Vec<(u16, SocketAddr)>,
}

/// Parses `LEFT=RIGHT`.
fn pair<A: std::str::FromStr, B: std::str::FromStr>(text: &str) -> Result<(A, B), String> {
    let parse = |text: &str| {
        let (left, right) = text.split_once('=')?;
        Some((left.parse().ok()?, right.parse().ok()?))
    };
    parse(text).ok_or_else(|| format!("`{text}` is not FROM=TO; write e.g. 80=127.0.0.1:8000"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = match Command::parse() {
        Command::Run(options) => options,
        Command::Genkey => {
            let mut secret = [0; 32];
            io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut secret)?;
            let public = PublicKey::from(&StaticSecret::from(secret));
            println!("{}", BASE64_STANDARD.encode(secret));
            println!("{}", BASE64_STANDARD.encode(public.as_bytes()));
            return Ok(());
        }
    };
    let key = |text: &str| -> Result<[u8; 32], Box<dyn Error>> {
        let bytes = BASE64_STANDARD.decode(text)?;
        Ok(bytes.try_into().map_err(|_| "a key has 32 bytes")?)
    };
    let secret = StaticSecret::from(key(&options.private_key)?);
    let peer = PublicKey::from(key(&options.peer_key)?);
    let tunn = Tunn::new(secret, peer, None, Some(25), 0, None);
    let udp = UdpSocket::bind(options.bind).await?;
    println!("datagrams at {}", udp.local_addr()?);

    let (builder, port) = Stack::builder().user_device(UserDeviceConfig::ip(MTU));
    let stack = builder
        .address(&options.address)
        .route("0.0.0.0/0", None)
        .build()?;
    for (from, to) in options.forward {
        let (stack, listener) = (stack.clone(), tokio::net::TcpListener::bind(from).await?);
        println!("{from} leads to {to} in the tunnel");
        tokio::spawn(async move {
            while let Ok((host, _)) = listener.accept().await {
                let stack = stack.clone();
                relay(host, async move { TcpStream::connect(&stack, to).await });
            }
        });
    }
    for (from, to) in options.expose {
        let listener = TcpListener::bind(&stack, ([0, 0, 0, 0], from))?;
        println!("port {from} in the tunnel leads to {to}");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                relay(stream, tokio::net::TcpStream::connect(to));
            }
        });
    }
    let tunnel = Tunnel {
        tunn,
        udp,
        endpoint: options.endpoint,
        out: vec![0; DATAGRAM],
    };
    Ok(tunnel.run(port).await?)
}

/// Copies data between `here` and the connection that `there` opens.
fn relay<A, B>(mut here: A, there: impl Future<Output = io::Result<B>> + Send + 'static)
where
    A: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    B: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let result = match there.await {
            Ok(mut there) => copy_bidirectional(&mut here, &mut there).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            eprintln!("a connection ended: {error}");
        }
    });
}

/// The tunnel: packets of the stack are encrypted to datagrams, and the reverse.
struct Tunnel {
    tunn: Tunn,
    udp: UdpSocket,
    /// Where the peer's last authenticated datagram came from.
    endpoint: Option<SocketAddr>,
    out: Vec<u8>,
}

impl Tunnel {
    async fn run(mut self, port: PacketPort) -> io::Result<()> {
        let PacketPort {
            mut receiver,
            mut sender,
        } = port;
        let mut packet = vec![0; MTU as usize];
        let mut datagram = vec![0; DATAGRAM];
        let mut timers = tokio::time::interval(Duration::from_millis(250));
        loop {
            tokio::select! {
                received = receiver.recv(&mut packet) => {
                    let mut len = received?;
                    for _ in 0..BATCH {
                        self.encrypt(&packet[..len]).await;
                        match receiver.try_recv(&mut packet) {
                            Ok(next) => len = next,
                            Err(_) => break,
                        }
                    }
                }
                received = self.udp.recv_from(&mut datagram) => {
                    let (mut len, mut from) = received?;
                    for _ in 0..BATCH {
                        self.decrypt(&datagram[..len], from, &mut sender).await;
                        match self.udp.try_recv_from(&mut datagram) {
                            Ok(next) => (len, from) = next,
                            Err(_) => break,
                        }
                    }
                }
                _ = timers.tick() => {
                    if let TunnResult::WriteToNetwork(datagram) = self.tunn.update_timers(&mut self.out) {
                        send(&self.udp, datagram, self.endpoint).await;
                    }
                }
            }
        }
    }

    /// Sends a packet of the stack to the peer.
    async fn encrypt(&mut self, packet: &[u8]) {
        // Without a session the packet waits in `tunn`, and this is the message that opens one.
        if let TunnResult::WriteToNetwork(datagram) = self.tunn.encapsulate(packet, &mut self.out) {
            send(&self.udp, datagram, self.endpoint).await;
        }
    }

    /// Passes the packet of a datagram to the stack, or answers a message of the protocol.
    async fn decrypt(&mut self, datagram: &[u8], from: SocketAddr, sender: &mut PacketSender) {
        let mut result = self
            .tunn
            .decapsulate(Some(from.ip()), datagram, &mut self.out);
        loop {
            match result {
                TunnResult::Done => self.endpoint = Some(from),
                TunnResult::Err(_) => {}
                TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                    self.endpoint = Some(from);
                    // A full queue drops the packet, as a router would.
                    sender.inject(packet);
                }
                TunnResult::WriteToNetwork(answer) => {
                    self.endpoint = Some(from);
                    send(&self.udp, answer, self.endpoint).await;
                    // Packets that waited for the session come next.
                    result = self.tunn.decapsulate(None, &[], &mut self.out);
                    continue;
                }
            }
            return;
        }
    }
}

/// Sends a datagram. A datagram that is not sent is a loss: the packets in it are sent again.
async fn send(udp: &UdpSocket, datagram: &[u8], to: Option<SocketAddr>) {
    if let Some(to) = to {
        let _ = udp.send_to(datagram, to).await;
    }
}
