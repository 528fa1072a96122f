//! Tests of how often the driver reads the device.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullsend_device::{Caps, Device};
use fullsend_offload::{Link, Packet};
use tokio::task::yield_now;

use crate::Stack;

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
