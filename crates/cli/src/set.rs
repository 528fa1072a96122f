//! `--api set`: requests and responses between two stacks in this process, each with one task that serves
//! all connections with a `TcpSet`.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fullsend::{SetStream, TcpListener, TcpSet, TcpStream};
use fullsend_tcp::FlowReport;
use hdrhistogram::Histogram;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::{InProcessLink, Test, TestArgs, congestion_error};
use crate::flow::{FLOWS_PER_PORT, READ_MAX};
use crate::net::NetStack;
use crate::net::embedded::Embedded;
use crate::pattern::Pattern;
use crate::progress::TestProgress;
use crate::report::{TestResult, new_histogram};
use crate::send_report::SendReport;
use crate::usage::{self, Usage};

/// Time for connections to finish after the test's duration.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// One end of a connection, which writes a message and reads a message alternately.
struct RrEnd {
    to_write: usize,
    to_read: usize,
    /// The start of the current transaction, at the client.
    started: Instant,
}

/// The buffers that all steps use.
struct Buffers {
    pattern: Pattern,
    scratch: Vec<u8>,
}

impl Buffers {
    fn new(message: usize) -> Self {
        Self {
            pattern: Pattern::new(message),
            scratch: vec![0; READ_MAX],
        }
    }
}

/// Converts the result of a call that may block: `None` if it would.
fn would_block_to_none<R>(result: io::Result<R>) -> io::Result<Option<R>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

impl RrEnd {
    /// Starts to write a message of `write` bytes, after which a message of `read` bytes is read.
    fn begin(
        &mut self,
        stream: &mut SetStream<'_>,
        buffers: &Buffers,
        (write, read): (usize, usize),
    ) -> io::Result<()> {
        (self.to_write, self.to_read) = (write, read);
        self.write(stream, buffers)
    }

    fn write(&mut self, stream: &mut SetStream<'_>, buffers: &Buffers) -> io::Result<()> {
        while self.to_write > 0 {
            let data = buffers.pattern.at(0, self.to_write);
            match would_block_to_none(stream.try_write(data))? {
                Some(n) => self.to_write -= n,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes and reads the rest of the current messages. Returns whether both are complete.
    fn step(&mut self, stream: &mut SetStream<'_>, buffers: &mut Buffers) -> io::Result<bool> {
        self.write(stream, buffers)?;
        if self.to_write > 0 {
            return Ok(false);
        }
        while self.to_read > 0 {
            let len = self.to_read.min(READ_MAX);
            match would_block_to_none(stream.try_read(&mut buffers.scratch[..len]))? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(n) => self.to_read -= n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Receives a request and answers it.
    fn answer(
        &mut self,
        stream: &mut SetStream<'_>,
        buffers: &mut Buffers,
        (request, response): (usize, usize),
    ) -> io::Result<()> {
        if self.step(stream, buffers)? {
            self.begin(stream, buffers, (response, request))?;
        }
        Ok(())
    }
}

/// Answers the requests of accepted connections until they end.
async fn serve(mut accepted: mpsc::Receiver<TcpStream>, sizes: (usize, usize)) -> Result<()> {
    let mut set = TcpSet::new();
    let mut buffers = Buffers::new(sizes.1);
    loop {
        tokio::select! {
            biased;
            served = set.serve(|stream, end: &mut RrEnd| {
                // An error means that the client has closed the connection.
                if end.answer(stream, &mut buffers, sizes).is_err() {
                    stream.remove();
                }
            }) => {
                served?;
            }
            Some(stream) = accepted.recv() => {
                let end = RrEnd { to_write: 0, to_read: sizes.0, started: Instant::now() };
                set.insert(stream, end)?;
            }
        }
    }
}

/// Passes the connections of a listener to the task that serves them.
async fn accept(listener: TcpListener, accepted: mpsc::Sender<TcpStream>) -> Result<()> {
    loop {
        accepted.send(listener.accept().await?.0).await?;
    }
}

/// The client's connections.
struct Client {
    set: TcpSet<RrEnd>,
    buffers: Buffers,
    /// Bytes of a request and of a response.
    sizes: (usize, usize),
    progress: TestProgress,
    transactions: u64,
    histogram: Histogram<u64>,
    flow: FlowReport,
}

impl Client {
    /// Runs transactions until `deadline`, and ends each connection after its last one.
    async fn run(&mut self, deadline: Instant) -> Result<()> {
        let (request, response) = self.sizes;
        while !self.set.is_empty() {
            let (buffers, histogram) = (&mut self.buffers, &mut self.histogram);
            let (mut ended, mut failure, mut finished) = (Vec::new(), None, 0);
            self.set
                .serve(|stream, end| {
                    match end.step(stream, buffers) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(error) => return failure = Some(error),
                    }
                    let now = Instant::now();
                    let elapsed = now.duration_since(end.started);
                    histogram.saturating_record(elapsed.as_nanos() as u64);
                    finished += 1;
                    if now >= deadline {
                        return ended.push(stream.key());
                    }
                    (end.to_write, end.to_read, end.started) = (request, response, now);
                    // Starts the next transaction, whose response cannot have arrived yet.
                    failure = end.step(stream, buffers).err();
                })
                .await?;
            if let Some(error) = failure {
                return Err(error).context("a connection failed during the test");
            }
            self.transactions += finished;
            self.progress
                .add(finished * (request + response) as u64, finished);
            for key in ended {
                if let Some((stream, _)) = self.set.remove(key)
                    && let Ok(report) = stream.flow_report()
                {
                    self.flow.merge(&report);
                }
            }
        }
        Ok(())
    }
}

/// Opens the connections, each ready to send its first request.
async fn connect(
    net: &Embedded,
    servers: &[SocketAddr],
    args: &TestArgs,
) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(args.flows);
    for flow in 0..args.flows {
        let stream = net.connect(servers[flow / FLOWS_PER_PORT]).await?;
        if args.nodelay {
            stream.set_nodelay(true)?;
        }
        if let Some(name) = &args.congestion {
            stream
                .set_congestion(name)
                .with_context(|| congestion_error(name))?;
        }
        streams.push(stream);
    }
    Ok(streams)
}

/// Runs the test.
pub(crate) async fn run(
    link: InProcessLink,
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    let Test::Rr { request, response } = args.test else {
        bail!("--api set measures `perf rr`; use another API, or `perf rr`");
    };
    let runtime = tokio::runtime::Handle::current();
    let (client, server) = Embedded::pair(link, (&args.set, args.qdisc), &[runtime])?;
    Embedded::open_control(&args.control, &client, Some(&server))?;
    let (accepted, to_serve) = mpsc::channel(64);
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    tasks.spawn(serve(to_serve, (request, response)));
    let mut servers = Vec::new();
    for _ in 0..args.flows.div_ceil(FLOWS_PER_PORT) {
        let listener = server.listen(SocketAddr::new(link.server_ip(), 0)).await?;
        servers.push(listener.local_addr()?);
        tasks.spawn(accept(listener, accepted.clone()));
    }
    let streams = connect(&client, &servers, args).await?;
    let before = (client.counters()?, server.counters()?);
    let usage = Usage::now()?;
    let started = Instant::now();
    progress.start();
    let mut test = Client {
        set: TcpSet::new(),
        buffers: Buffers::new(request),
        sizes: (request, response),
        progress: progress.clone(),
        transactions: 0,
        histogram: new_histogram(),
        flow: FlowReport::default(),
    };
    for stream in streams {
        let end = RrEnd {
            to_write: request,
            to_read: response,
            started,
        };
        test.set.insert(stream, end)?;
    }
    let deadline = started + args.time;
    // The future runs in a task: tokio polls the future of `block_on` only together with its timers and
    // files.
    let running = tokio::spawn(async move { test.run(deadline).await.map(|()| test) });
    let test = tokio::time::timeout_at((deadline + FINISH_TIMEOUT).into(), running)
        .await
        .with_context(|| {
            format!(
                "some transactions did not finish within {} s after the test's time",
                FINISH_TIMEOUT.as_secs()
            )
        })???;
    let seconds = started.elapsed().as_secs_f64();
    drop(tasks);
    Ok(TestResult {
        seconds,
        bytes: test.transactions * (request + response) as u64,
        transactions: Some((test.transactions, test.histogram)),
        usage: Usage::now()?.since(&usage),
        client: usage::delta(&before.0, &client.counters()?),
        server: usage::delta(&before.1, &server.counters()?),
        reverse: false,
        flow: Some(SendReport::from(&test.flow)),
    })
}
