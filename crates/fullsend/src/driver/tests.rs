//! Tests of how often the driver reads the device.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fullsend_device::{Caps, Device};
use fullsend_offload::{Link, Packet};
use parking_lot::Mutex;
use tokio::task::yield_now;

use crate::{DriverTimer, Stack, TcpStream};

/// A device that counts reads; what it receives needs no answer of the host.
struct CountingDevice(UnixDatagram, Arc<AtomicUsize>);

impl Device for CountingDevice {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ip, 1500)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let mut buf = [0; 2000];
        for n in 0..max {
            match self.0.recv(&mut buf) {
                Ok(len) => batch.push(Packet::from_frame(Bytes::copy_from_slice(&buf[..len]))),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(n),
                Err(e) => return Err(e),
            }
        }
        Ok(max)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Returns a stack over such a device, the device's other end, and its counter.
fn stack(busy_poll: Duration) -> (Stack, UnixDatagram, Arc<AtomicUsize>) {
    let (here, there) = UnixDatagram::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let stack = Stack::builder()
        .device(Box::new(CountingDevice(here, reads.clone())))
        .address("10.0.0.2/24")
        .busy_poll(busy_poll)
        .build()
        .unwrap();
    (stack, there, reads)
}

/// Runs other tasks for a while and returns the number of device reads meanwhile.
async fn reads_meanwhile(reads: &AtomicUsize) -> usize {
    let before = reads.load(Ordering::Relaxed);
    for _ in 0..1000 {
        yield_now().await;
    }
    reads.load(Ordering::Relaxed) - before
}

#[tokio::test(start_paused = true)]
async fn a_device_is_polled_once_per_arrival() {
    let (_stack, there, reads) = stack(Duration::ZERO);
    reads_meanwhile(&reads).await;
    for _ in 0..5 {
        there.send(&[0; 20]).unwrap();
        assert_eq!(reads_meanwhile(&reads).await, 1);
    }
    assert_eq!(reads_meanwhile(&reads).await, 0);
}

#[tokio::test(start_paused = true)]
async fn busy_polling_lasts_for_the_configured_time() {
    let span = Duration::from_micros(50);
    let (_stack, there, reads) = stack(span);
    reads_meanwhile(&reads).await;
    assert_eq!(reads_meanwhile(&reads).await, 0);
    there.send(&[0; 20]).unwrap();
    assert!(reads_meanwhile(&reads).await > 100);
    tokio::time::advance(span / 2).await;
    assert!(reads_meanwhile(&reads).await > 100);
    tokio::time::advance(span / 2).await;
    reads_meanwhile(&reads).await;
    assert_eq!(reads_meanwhile(&reads).await, 0);
}

/// A device without a file descriptor.
struct Fileless;

impl Device for Fileless {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ip, 1500)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A timer that records its deadline.
#[derive(Clone, Default)]
struct RecordedTimer(Arc<Mutex<Option<tokio::time::Instant>>>);

impl DriverTimer for RecordedTimer {
    fn poll_until(
        &mut self,
        _: &mut Context<'_>,
        deadline: Option<tokio::time::Instant>,
    ) -> Poll<()> {
        *self.0.lock() = deadline;
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_timer_of_the_caller_gets_the_deadlines() {
    let timer = RecordedTimer::default();
    let stack = Stack::builder()
        .device(Box::new(Fileless))
        .timer(Box::new(timer.clone()))
        .address("10.0.0.2/24")
        .build()
        .unwrap();
    yield_now().await;
    assert_eq!(*timer.0.lock(), None);
    let start = tokio::time::Instant::now();
    let connecting = tokio::spawn(async move { TcpStream::connect(&stack, "10.0.0.1:80").await });
    // The task connects, and the driver sets its timer.
    for _ in 0..3 {
        yield_now().await;
    }
    // The SYN is sent again after a second. The timer wheel may request an earlier step on the way.
    let until_retry = timer.0.lock().unwrap() - start;
    assert!(
        (500..=1001).contains(&until_retry.as_millis()),
        "{until_retry:?}"
    );
    connecting.abort();
}

#[tokio::test]
async fn a_timer_needs_a_single_shard_and_a_device_needs_a_timer_or_a_file() {
    let builder = || {
        Stack::builder()
            .device(Box::new(Fileless))
            .address("10.0.0.2/24")
    };
    let error = |built: io::Result<Stack>| built.err().unwrap().to_string();
    let timer = Box::new(RecordedTimer::default());
    let text = error(builder().timer(timer).shards(2).build());
    assert!(text.contains("call shards(1)"), "{text}");
    let text = error(builder().build());
    assert!(text.contains("Builder::timer()"), "{text}");
}
