//! An axum server and clients over links that lose 5 % of the packets, in virtual time.
//!
//! Prints the latency of the requests. The figures are the same in each run with the same seed:
//!
//! ```text
//! cargo run --release -p fullsend-simnet --example axum_lossy -- [SEED]
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use fullsend::{TcpListener, TcpStream};
use fullsend_simnet::{Host, Simulation, SoftwareResult};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::time::{Instant, sleep};

const CLIENTS: usize = 20;
const REQUESTS: usize = 50;
/// The properties of each client's link, in the words of `tc netem`.
const LINK: &str = "delay 20ms 2ms loss 5% rate 20mbit";

/// The server. Apart from the type of the listener it is one for tokio's sockets.
async fn serve(host: Host) -> SoftwareResult {
    let listener = TcpListener::bind(host.stack(), "0.0.0.0:80")?;
    let app = Router::new()
        .route("/bytes/{len}", get(bytes))
        .layer(map_response(set_date));
    axum::serve(listener, app).await?;
    Ok(())
}

async fn bytes(Path(len): Path<usize>) -> Vec<u8> {
    // Work that takes time.
    sleep(Duration::from_millis(3)).await;
    vec![b'x'; len.min(1 << 20)]
}

/// Replaces the time of day, which hyper would add: it differs from run to run.
async fn set_date(mut response: Response) -> Response {
    let date = HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT");
    response.headers_mut().insert(header::DATE, date);
    response
}

/// Sends a request on a connection, and returns the length of the answer.
async fn request(stream: &mut BufStream<TcpStream>, path: &str) -> std::io::Result<usize> {
    let text = format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n");
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await?;
    let (mut line, mut len) = (String::new(), 0);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            len = value.parse().map_err(std::io::Error::other)?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    Ok(len)
}

/// A client: requests on one connection, with pauses.
async fn browse(host: Host, latencies: Arc<Mutex<Vec<Duration>>>) -> SoftwareResult {
    let stream = TcpStream::connect(host.stack(), host.resolve("server:80")?).await?;
    let mut stream = BufStream::new(stream);
    for i in 0..REQUESTS {
        let start = Instant::now();
        let len = request(&mut stream, &format!("/bytes/{}", 500 * (i % 20))).await?;
        assert_eq!(len, 500 * (i % 20));
        latencies.lock().unwrap().push(start.elapsed());
        sleep(Duration::from_millis(host.seed() % 100)).await;
    }
    Ok(())
}

/// Runs the simulation, and returns its report.
pub(crate) fn report(seed: u64) -> Result<String, Box<dyn std::error::Error>> {
    let mut sim = Simulation::new(seed);
    let latencies = Arc::new(Mutex::new(Vec::new()));
    sim.host("server", serve)?;
    for i in 0..CLIENTS {
        let (name, latencies) = (format!("client{i}"), latencies.clone());
        sim.client(&name, move |host| browse(host, latencies))?;
        sim.connect(&name, "server", LINK)?;
    }
    sim.run()?;
    let mut all = std::mem::take(&mut *latencies.lock().unwrap());
    all.sort_unstable();
    let percentile = |p: usize| all[(all.len() - 1) * p / 100].as_secs_f64() * 1e3;
    Ok(format!(
        "seed {seed}: {} requests in {:.3} s of virtual time\n\
         latency in ms: p50 {:.3}  p90 {:.3}  p99 {:.3}  max {:.3}\n\
         trace hash {:016x}",
        all.len(),
        sim.net().elapsed().as_secs_f64(),
        percentile(50),
        percentile(90),
        percentile(99),
        percentile(100),
        sim.trace_hash(),
    ))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = match std::env::args().nth(1) {
        Some(text) => text
            .parse()
            .map_err(|_| format!("{text:?} is not a seed; write a whole number, e.g. 7"))?,
        None => 1,
    };
    println!("{}", report(seed)?);
    Ok(())
}
