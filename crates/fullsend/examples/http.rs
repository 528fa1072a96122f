//! An unmodified axum server on a userspace stack: serves a folder over a TUN device.
//!
//! ```text
//! cargo build --release -p fullsend --example http
//! sudo target/release/examples/http --tun fs0 --address 10.9.0.2/24 --address fd09::2/64 --dir /tmp/www
//! curl http://10.9.0.2/file
//! curl -T file http://[fd09::2]/file
//! ```

use std::io;
use std::net::Ipv6Addr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{self, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Parser;
use fullsend::{OffloadSet, Stack, TcpListener, default_kernel_address};
use futures_util::TryStreamExt;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::io::{ReaderStream, StreamReader};

/// Time that requests and their unacknowledged data have to finish after the signal to end.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Bytes per file read or write.
const CHUNK: usize = 512 << 10;

#[derive(Parser)]
#[command(about = "Serves a folder over HTTP, on a TCP/IP stack of its own")]
struct Args {
    /// TUN interface, created if it does not exist.
    #[arg(long, default_value = "fs0")]
    tun: String,
    /// Address of the server with its prefix length; may be repeated.
    #[arg(long, required = true)]
    address: Vec<String>,
    /// Folder to serve; PUT writes to it.
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Use no offloads: each packet of the MTU is one read or write.
    #[arg(long)]
    plain: bool,
    /// Offloads to use, e.g. all,-tso6.
    #[arg(long, default_value_t = OffloadSet::ALL)]
    offload: OffloadSet,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let args = Args::parse();
    let stack = build(&args)?;
    let listener = TcpListener::bind(&stack, (Ipv6Addr::UNSPECIFIED, args.port))?;
    for address in &args.address {
        println!(
            "serving {} at {address} port {}",
            args.dir.display(),
            args.port
        );
    }
    let app = Router::new()
        .route("/{*path}", get(read).put(write))
        .layer(extract::DefaultBodyLimit::disable())
        .with_state(Arc::new(args.dir));
    let (stop, mut stopped) = tokio::sync::watch::channel(());
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        wait_for_signal().await;
        drop(stop);
    });
    // Running requests have a limited time to finish.
    tokio::select! {
        done = server => done?,
        () = async {
            let _ = stopped.changed().await;
            tokio::time::sleep(GRACE_PERIOD).await;
        } => eprintln!("requests did not finish within {GRACE_PERIOD:?} and are reset"),
    }
    // The device is lost when the process exits, so all data must have been acknowledged before.
    // The timeout ends the wait for a peer that does not answer: its connection is reset when the
    // runtime ends.
    tokio::time::timeout(GRACE_PERIOD, stack.shutdown())
        .await
        .unwrap_or(Ok(()))
}

/// Waits for SIGINT or SIGTERM.
async fn wait_for_signal() {
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(error) => return eprintln!("cannot wait for signals: {error}"),
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Builds the stack with its addresses; the kernel's side gets a neighboring one for each.
fn build(args: &Args) -> io::Result<Stack> {
    let offload = if args.plain {
        OffloadSet::NONE
    } else {
        args.offload
    };
    let mut builder = Stack::builder().tun(&args.tun).offload(offload);
    for address in &args.address {
        builder = builder.address(address);
        let (addr, prefix) = address.split_once('/').unwrap_or((address, ""));
        if let (Ok(addr), Ok(prefix)) = (addr.parse(), prefix.parse())
            && let Some(other) = default_kernel_address(addr, prefix)
        {
            builder = builder.kernel_address(&format!("{other}/{prefix}"));
        }
    }
    builder.build()
}

type Reply = Result<Response, (StatusCode, String)>;

async fn read(
    State(dir): State<Arc<PathBuf>>,
    extract::Path(path): extract::Path<String>,
) -> Reply {
    let mut file = File::open(resolve_path(&dir, &path)?)
        .await
        .map_err(|e| error_response(&e))?;
    file.set_max_buf_size(CHUNK);
    let meta = file.metadata().await.map_err(|e| error_response(&e))?;
    if !meta.is_file() {
        return Err((StatusCode::FORBIDDEN, format!("{path} is not a file\n")));
    }
    let body = Body::from_stream(ReaderStream::with_capacity(file, CHUNK));
    Ok(([(header::CONTENT_LENGTH, meta.len())], body).into_response())
}

async fn write(
    State(dir): State<Arc<PathBuf>>,
    extract::Path(path): extract::Path<String>,
    body: Body,
) -> Reply {
    let path = resolve_path(&dir, &path)?;
    // A concurrent reader sees the old file or the new one, never a part.
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let done = store(body, Path::new(&part)).await;
    let done = match done {
        Ok(()) => tokio::fs::rename(&part, &path).await,
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        let _ = tokio::fs::remove_file(&part).await;
        return Err(error_response(&error));
    }
    Ok(StatusCode::CREATED.into_response())
}

async fn store(body: Body, path: &Path) -> io::Result<()> {
    let mut file = File::create(path).await?;
    file.set_max_buf_size(CHUNK);
    let mut body = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let mut file = tokio::io::BufWriter::with_capacity(CHUNK, file);
    tokio::io::copy_buf(&mut body, &mut file).await?;
    file.flush().await
}

/// Returns the path below `dir`, or an error if `path` leads out of it.
fn resolve_path(dir: &Path, path: &str) -> Result<PathBuf, (StatusCode, String)> {
    let path = Path::new(path);
    if path.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(dir.join(path));
    }
    Err((
        StatusCode::FORBIDDEN,
        "the path is not in the folder\n".to_owned(),
    ))
}

fn error_response(error: &io::Error) -> (StatusCode, String) {
    let status = match error.kind() {
        io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}
