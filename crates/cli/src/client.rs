//! The client of a test, which opens the connections, runs them, and measures.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fullsend_tcp::FlowReport;
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::args::{Test, TestArgs, congestion_error};
use crate::flow::{self, FLOWS_PER_PORT, Stopwatch, TransferMode};
use crate::net::{NetStack, Socket};
use crate::pattern::Pattern;
use crate::preamble::{Preamble, REQUEST_COUNTERS, REQUEST_SEND_REPORT, Receipt, Role};
use crate::progress::TestProgress;
use crate::report::{TestResult, new_histogram};
use crate::send_report::SendReport;
use crate::usage::{self, Counters, Usage};

/// Time for connections to finish after the test's duration.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// A stack or one of its shards, and the runtime on which its flows run.
pub(crate) type ShardRuntime<N> = (N, Handle);

/// Runs the test on the current runtime over `net` against `server`.
pub(crate) async fn run<N: NetStack>(
    net: &N,
    server: SocketAddr,
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    let here = [(net.clone(), Handle::current())];
    run_on(net, &here, &[server], args, progress).await
}

/// Runs the test against `servers`, the addresses of one server, with its flows on the `shard_runtimes`
/// in rotation. `net` is the stack of all of them. Each address gets up to [`FLOWS_PER_PORT`] flows, and
/// the last one the rest.
pub(crate) async fn run_on<N: NetStack>(
    net: &N,
    shard_runtimes: &[ShardRuntime<N>],
    servers: &[SocketAddr],
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    // Each shard has its own runner: threads that record latencies in one histogram would wait for each
    // other's cache lines.
    let test = RandomState::new().hash_one(()) as u32;
    let runners = shard_runtimes
        .iter()
        .map(|_| Arc::new(FlowRunner::new(args, progress, test)));
    let runners: Vec<_> = runners.collect();
    let servers_of_flows =
        (0..).map(|flow| servers[(flow / FLOWS_PER_PORT).min(servers.len() - 1)]);
    let flows = || {
        let in_turn = runners.iter().zip(shard_runtimes).cycle();
        in_turn.zip(servers_of_flows.clone()).take(args.flows)
    };
    let mut control = ControlConnection::open(net, servers[0], test).await?;
    let mut sockets = Vec::with_capacity(args.flows);
    for ((runner, (net, _)), server) in flows() {
        sockets.push(runner.open(net, server).await?);
    }
    let before = (net.counters()?, control.counters().await?);
    let usage = Usage::now()?;
    let started = Instant::now();
    let deadline = started + args.time;
    progress.start();

    let mut tasks = JoinSet::new();
    for (socket, ((runner, (net, runtime)), server)) in sockets.into_iter().zip(flows()) {
        let (runner, net) = (runner.clone(), net.clone());
        let flow = async move { runner.run(socket, (&net, server), deadline).await };
        tasks.spawn_on(flow, runtime);
    }
    let mut total = FlowResult::default();
    while let Some(done) = join(&mut tasks, deadline).await? {
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
        control.send_report().await?
    } else {
        total.flow.as_ref().map(SendReport::from)
    };
    Ok(TestResult {
        seconds,
        bytes: total.bytes,
        transactions: matches!(args.test, Test::Rr { .. } | Test::Crr { .. })
            .then(|| (total.transactions, merged_histogram(&runners))),
        usage,
        client: usage::delta(&before.0, &after.0),
        server: usage::delta(&before.1, &after.1),
        reverse: args.test.is_reverse(),
        flow,
    })
}

fn merged_histogram(runners: &[Arc<FlowRunner>]) -> Histogram<u64> {
    let mut all = new_histogram();
    for runner in runners {
        // Does not fail, as all histograms have the same range.
        let _ = all.add(runner.histogram());
    }
    all
}

/// Returns the next flow's result, or `None` if all flows have ended.
async fn join(
    tasks: &mut JoinSet<Result<FlowResult>>,
    deadline: Instant,
) -> Result<Option<FlowResult>> {
    let next = tokio::time::timeout_at((deadline + FINISH_TIMEOUT).into(), tasks.join_next()).await;
    match next {
        Ok(None) => Ok(None),
        Ok(Some(done)) => Ok(Some(done?.context("a connection failed during the test")?)),
        Err(_) => bail!(
            "{} connections did not finish within {} s after the test's time; check that the \
             server still runs",
            tasks.len(),
            FINISH_TIMEOUT.as_secs()
        ),
    }
}

async fn connect<N: NetStack>(net: &N, server: SocketAddr) -> Result<N::Socket> {
    net.connect(server).await.with_context(|| {
        format!("cannot connect to {server}; check that `fullsend perf serve` runs there")
    })
}

/// The connection on which the server reports its counters.
struct ControlConnection<S>(S);

impl<S: Socket> ControlConnection<S> {
    async fn open<N: NetStack<Socket = S>>(net: &N, server: SocketAddr, test: u32) -> Result<Self> {
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
        Ok(serde_json::from_slice(
            &self.request(REQUEST_COUNTERS).await?,
        )?)
    }

    /// Returns the server's send report. `None` if its stack does not provide one, or if an older server
    /// answers with counters.
    async fn send_report(&mut self) -> Result<Option<SendReport>> {
        let text = self.request(REQUEST_SEND_REPORT).await?;
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    async fn request(&mut self, what: u8) -> Result<Vec<u8>> {
        let get = async {
            self.0.write_all(&[what]).await?;
            let len = self.0.read_u32().await?.min(1 << 20);
            let mut text = vec![0; len as usize];
            self.0.read_exact(&mut text).await?;
            io::Result::Ok(text)
        };
        tokio::time::timeout(FINISH_TIMEOUT, get)
            .await
            .context("the server did not send its counters in time; check that it still runs")?
            .context("the server did not send its counters; check that it is `fullsend perf serve`")
    }
}

/// The result of one flow.
#[derive(Default)]
struct FlowResult {
    bytes: u64,
    transactions: u64,
    flow: Option<FlowReport>,
}

/// The state that all flows share.
struct FlowRunner {
    test: Test,
    preamble: Preamble,
    pattern: Pattern,
    latencies: Mutex<Histogram<u64>>,
    progress: TestProgress,
}

impl FlowRunner {
    fn new(args: &TestArgs, progress: &TestProgress, test: u32) -> Self {
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
            Test::Crr { request, response } => {
                let crr = Role::Crr {
                    request: request as u32,
                    response: response as u32,
                };
                (crr, false, request)
            }
        };
        Self {
            test: args.test,
            preamble: Preamble {
                role,
                verify,
                nodelay: args.nodelay,
                congestion: args.congestion.clone(),
                test,
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
    async fn open<N: NetStack>(&self, net: &N, server: SocketAddr) -> Result<N::Socket> {
        let mut socket = connect(net, server).await?;
        if self.preamble.nodelay {
            socket.set_nodelay().context("TCP_NODELAY")?;
        }
        if let Some(name) = &self.preamble.congestion {
            socket
                .set_congestion(name)
                .with_context(|| congestion_error(name))?;
        }
        // A source starts at its preamble, which is therefore sent when all flows start; the preamble of
        // a single transaction is sent with its request.
        if !self.test.is_reverse() && !matches!(self.test, Test::Crr { .. }) {
            socket.write_all(&self.preamble.emit()).await?;
        }
        Ok(socket)
    }

    /// Runs a flow from start to end.
    async fn run<N: NetStack>(
        &self,
        socket: N::Socket,
        (net, server): (&N, SocketAddr),
        deadline: Instant,
    ) -> Result<FlowResult> {
        match self.test {
            Test::Stream {
                message,
                reverse,
                zerocopy,
                verify,
                ..
            } => {
                let transfer = TransferMode {
                    message,
                    pattern: self.pattern.clone(),
                    verify,
                    zerocopy,
                };
                let (receipt, flow) = if reverse {
                    (self.receive(socket, &transfer).await?, None)
                } else {
                    self.send(socket, &transfer, deadline).await?
                };
                if let Some(offset) = receipt.first_bad {
                    bail!(
                        "byte {offset} of a stream differs from the byte that was sent; please \
                         report this"
                    );
                }
                Ok(FlowResult {
                    bytes: receipt.bytes,
                    transactions: 0,
                    flow,
                })
            }
            Test::Rr { request, response } => self.rr(socket, request, response, deadline).await,
            Test::Crr { request, response } => {
                self.crr(socket, (net, server), (request, response), deadline)
                    .await
            }
        }
    }

    async fn send(
        &self,
        mut socket: impl Socket,
        transfer: &TransferMode,
        deadline: Instant,
    ) -> Result<(Receipt, Option<FlowReport>)> {
        let sent = flow::send(&mut socket, transfer, deadline, &self.progress.bytes).await?;
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

    async fn receive(&self, mut socket: impl Socket, transfer: &TransferMode) -> Result<Receipt> {
        socket.write_all(&self.preamble.emit()).await?;
        let receipt = flow::receive(&mut socket, transfer, &self.progress.bytes).await?;
        socket.shutdown().await?;
        Ok(receipt)
    }

    async fn rr(
        &self,
        mut socket: impl Socket,
        request: usize,
        response: usize,
        deadline: Instant,
    ) -> Result<FlowResult> {
        let mut latencies = Latencies::new(&self.latencies, &self.progress, request + response);
        let mut done = FlowResult::default();
        let mut started = Instant::now();
        // The clock is read once for each transaction, which starts when the previous one has ended.
        let watch = Stopwatch::new(deadline, request + response);
        while !watch.is_over(started) {
            socket.write_all(self.pattern.at(0, request)).await?;
            if !flow::read_exact_or_eof(&mut socket, response).await? {
                bail!(
                    "the server closed the connection before the end of the test; check that it \
                     still runs"
                );
            }
            let now = Instant::now();
            latencies.push(now.duration_since(started));
            started = now;
            done.transactions += 1;
            done.bytes += (request + response) as u64;
        }
        latencies.flush();
        done.flow = socket.flow_report();
        socket.shutdown().await?;
        flow::read_exact_or_eof(&mut socket, 1).await?;
        Ok(done)
    }

    /// Runs transactions, each on its own connection; `socket` is the first one.
    async fn crr<N: NetStack>(
        &self,
        mut socket: N::Socket,
        (net, server): (&N, SocketAddr),
        (request, response): (usize, usize),
        deadline: Instant,
    ) -> Result<FlowResult> {
        let first_write = [&self.preamble.emit()[..], self.pattern.at(0, request)].concat();
        let mut latencies = Latencies::new(&self.latencies, &self.progress, request + response);
        let mut done = FlowResult::default();
        let mut started = Instant::now();
        loop {
            socket.write_all(&first_write).await?;
            let is_whole = flow::read_exact_or_eof(&mut socket, response).await?
                && !flow::read_exact_or_eof(&mut socket, 1).await?;
            if !is_whole {
                bail!(
                    "the server did not answer with {response} bytes and the end of the stream; use \
                     the same version on both sides"
                );
            }
            drop(socket);
            let now = Instant::now();
            latencies.push(now.duration_since(started));
            started = now;
            done.transactions += 1;
            done.bytes += (request + response) as u64;
            if now >= deadline {
                break;
            }
            socket = self.open(net, server).await?;
        }
        latencies.flush();
        Ok(done)
    }
}

/// The latencies of a flow that are not yet in the shared histogram.
struct Latencies<'a> {
    shared: &'a Mutex<Histogram<u64>>,
    progress: &'a TestProgress,
    bytes: usize,
    recent: Vec<u32>,
}

impl<'a> Latencies<'a> {
    /// Latencies recorded under one lock: enough to amortise it, few enough to stay in the cache.
    const BATCH: usize = 32;

    fn new(shared: &'a Mutex<Histogram<u64>>, progress: &'a TestProgress, bytes: usize) -> Self {
        Self {
            shared,
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
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for &ns in &self.recent {
            shared.saturating_record(ns.into());
        }
        self.progress.add(
            (self.recent.len() * self.bytes) as u64,
            self.recent.len() as u64,
        );
        self.recent.clear();
    }
}
