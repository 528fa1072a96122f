//! The server's end of a connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::flow::{self, TransferMode};
use crate::net::{NetStack, Socket};
use crate::pattern::Pattern;
use crate::preamble::{Preamble, REQUEST_SEND_REPORT, Role};
use crate::send_report::{ReportCollector, ReportSubscription};

/// The result of serving one connection.
pub(crate) struct Served {
    pub(crate) role: Role,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) seconds: f64,
    pub(crate) first_bad: Option<u64>,
}

/// Serves one connection to its end. With `zerocopy`, reads and writes without copying.
pub(crate) async fn serve<N: NetStack>(
    net: &N,
    mut socket: N::Socket,
    collector: &Arc<ReportCollector>,
    zerocopy: bool,
) -> io::Result<Served> {
    let preamble = Preamble::read(&mut socket).await?;
    if preamble.nodelay {
        socket.set_nodelay()?;
    }
    if let Some(name) = &preamble.congestion {
        socket.set_congestion(name)?;
    }
    let started = Instant::now();
    let mut served = Served {
        role: preamble.role,
        received: 0,
        sent: 0,
        seconds: 0.0,
        first_bad: None,
    };
    match preamble.role {
        Role::Sink => sink(&mut socket, &preamble, zerocopy, &mut served).await?,
        Role::Source { time_ms, message } => {
            let transfer = transfer(&preamble, message as usize, zerocopy);
            let until = started + Duration::from_millis(time_ms.into());
            let reporter = collector.add_flow(preamble.test);
            served.sent = flow::send(&mut socket, &transfer, until, &AtomicU64::new(0)).await?;
            flow::read_exact_or_eof(&mut socket, 1).await?;
            if let Some(report) = socket.flow_report() {
                reporter.report(&report);
            }
        }
        Role::Rr { request, response } => {
            rr(
                &mut socket,
                request as usize,
                response as usize,
                &mut served,
            )
            .await?;
        }
        Role::Crr { request, response } => {
            crr(&mut socket, request as usize, response as usize).await?;
            (served.received, served.sent) = (request.into(), response.into());
        }
        Role::Counters => counters(net, &mut socket, &collector.subscribe(preamble.test)).await?,
    }
    served.seconds = started.elapsed().as_secs_f64();
    Ok(served)
}

fn transfer(preamble: &Preamble, message: usize, zerocopy: bool) -> TransferMode {
    TransferMode {
        message,
        pattern: Pattern::new(message),
        verify: preamble.verify,
        zerocopy,
    }
}

async fn sink(
    socket: &mut impl Socket,
    preamble: &Preamble,
    zerocopy: bool,
    served: &mut Served,
) -> io::Result<()> {
    let transfer = transfer(preamble, flow::READ_MAX, zerocopy);
    let receipt = flow::receive(socket, &transfer, &AtomicU64::new(0)).await?;
    served.received = receipt.bytes;
    served.first_bad = receipt.first_bad;
    receipt.write(socket).await?;
    socket.shutdown().await
}

async fn rr(
    socket: &mut impl Socket,
    request: usize,
    response: usize,
    served: &mut Served,
) -> io::Result<()> {
    let pattern = Pattern::new(response);
    while flow::read_exact_or_eof(socket, request).await? {
        socket.write_all(pattern.at(0, response)).await?;
        served.received += request as u64;
        served.sent += response as u64;
    }
    socket.shutdown().await
}

async fn crr(socket: &mut impl Socket, request: usize, response: usize) -> io::Result<()> {
    if !flow::read_exact_or_eof(socket, request).await? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    socket
        .write_all(Pattern::new(response).at(0, response))
        .await?;
    socket.shutdown().await?;
    // Waits for the client's FIN, after which this end is in TIME-WAIT.
    flow::read_exact_or_eof(socket, 1).await.map(drop)
}

async fn counters<N: NetStack>(
    net: &N,
    socket: &mut N::Socket,
    subscription: &ReportSubscription,
) -> io::Result<()> {
    let mut request = [0];
    while socket.read(&mut request).await? > 0 {
        let text = match request {
            [REQUEST_SEND_REPORT] => serde_json::to_vec(&subscription.all().await)?,
            _ => serde_json::to_vec(&net.counters()?)?,
        };
        let mut answer = (text.len() as u32).to_be_bytes().to_vec();
        answer.extend(text);
        socket.write_all(&answer).await?;
    }
    socket.shutdown().await
}
