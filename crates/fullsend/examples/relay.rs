//! A complete program: a server on a userspace stack that relays each connection to a socket of the
//! host, ends gracefully, and recovers from the loss of its device.
//!
//! ```text
//! cargo build --release -p fullsend --example relay
//! sudo target/release/examples/relay --tun fs0 --address 10.9.0.2/24 --listen 80 --to 127.0.0.1:8000
//! curl http://10.9.0.2/
//! ```

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Parser;
use fullsend::{Stack, TcpListener, TcpStream, default_kernel_address};
use tokio::io::copy_bidirectional;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long connections may take to finish after the signal to end.
const GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Pause before a lost device is opened again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Parser)]
#[command(about = "Relays connections from a stack of its own to a socket of the host")]
struct Args {
    /// TUN interface, created if it does not exist.
    #[arg(long, default_value = "fs0")]
    tun: String,
    /// The stack's address with its prefix length.
    #[arg(long)]
    address: String,
    /// Port to listen on.
    #[arg(long, default_value_t = 80)]
    listen: u16,
    /// Address of the host's server.
    #[arg(long)]
    to: SocketAddr,
}

/// The signals that end the program.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let args = Args::parse();
    let mut stop = StopSignals {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
    };
    // An error in the arguments ends the program; the loss of a device that worked does not.
    let mut stack = open(&args)?;
    loop {
        let Err(error) = serve(&stack, &args, &mut stop).await else {
            return shut_down(&stack).await;
        };
        eprintln!("{error}; opening {} again", args.tun);
        stack = loop {
            tokio::select! {
                () = sleep(RETRY_DELAY) => {}
                () = stop.received() => return Ok(()),
            }
            match open(&args) {
                Ok(stack) => break stack,
                Err(error) => eprintln!("{error}"),
            }
        };
    }
}

/// Opens the device, with an address of the same network on the kernel's side.
fn open(args: &Args) -> io::Result<Stack> {
    let mut builder = Stack::builder().tun(&args.tun).address(&args.address);
    let (address, prefix) = args.address.split_once('/').unwrap_or((&args.address, ""));
    if let (Ok(address), Ok(prefix)) = (address.parse(), prefix.parse())
        && let Some(kernel) = default_kernel_address(address, prefix)
    {
        builder = builder.kernel_address(&format!("{kernel}/{prefix}"));
    }
    builder.build()
}

/// Relays until the signal to end. It then accepts no more connections, and the current ones have
/// [`GRACE_PERIOD`] to finish.
///
/// # Errors
/// If the device is lost: every call on its stack fails from then on.
async fn serve(stack: &Stack, args: &Args, stop: &mut StopSignals) -> io::Result<()> {
    let listener = TcpListener::bind(stack, (Ipv6Addr::UNSPECIFIED, args.listen))?;
    println!("listening at {} port {}", args.address, args.listen);
    let mut relays = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, from) = accepted?;
                relays.spawn(relay(stream, from, args.to));
            }
            // Removes relays from the set as they end.
            Some(_) = relays.join_next() => {}
            () = stop.received() => break,
        }
    }
    drop(listener);
    println!(
        "{} connections have {GRACE_PERIOD:?} to finish",
        relays.len()
    );
    let finished = async { while relays.join_next().await.is_some() {} };
    if timeout(GRACE_PERIOD, finished).await.is_err() {
        // The remaining relays are aborted here, and their connections are reset with the stack.
        println!("{} connections did not finish", relays.len());
    }
    Ok(())
}

/// Copies data in both directions until both ends have closed; each end's FIN is passed on.
async fn relay(mut stream: TcpStream, from: SocketAddr, to: SocketAddr) {
    let result = async {
        let mut host = tokio::net::TcpStream::connect(to).await?;
        copy_bidirectional(&mut stream, &mut host).await
    };
    match result.await {
        Ok((received, sent)) => println!("{from}: {received} bytes received, {sent} sent"),
        Err(error) => println!("{from}: {error}"),
    }
}

/// Waits until the peers have acknowledged all written data, then stops the stack. Without this the
/// device, and with it the last data and FINs, would be lost when the process exits.
async fn shut_down(stack: &Stack) -> io::Result<()> {
    match timeout(GRACE_PERIOD, stack.shutdown()).await {
        Ok(done) => done,
        // A peer does not answer. Its connection is reset when the runtime ends.
        Err(_) => Ok(()),
    }
}
