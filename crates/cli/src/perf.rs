//! `fullsend perf`: sets up the stacks of a test and prints its results.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc;

use anyhow::{Context, Result, anyhow};
use fullsend_stack::Cidr;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::args::{InProcessLink, NicKind, Perf, ServeArgs, TestArgs, TestSetup};
use crate::client::ShardRuntime;
use crate::flow::FLOWS_PER_PORT;
use crate::net::NetStack;
use crate::net::embedded::Embedded;
use crate::net::kernel::Kernel;
use crate::progress::{ProgressLine, TestProgress};
use crate::report::{Report, TestResult};
use crate::shard_threads::ShardThreads;
use crate::{client, core, idle, serve, set};

/// Runs the subcommand.
pub(crate) fn run(perf: Perf) -> Result<()> {
    match perf {
        Perf::Stream(args) => test(&args.try_into()?),
        Perf::Rr(args) => test(&args.try_into()?),
        Perf::Crr(args) => test(&args.into_crr()?),
        Perf::Serve(args) => serve(&args),
        Perf::Idle(args) => idle::run(&args),
    }
}

/// Returns a runtime of one thread: a test measures one core unless `--threads 2` is given.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

fn two_thread_runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

fn test(args: &TestArgs) -> Result<()> {
    let progress = TestProgress::default();
    let shown = ProgressLine::new(&progress);
    let (outcome, description) = match &args.setup {
        TestSetup::Loopback { ipv6 } => {
            let description = format!("kernel, loopback, {} threads", args.threads);
            (over_loopback(*ipv6, args, &progress)?, description)
        }
        TestSetup::Kernel { server } => {
            let outcome = runtime()?.block_on(client::run(&Kernel, *server, args, &progress))?;
            (outcome, format!("kernel, to {server}"))
        }
        &TestSetup::Core(link) => {
            let outcome = core::run(link, args, &progress)?;
            (outcome, describe_pair(link, "core API"))
        }
        &TestSetup::Set(link) => {
            let outcome = runtime()?.block_on(set::run(link, args, &progress))?;
            (outcome, describe_pair(link, "TcpSet"))
        }
        &TestSetup::Pair(link) => {
            let shards = describe_shards(args.shards);
            let description = describe_pair(link, "tokio API") + &shards;
            (over_pair(link, args, &progress)?, description)
        }
        TestSetup::Device { server, device } => {
            let outcome = runtime()?.block_on(async {
                let threads = ShardThreads::start(args.shards)?;
                let (runtimes, settings) = (threads.handles(), (&*args.set, args.qdisc));
                let client = Embedded::behind(device, settings, Some(*server), runtimes)?;
                Embedded::open_control(&args.control, &client, None)?;
                let shard_runtimes = client.shard_runtimes(runtimes);
                client::run_on(&client, &shard_runtimes, &[*server], args, &progress).await
            })?;
            let shards = describe_shards(args.shards);
            (
                outcome,
                format!("to {server} over {} {}{shards}", device.kind, device.name),
            )
        }
    };
    drop(shown);
    let report = Report::new(args, outcome);
    if args.json {
        outln!("{}", report.json());
    } else {
        out!("{}", report.text(args, &description));
    }
    Ok(())
}

/// Runs a test with the kernel's sockets, with both ends in this process.
fn over_loopback(ipv6: bool, args: &TestArgs, progress: &TestProgress) -> Result<TestResult> {
    let ip = if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let on = SocketAddr::new(ip, 0);
    if args.threads == 2 {
        return two_threads(Kernel, on, args, progress);
    }
    runtime()?.block_on(async {
        let here = || vec![(Kernel, Handle::current())];
        in_process(&Kernel, (here(), here()), on, args, progress).await
    })
}

/// Runs a test between two stacks in this process.
fn over_pair(link: InProcessLink, args: &TestArgs, progress: &TestProgress) -> Result<TestResult> {
    let runtime = if args.threads == 2 {
        two_thread_runtime()?
    } else {
        runtime()?
    };
    let on = SocketAddr::new(link.server_ip(), 0);
    runtime.block_on(async {
        let threads = ShardThreads::start(args.shards)?;
        let runtimes = threads.handles();
        let (client, server) = Embedded::pair(link, (&args.set, args.qdisc), runtimes)?;
        Embedded::open_control(&args.control, &client, Some(&server))?;
        let shard_runtimes = (
            client.shard_runtimes(runtimes),
            server.shard_runtimes(runtimes),
        );
        in_process(&client, shard_runtimes, on, args, progress).await
    })
}

fn describe_pair(link: InProcessLink, api: &str) -> String {
    let nic = match link.nic {
        NicKind::Tso => "tso",
        NicKind::Mtu => "mtu",
    };
    let ip = if link.ipv6 { "IPv6" } else { "IPv4" };
    let gro = if link.gro { "" } else { ", gro off" };
    format!("in process, {ip}, nic {nic}, mtu {}{gro}, {api}", link.mtu)
}

fn describe_shards(shards: usize) -> String {
    if shards == 1 {
        String::new()
    } else {
        format!(", {shards} shards")
    }
}

/// Runs client and server as tasks of their shards' runtimes. `net` is the client's stack.
async fn in_process<N: NetStack>(
    net: &N,
    (clients, servers): (Vec<ShardRuntime<N>>, Vec<ShardRuntime<N>>),
    on: SocketAddr,
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    let (mut addresses, mut serving) = (Vec::new(), Vec::new());
    for _ in 0..args.flows.div_ceil(FLOWS_PER_PORT) {
        let mut to = on;
        for (server, runtime) in &servers {
            // The first shard chooses the port.
            let listener = serve::listen(server, to).await?;
            to = N::local_addr(&listener)?;
            let accept = serve::accept_all(server.clone(), listener, args.zerocopy());
            serving.push(runtime.spawn(accept));
        }
        addresses.push(to);
    }
    let outcome = client::run_on(net, &clients, &addresses, args, progress).await;
    serving.iter().for_each(JoinHandle::abort);
    outcome
}

/// Runs the server on its own thread and runtime.
fn two_threads<N: NetStack>(
    server: N,
    on: SocketAddr,
    args: &TestArgs,
    progress: &TestProgress,
) -> Result<TestResult> {
    let zerocopy = args.zerocopy();
    let (addr_tx, addr_rx) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let net = server.clone();
    let thread = std::thread::spawn(move || -> Result<()> {
        runtime()?.block_on(async move {
            let listener = serve::listen(&server, on).await?;
            addr_tx.send(N::local_addr(&listener)?)?;
            tokio::select! {
                () = serve::accept_all(server, listener, zerocopy) => {}
                _ = stopped => {}
            }
            Ok(())
        })
    });
    let outcome = match addr_rx.recv() {
        Ok(to) => runtime()?.block_on(client::run(&net, to, args, progress)),
        Err(_) => Err(anyhow!("the server did not start")),
    };
    drop(stop);
    thread
        .join()
        .map_err(|_| anyhow!("the server's thread panicked"))??;
    outcome
}

fn serve(args: &ServeArgs) -> Result<()> {
    let on = args.listen_on();
    if args.kernel {
        return runtime()?
            .block_on(async { serve::run(vec![(Kernel, Handle::current())], on, "kernel").await });
    }
    let device = args.device.clone().validate(args.mtu.unwrap_or(1500))?;
    runtime()?.block_on(async {
        let threads = ShardThreads::start(args.shards.into())?;
        let settings = (&*args.set, args.qdisc.unwrap_or_default());
        let stack = Embedded::behind(&device, settings, None, threads.handles())?;
        Embedded::open_control(&args.control, &stack, None)?;
        let addresses: Vec<String> = device.addresses.iter().map(Cidr::to_string).collect();
        let addresses = addresses.join(", ");
        let shards = describe_shards(args.shards.into());
        let description = format!(
            "fullsend, {addresses} over {} {}{shards}",
            device.kind, device.name
        );
        serve::run(stack.shard_runtimes(threads.handles()), on, &description).await
    })
}
