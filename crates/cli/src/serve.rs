//! `perf serve`: serves many clients. Prints a line for each connection, except those of `perf crr`, and
//! a summary at the end.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::client::ShardRuntime;
use crate::net::NetStack;
use crate::preamble::Role;
use crate::send_report::ReportCollector;
use crate::server::{self, Served};

/// Accepts and serves connections on each of `shard_runtimes` until Ctrl-C or SIGTERM.
pub(crate) async fn run<N: NetStack>(
    shard_runtimes: Vec<ShardRuntime<N>>,
    on: SocketAddr,
    description: &str,
) -> Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let total = Arc::new(Total::default());
    let collector = Arc::new(ReportCollector::default());
    let started = Instant::now();
    let mut accepting = JoinSet::new();
    let mut local = on;
    for (net, runtime) in shard_runtimes {
        let listener = listen(&net, local).await?;
        // The first shard chooses the port.
        local = N::local_addr(&listener)?;
        let shown = (total.clone(), collector.clone());
        accepting.spawn_on(accept_shown(net, listener, shown), &runtime);
    }
    outln!("listening on {local} ({description}); press Ctrl-C to stop");
    tokio::select! {
        done = tokio::signal::ctrl_c() => done?,
        _ = stop.recv() => {}
    }
    total.show(started.elapsed());
    Ok(())
}

/// Serves all connections of a listener, and prints a line for each.
async fn accept_shown<N: NetStack>(
    net: N,
    mut listener: N::Listener,
    (total, collector): (Arc<Total>, Arc<ReportCollector>),
) {
    loop {
        match N::accept(&mut listener).await {
            Ok((socket, peer)) => spawn(&net, socket, peer, (&total, &collector)),
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Listens on an address. The error names the remedy.
pub(crate) async fn listen<N: NetStack>(net: &N, on: SocketAddr) -> Result<N::Listener> {
    net.listen(on).await.with_context(|| {
        format!("cannot listen on {on}; choose another address or port with --bind")
    })
}

/// Reports an accept error and pauses: without descriptors or memory, accepting again at once would
/// busy-loop.
async fn pause_after(error: &io::Error) {
    errln!("cannot accept a connection: {error}; retrying");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn spawn<N: NetStack>(
    net: &N,
    socket: N::Socket,
    peer: SocketAddr,
    (total, collector): (&Arc<Total>, &Arc<ReportCollector>),
) {
    let (net, total, collector) = (net.clone(), total.clone(), collector.clone());
    tokio::spawn(async move {
        match server::serve(&net, socket, &collector, false).await {
            Ok(served) => total.add(peer, &served),
            Err(error) => {
                total.fail();
                outln!("{peer}  failed: {error}");
            }
        }
    });
}

/// Serves all connections without output, as the server of a test in this process.
pub(crate) async fn accept_all<N: NetStack>(net: N, mut listener: N::Listener, zerocopy: bool) {
    let collector = Arc::new(ReportCollector::default());
    loop {
        match N::accept(&mut listener).await {
            Ok((socket, _)) => {
                let (net, collector) = (net.clone(), collector.clone());
                // The client of the same test reports errors.
                tokio::spawn(
                    async move { server::serve(&net, socket, &collector, zerocopy).await },
                );
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Sums over all connections.
#[derive(Default)]
struct Total(Mutex<Sums>);

#[derive(Default)]
struct Sums {
    connections: u64,
    failed: u64,
    received: u64,
    sent: u64,
}

impl Total {
    fn add(&self, peer: SocketAddr, served: &Served) {
        if served.role == Role::Counters {
            return;
        }
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.connections += 1;
        sums.received += served.received;
        sums.sent += served.sent;
        // These connections would print thousands of lines per second.
        if !matches!(served.role, Role::Crr { .. }) {
            outln!("{peer}  {}", line(served));
        }
    }

    fn fail(&self) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.connections += 1;
        sums.failed += 1;
    }

    fn show(&self, elapsed: Duration) {
        let sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outln!(
            "{} connections ({} failed), {} bytes received, {} bytes sent in {:.1} s",
            sums.connections,
            sums.failed,
            sums.received,
            sums.sent,
            elapsed.as_secs_f64(),
        );
    }
}

/// Formats the summary of one connection.
fn line(served: &Served) -> String {
    let seconds = served.seconds.max(1e-9);
    let mbps = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e6;
    match served.role {
        Role::Sink => {
            let bad = served.first_bad.map_or_else(String::new, |offset| {
                format!(", WRONG DATA from byte {offset} on")
            });
            format!(
                "received {} bytes in {seconds:.2} s, {:.2} 10^6bits/s{bad}",
                served.received,
                mbps(served.received)
            )
        }
        Role::Source { .. } => format!(
            "sent {} bytes in {seconds:.2} s, {:.2} 10^6bits/s",
            served.sent,
            mbps(served.sent)
        ),
        Role::Rr { request, .. } => {
            let transactions = served.received / u64::from(request);
            format!(
                "{transactions} transactions in {seconds:.2} s, {:.0} per second",
                transactions as f64 / seconds
            )
        }
        Role::Crr { .. } => "one transaction".to_owned(),
        Role::Counters => "counters".to_owned(),
    }
}
