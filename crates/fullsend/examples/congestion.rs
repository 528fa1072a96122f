//! A congestion control of the program's own: additive increase, multiplicative decrease. Several
//! connections share a token bucket whose queue overflows; the window of one is printed beside that of its
//! `tcp_info`.
//! Needs neither root nor a device: `cargo run --release -p fullsend --example congestion`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fullsend::congestion::{Ack, CongestionControl, CongestionEvent, Instant};
use fullsend::{Pair, Stack, TcpListener, TcpStream};
use tokio::io::{copy, sink};
use tokio::time::interval;

/// Connections that share the bucket.
const FLOWS: usize = 16;
/// The initial window in segments (RFC 6928).
const INITIAL_SEGS: u64 = 10;

/// Slow start, then one segment more for each round trip; half of the window after congestion.
#[derive(Debug, Default)]
struct Aimd {
    /// Payload bytes of a full segment.
    mss: u64,
    /// The window in bytes.
    window: u64,
    /// The window at which slow start ends, in bytes.
    ssthresh: Option<u64>,
    /// The window, for the rest of the program: the stack owns the control.
    shown: Arc<AtomicU64>,
}

impl CongestionControl for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn window_bytes(&self) -> u64 {
        self.window
    }

    fn ssthresh_bytes(&self) -> Option<u64> {
        self.ssthresh
    }

    fn on_mss(&mut self, mss_bytes: u32) {
        self.mss = mss_bytes.into();
        self.window = self.window.max(INITIAL_SEGS * self.mss);
    }

    fn on_ack(&mut self, ack: &Ack) {
        if !ack.window_used || ack.in_recovery {
            return;
        }
        self.window += match self.ssthresh {
            Some(ssthresh) if self.window >= ssthresh => {
                self.mss * ack.delivered_bytes / self.window
            }
            _ => ack.delivered_bytes,
        };
        self.shown.store(self.window, Ordering::Relaxed);
    }

    fn on_congestion(&mut self, event: CongestionEvent, _: Instant) {
        let half = (self.window / 2).max(2 * self.mss);
        self.ssthresh = Some(half);
        self.window = match event {
            CongestionEvent::Rto => self.mss,
            _ => half,
        };
        self.shown.store(self.window, Ordering::Relaxed);
    }
}

/// Opens a connection under [`Aimd`] and sends without end. Returns the stream's window.
async fn send(stack: &Stack) -> io::Result<(Arc<TcpStream>, Arc<AtomicU64>)> {
    let stream = Arc::new(TcpStream::connect(stack, "10.0.0.2:9").await?);
    let shown = Arc::<AtomicU64>::default();
    stream.set_congestion_with(Aimd {
        shown: shown.clone(),
        ..Aimd::default()
    })?;
    let writer = stream.clone();
    tokio::spawn(async move {
        let data = vec![0; 1 << 20];
        loop {
            writer.writable().await?;
            match writer.try_write(&data) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    break Err::<(), _>(error);
                }
                _ => {}
            }
        }
    });
    Ok((stream, shown))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (here, there) = Stack::pair(&Pair {
        qdisc: "tbf rate 400mbit burst 64kb limit 64kb".to_owned(),
        ..Pair::default()
    })?;
    let listener = TcpListener::bind(&there, "10.0.0.2:9")?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move { copy(&mut stream, &mut sink()).await });
        }
    });

    let (stream, shown) = send(&here).await?;
    for _ in 1..FLOWS {
        send(&here).await?;
    }
    println!("congestion control: {}", stream.congestion()?);
    let mut ticks = interval(Duration::from_millis(50));
    for _ in 0..20 {
        ticks.tick().await;
        let info = stream.tcp_info()?;
        println!(
            "window {:7} bytes, in tcp_info {:4} segments of {}",
            shown.load(Ordering::Relaxed),
            info.tcpi_snd_cwnd,
            info.tcpi_snd_mss,
        );
    }
    println!("{} packets dropped", here.qdisc_stats().dropped);
    Ok(())
}
