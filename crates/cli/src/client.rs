//! The client of a test: opens the connections, runs them, and measures.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fullsend_tcp::FlowReport;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::args::{Test, TestArgs, congestion_help};
use crate::flow::{self, Carriage, Stopwatch};
use crate::net::{Net, Socket};
use crate::pattern::Pattern;
use crate::preamble::{ASK_COUNTERS, ASK_SENDING, Preamble, Receipt, Role};
use crate::progress::Progress;
use crate::report::{Outcome, new_histogram};
use crate::sending::Sending;
use crate::usage::{self, Counters, Usage};

/// Time for connections to finish after the test's duration.
const GRACE: Duration = Duration::from_secs(30);

/// Runs the test over `net` against `server`.
pub(crate) async fn run<N: Net>(
    net: &N,
    server: SocketAddr,
    args: &TestArgs,
    progress: &Progress,
) -> Result<Outcome> {
    let work = Arc::new(Work::new(args, progress));
    let mut control = Control::open(net, server, work.preamble.test).await?;
    let mut sockets = Vec::with_capacity(args.flows);
    for _ in 0..args.flows {
        sockets.push(work.open(net, server).await?);
    }
    let before = (net.counters()?, control.counters().await?);
    let usage = Usage::now()?;
    let started = Instant::now();
    let ends = started + args.time;
    progress.start();

    let mut tasks = JoinSet::new();
    for socket in sockets {
        let work = work.clone();
        tasks.spawn(async move { work.run(socket, ends).await });
    }
    let mut total = Done::default();
    while let Some(done) = join(&mut tasks, ends).await? {
        total.bytes += done.bytes;
        total.transactions += done.transactions;
        if let Some(flow) = done.flow {
            total.flow.get_or_insert_default().merge(&flow);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let usage = Usage::now()?.since(&usage);
    let after = (net.counters()?, control.counters().await?);
    let flow = if args.test.is_reverse() {
        control.sending().await?
    } else {
        total.flow.as_ref().map(Sending::from)
    };
    Ok(Outcome {
        seconds,
        bytes: total.bytes,
        transactions: matches!(args.test, Test::Rr { .. })
            .then(|| (total.transactions, work.histogram())),
        usage,
        client: usage::delta(&before.0, &after.0),
        server: usage::delta(&before.1, &after.1),
        reverse: args.test.is_reverse(),
        flow,
    })
}

/// Returns the next flow's result; `None` if all have ended.
async fn join(tasks: &mut JoinSet<Result<Done>>, ends: Instant) -> Result<Option<Done>> {
    let next = tokio::time::timeout_at((ends + GRACE).into(), tasks.join_next()).await;
    match next {
        Ok(None) => Ok(None),
        Ok(Some(done)) => Ok(Some(done?.context("a connection failed during the test")?)),
        Err(_) => bail!(
            "{} connections did not finish within {} s after the test's time; check that the \
             server still runs",
            tasks.len(),
            GRACE.as_secs()
        ),
    }
}

async fn connect<N: Net>(net: &N, server: SocketAddr) -> Result<N::Socket> {
    net.connect(server).await.with_context(|| {
        format!("cannot connect to {server}; check that `fullsend perf serve` runs there")
    })
}

/// The connection on which the server reports its counters.
struct Control<S>(S);

impl<S: Socket> Control<S> {
    async fn open<N: Net<Socket = S>>(net: &N, server: SocketAddr, test: u32) -> Result<Self> {
        let mut socket = connect(net, server).await?;
        let preamble = Preamble {
            role: Role::Counters,
            verify: false,
            nodelay: true,
            congestion: None,
            test,
        };
        socket.set_nodelay()?;
        socket.write_all(&preamble.emit()).await?;
        Ok(Self(socket))
    }

    async fn counters(&mut self) -> Result<Counters> {
        Ok(serde_json::from_slice(&self.ask(ASK_COUNTERS).await?)?)
    }

    /// Returns the server's send report; `None` if its stack does not provide one, or it is an older
    /// server, which answers with counters.
    async fn sending(&mut self) -> Result<Option<Sending>> {
        let text = self.ask(ASK_SENDING).await?;
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    async fn ask(&mut self, what: u8) -> Result<Vec<u8>> {
        let get = async {
            self.0.write_all(&[what]).await?;
            let len = self.0.read_u32().await?.min(1 << 20);
            let mut text = vec![0; len as usize];
            self.0.read_exact(&mut text).await?;
            io::Result::Ok(text)
        };
        tokio::time::timeout(GRACE, get)
            .await
            .context("the server did not send its counters in time; check that it still runs")?
            .context("the server did not send its counters; check that it is `fullsend perf serve`")
    }
}

/// The result of one flow.
#[derive(Default)]
struct Done {
    bytes: u64,
    transactions: u64,
    flow: Option<FlowReport>,
}

/// The state that all flows share.
struct Work {
    test: Test,
    preamble: Preamble,
    pattern: Pattern,
    latencies: Mutex<Histogram<u64>>,
    progress: Progress,
}

impl Work {
    fn new(args: &TestArgs, progress: &Progress) -> Self {
        let (role, verify, largest) = match args.test {
            Test::Stream {
                message,
                reverse: true,
                verify,
                ..
            } => {
                let source = Role::Source {
                    time_ms: args.time.as_millis().max(1) as u32,
                    message: message as u32,
                };
                (source, verify, flow::READ_MAX)
            }
            Test::Stream {
                message, verify, ..
            } => (Role::Sink, verify, message),
            Test::Rr { request, response } => {
                let rr = Role::Rr {
                    request: request as u32,
                    response: response as u32,
                };
                (rr, false, request)
            }
        };
        Self {
            test: args.test,
            preamble: Preamble {
                role,
                verify,
                nodelay: args.nodelay,
                congestion: args.congestion.clone(),
                test: RandomState::new().hash_one(()) as u32,
            },
            pattern: Pattern::new(largest),
            latencies: Mutex::new(new_histogram()),
            progress: progress.clone(),
        }
    }

    fn histogram(&self) -> Histogram<u64> {
        self.latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Opens a connection, sets its options and sends its preamble.
    async fn open<N: Net>(&self, net: &N, server: SocketAddr) -> Result<N::Socket> {
        let mut socket = connect(net, server).await?;
        if self.preamble.nodelay {
            socket.set_nodelay().context("TCP_NODELAY")?;
        }
        if let Some(name) = &self.preamble.congestion {
            socket
                .set_congestion(name)
                .with_context(|| congestion_help(name))?;
        }
        // A source starts at its preamble, which is therefore sent when all flows start.
        if !self.test.is_reverse() {
            socket.write_all(&self.preamble.emit()).await?;
        }
        Ok(socket)
    }

    /// Runs a flow from start to end.
    async fn run(&self, socket: impl Socket, ends: Instant) -> Result<Done> {
        match self.test {
            Test::Stream {
                message,
                reverse,
                zerocopy,
                verify,
                ..
            } => {
                let carriage = Carriage {
                    message,
                    pattern: self.pattern.clone(),
                    verify,
                    zerocopy,
                };
                let (receipt, flow) = if reverse {
                    (self.receive(socket, &carriage).await?, None)
                } else {
                    self.send(socket, &carriage, ends).await?
                };
                if let Some(place) = receipt.first_bad {
                    bail!(
                        "byte {place} of a stream differs from the byte that was sent; please \
                         report this"
                    );
                }
                Ok(Done {
                    bytes: receipt.bytes,
                    transactions: 0,
                    flow,
                })
            }
            Test::Rr { request, response } => self.rr(socket, request, response, ends).await,
        }
    }

    async fn send(
        &self,
        mut socket: impl Socket,
        carriage: &Carriage,
        ends: Instant,
    ) -> Result<(Receipt, Option<FlowReport>)> {
        let sent = flow::send(&mut socket, carriage, ends, &self.progress.bytes).await?;
        let receipt = Receipt::read(&mut socket).await?;
        let flow = socket.flow_report();
        if receipt.bytes != sent {
            bail!(
                "{sent} bytes were sent, but the server received {}",
                receipt.bytes
            );
        }
        Ok((receipt, flow))
    }

    async fn receive(&self, mut socket: impl Socket, carriage: &Carriage) -> Result<Receipt> {
        socket.write_all(&self.preamble.emit()).await?;
        let receipt = flow::receive(&mut socket, carriage, &self.progress.bytes).await?;
        socket.shutdown().await?;
        Ok(receipt)
    }

    async fn rr(
        &self,
        mut socket: impl Socket,
        request: usize,
        response: usize,
        ends: Instant,
    ) -> Result<Done> {
        let mut latencies = Latencies::new(&self.latencies, &self.progress, request + response);
        let mut done = Done::default();
        let mut then = Instant::now();
        // The clock is read once per transaction: each starts when the previous one has ended.
        let watch = Stopwatch::new(ends, request + response);
        while !watch.over(then) {
            socket.write_all(self.pattern.at(0, request)).await?;
            if !flow::take(&mut socket, response).await? {
                bail!(
                    "the server closed the connection before the end of the test; check that it \
                     still runs"
                );
            }
            let now = Instant::now();
            latencies.push(now.duration_since(then));
            then = now;
            done.transactions += 1;
            done.bytes += (request + response) as u64;
        }
        latencies.flush();
        done.flow = socket.flow_report();
        socket.shutdown().await?;
        flow::take(&mut socket, 1).await?;
        Ok(done)
    }
}

/// The latencies of a flow that are not yet in the shared histogram.
struct Latencies<'a> {
    all: &'a Mutex<Histogram<u64>>,
    progress: &'a Progress,
    bytes: usize,
    recent: Vec<u32>,
}

impl<'a> Latencies<'a> {
    /// Latencies per lock: enough to amortise it, few enough to stay in the cache.
    const BATCH: usize = 32;

    fn new(all: &'a Mutex<Histogram<u64>>, progress: &'a Progress, bytes: usize) -> Self {
        Self {
            all,
            progress,
            bytes,
            recent: Vec::with_capacity(Self::BATCH),
        }
    }

    fn push(&mut self, latency: Duration) {
        self.recent
            .push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
        if self.recent.len() == Self::BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        for &ns in &self.recent {
            all.saturating_record(ns.into());
        }
        self.progress.add(
            (self.recent.len() * self.bytes) as u64,
            self.recent.len() as u64,
        );
        self.recent.clear();
    }
}
