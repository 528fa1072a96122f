//! `perf idle`: the memory of idle established connections.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use fullsend::TcpStream;
use serde::Serialize;

use crate::args::{Api, IdleArgs, InProcessLink};
use crate::core::HostPair;
use crate::flow::FLOWS_PER_PORT;
use crate::net::NetStack;
use crate::net::embedded::Embedded;
use fullsend_stack::QdiscConfig;

/// Connections that are opened before the measurement, to exclude one-time allocations.
const WARM_UP: usize = 64;

#[derive(Serialize)]
struct IdleReport {
    test: &'static str,
    connections: usize,
    rss_bytes: i64,
    bytes_per_end: f64,
}

/// Opens the connections with both ends in this process, and reports their memory.
pub(crate) fn run(args: &IdleArgs) -> Result<()> {
    let rss_bytes = match args.api {
        Api::Core => core(args.connections)?,
        Api::Set => bail!("--api set measures `perf rr`; use --api tokio or --api core"),
        Api::Tokio => crate::perf::runtime()?.block_on(tokio(args.connections))?,
    };
    let report = IdleReport {
        test: "idle",
        connections: args.connections,
        rss_bytes,
        bytes_per_end: (rss_bytes as f64 / (2 * args.connections) as f64 * 10.0).round() / 10.0,
    };
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        outln!(
            "{} idle connections: {} bytes of resident memory, {:.0} for each end",
            report.connections,
            report.rss_bytes,
            report.bytes_per_end
        );
    }
    Ok(())
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> Result<i64> {
    let statm = fs::read_to_string("/proc/self/statm").context("cannot read /proc/self/statm")?;
    let pages: i64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .context("cannot parse /proc/self/statm: its second field is not a number")?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    Ok(pages * page.unwrap_or(4096))
}

fn core(connections: usize) -> Result<i64> {
    let mut pair = HostPair::new(InProcessLink::DEFAULT, &[], QdiscConfig::default())?;
    let warm = pair.open(WARM_UP)?;
    let before = resident_bytes()?;
    let connections_held = pair.open(connections)?;
    let after = resident_bytes()?;
    drop((warm, connections_held, pair));
    Ok(after - before)
}

async fn tokio(connections: usize) -> Result<i64> {
    let (client, server) =
        Embedded::pair(InProcessLink::DEFAULT, (&[], QdiscConfig::NoQueue), &[])?;
    let warm = open(&client, &server, WARM_UP).await?;
    let before = resident_bytes()?;
    let mut connections_held = Vec::new();
    for first in (0..connections).step_by(FLOWS_PER_PORT) {
        let count = FLOWS_PER_PORT.min(connections - first);
        connections_held.push(open(&client, &server, count).await?);
    }
    let after = resident_bytes()?;
    drop((warm, connections_held));
    Ok(after - before)
}

/// Opens connections to a new listener, and returns both ends of each.
async fn open(
    client: &Embedded,
    server: &Embedded,
    connections: usize,
) -> Result<Vec<(TcpStream, TcpStream)>> {
    let on = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 0));
    let mut listener = server.listen(on).await?;
    let to = Embedded::local_addr(&listener)?;
    let mut all = Vec::with_capacity(connections);
    for _ in 0..connections {
        let connected = client.connect(to).await?;
        let (accepted, _) = Embedded::accept(&mut listener).await?;
        all.push((connected, accepted));
    }
    Ok(all)
}
