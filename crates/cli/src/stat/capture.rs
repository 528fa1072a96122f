//! `stat capture`: writes a running stack's packets to a file or a pipe.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use fullsend::control::{CaptureRequest, CaptureSummary, Reply, Request};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::args::CaptureArgs;
use super::connection::{connect_error, parse};
use crate::perf;
use crate::private_file;

pub(super) fn run(socket: &Path, args: &CaptureArgs, json: bool) -> Result<()> {
    perf::runtime()?.block_on(capture(socket, args, json))
}

async fn capture(socket: &Path, args: &CaptureArgs, json: bool) -> Result<()> {
    let stream = UnixStream::connect(socket)
        .await
        .with_context(|| connect_error(socket))?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let filter = args.filter.join(" ");
    let start = Request::Capture(CaptureRequest {
        count: args.count,
        snaplen: args.snaplen,
        filter: (!filter.is_empty()).then_some(filter),
        buffer: Some(args.buffer << 20),
    });
    write.write_all(start.to_line().as_bytes()).await?;
    // The stack's reply is read first, so that a capture that fails to start creates no file.
    let mut reply = next(&mut read).await?;
    let mut out = open(&args.file)?;
    let mut stopped = false;
    let mut stop = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        match reply {
            Reply::Data(len) => {
                let mut bytes = vec![0; usize::try_from(len)?];
                read.read_exact(&mut bytes).await?;
                if !write_unless_closed(out.as_mut(), &bytes)? {
                    // The reader has closed the pipe.
                    return Ok(());
                }
            }
            Reply::End(summary) => return print_summary(serde_json::from_value(summary)?, json),
            other => bail!(
                "the stack sent an unexpected reply: {other:?}; use a program of the stack's \
                 release"
            ),
        }
        reply = loop {
            tokio::select! {
                ready = read.fill_buf() => {
                    ready?;
                    break next(&mut read).await?;
                }
                _ = stop.recv(), if !stopped => stopped = true,
                _ = terminate.recv(), if !stopped => stopped = true,
            }
            write.write_all(Request::Stop.to_line().as_bytes()).await?;
        };
    }
}

async fn next(read: &mut BufReader<tokio::net::unix::OwnedReadHalf>) -> Result<Reply> {
    let mut line = Vec::new();
    read.read_until(b'\n', &mut line).await?;
    parse(&line)
}

fn open(file: &Path) -> Result<Box<dyn Write>> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    Ok(Box::new(private_file::create(file, "capture")?))
}

/// Writes `bytes`. Returns `false` if the reader has closed the pipe.
fn write_unless_closed(out: &mut dyn Write, bytes: &[u8]) -> Result<bool> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

fn print_summary(summary: CaptureSummary, json: bool) -> Result<()> {
    if json {
        errln!("{}", serde_json::to_string(&summary)?);
    } else {
        errln!(
            "{} packets recorded, {} dropped",
            summary.packets,
            summary.dropped
        );
    }
    Ok(())
}
