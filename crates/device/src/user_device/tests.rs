//! Limits, completions and wake-ups of a user-driven device, and the end of either side.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use fullsend_offload::{Packet, Pool, Slice};
use futures_util::{Sink, Stream};
use parking_lot::Mutex;

use super::{UserDeviceConfig, user_device, user_device_with};
use crate::Device;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

fn waker() -> (Arc<Count>, Waker) {
    let count = Arc::<Count>::default();
    (count.clone(), Waker::from(count))
}

fn packet(byte: u8) -> Packet {
    Packet::from_frame(Slice::copied_from(&[byte; 100]))
}

fn small(packets: usize) -> UserDeviceConfig {
    UserDeviceConfig {
        queue_packets: packets,
        ..UserDeviceConfig::ip(1500)
    }
}

#[test]
fn the_stack_holds_packets_back_and_is_woken_when_half_of_the_queue_is_free() {
    let (mut device, mut port) = user_device(small(4));
    let (driver, driver_waker) = waker();
    assert!(device.set_waker(&driver_waker));
    let mut batch: VecDeque<_> = (0..6).map(packet).collect();
    device.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), device.in_flight()), (2, 4));
    let mut buf = [0; 100];
    assert_eq!(port.receiver.try_recv(&mut buf).unwrap(), 100);
    assert_eq!((buf[0], driver.take(), device.in_flight()), (0, 0, 3));
    port.receiver.try_recv(&mut buf).unwrap();
    assert_eq!((buf[0], driver.take()), (1, 1));
    port.receiver.try_recv(&mut buf).unwrap();
    assert_eq!(driver.take(), 0, "woken once");
    device.transmit(&mut batch).unwrap();
    assert_eq!(batch.len(), 0);
    let rest = std::iter::from_fn(|| port.receiver.try_recv_packet().ok());
    assert_eq!(rest.count(), 3);
}

#[test]
fn the_completion_of_the_last_packet_is_notified_on_request() {
    let (mut device, mut port) = user_device(small(4));
    let (driver, driver_waker) = waker();
    device.set_waker(&driver_waker);
    assert!(!device.notify_completion());
    device.transmit(&mut (0..2).map(packet).collect()).unwrap();
    assert!(device.notify_completion());
    port.receiver.try_recv_packet().unwrap();
    assert_eq!(driver.take(), 0);
    port.receiver.try_recv_packet().unwrap();
    assert_eq!((driver.take(), device.in_flight()), (1, 0));
}

#[test]
fn incoming_packets_wake_the_driver_and_are_limited_in_number_and_bytes() {
    let (mut device, mut port) = user_device(UserDeviceConfig {
        queue_bytes: 2000,
        ..small(3)
    });
    let (driver, driver_waker) = waker();
    device.set_waker(&driver_waker);
    let (user, user_waker) = waker();
    let mut cx = Context::from_waker(&user_waker);
    assert!(port.sender.poll_ready(&mut cx, 1500).is_ready());
    for _ in 0..3 {
        port.sender.try_send(&[1; 100]).unwrap();
    }
    assert_eq!(driver.take(), 1, "only the first finds the queue empty");
    let error = port.sender.try_send(&[1; 100]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(!port.sender.inject(&[1; 100]));
    assert_eq!(port.sender.dropped(), 1);
    assert!(port.sender.poll_ready(&mut cx, 100).is_pending());
    let mut batch = Vec::new();
    assert_eq!(device.receive(&mut batch, 1).unwrap(), 1);
    assert_eq!(user.take(), 0, "more than half is still used");
    assert_eq!(device.receive(&mut batch, 64).unwrap(), 2);
    assert_eq!(user.take(), 1);
    // A packet above the limit is accepted by an empty queue, and nothing beside it.
    port.sender.try_send(&[1; 5000]).unwrap();
    assert!(port.sender.try_send(&[1; 1]).is_err());
    for len in [0, 70_000] {
        let error = port.sender.try_send(&vec![0; len]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn a_memory_limit_bounds_both_queues() {
    let (mut device, mut port) = user_device(UserDeviceConfig::ip(1500));
    device.limit_memory(&Pool::new(0), 32_000);
    let accepted = (0..100).take_while(|_| port.sender.inject(&[0; 1000]));
    assert_eq!(accepted.count(), 3);
    let mut batch: VecDeque<_> = (0..100).map(packet).collect();
    device.transmit(&mut batch).unwrap();
    assert!(device.in_flight() <= 4000 / 100, "{}", device.in_flight());
    // Packets that wait for the program keep little more memory than their length.
    while port.receiver.try_recv_packet().is_ok() {}
    let mut small = packet(1);
    small.payload = Slice::copied_from(&[1; 4000]).slice(0..10).into();
    device.transmit(&mut [small].into()).unwrap();
    let small = port.receiver.try_recv_packet().unwrap();
    assert!(small.payload.len() == 10 && small.payload.pinned() <= 40);
}

#[test]
fn readiness_is_reported_for_packets_that_fail() {
    let (mut device, mut port) = user_device(small(1));
    let (_, user_waker) = waker();
    let mut cx = Context::from_waker(&user_waker);
    port.sender.try_send(&[1; 100]).unwrap();
    assert!(port.sender.poll_ready(&mut cx, 1500).is_pending());
    assert!(port.sender.poll_ready(&mut cx, usize::MAX).is_ready());
    device.close();
    assert!(port.sender.poll_ready(&mut cx, 1500).is_ready());
    assert!(port.sender.is_closed());
}

#[test]
fn a_deferred_device_notifies_its_user_only_through_the_notifier() {
    let (mut device, mut port) = user_device(small(4));
    let notify = device.take_notifier().unwrap();
    let (user, user_waker) = waker();
    let mut cx = Context::from_waker(&user_waker);
    assert!(port.receiver.poll_recv_packet(&mut cx).is_pending());
    device.transmit(&mut [packet(7)].into()).unwrap();
    assert_eq!(user.take(), 0);
    notify();
    notify();
    assert_eq!(user.take(), 1);
    assert!(port.receiver.poll_recv_packet(&mut cx).is_ready());
}

#[test]
fn the_closure_gets_packets_in_order_and_may_cause_more() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (seen, again) = (
        order.clone(),
        Arc::new(Mutex::new(None::<super::UserDevice>)),
    );
    let inner = again.clone();
    let (mut device, _sender) = user_device_with(small(8), move |packet| {
        let byte = packet.to_bytes()[0];
        seen.lock().push(byte);
        // As a socket call within the closure does.
        if byte == 1
            && let Some(device) = &mut *inner.lock()
        {
            let batch = &mut [self::packet(9)].into();
            device.transmit(batch).unwrap();
        }
    });
    device.transmit(&mut (0..3).map(packet).collect()).unwrap();
    assert_eq!(*order.lock(), [0, 1, 2]);
    let notify = device.take_notifier().unwrap();
    device.transmit(&mut (0..3).map(packet).collect()).unwrap();
    *again.lock() = Some(device);
    notify();
    assert_eq!(*order.lock(), [0, 1, 2, 0, 1, 2, 9]);
}

#[test]
fn the_end_of_the_program_fails_the_device() {
    let (mut device, port) = user_device(small(4));
    let (driver, driver_waker) = waker();
    device.set_waker(&driver_waker);
    drop(port.receiver);
    let mut batch = [packet(1)].into();
    device.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), device.in_flight()), (0, 0), "dropped");
    assert_eq!(device.receive(&mut Vec::new(), 64).unwrap(), 0);
    driver.take();
    drop(port.sender);
    assert_eq!(driver.take(), 1);
    let error = device.receive(&mut Vec::new(), 64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

#[test]
fn the_end_of_the_stack_leaves_its_last_packets() {
    let (mut device, mut port) = user_device(small(4));
    device.transmit(&mut [packet(1)].into()).unwrap();
    drop(device);
    let error = port.sender.try_send(&[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert!(port.receiver.try_recv_packet().is_ok());
    let error = port.receiver.try_recv_packet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_packet_that_does_not_fit_is_an_error_with_both_lengths() {
    let (mut device, mut port) = user_device(small(4));
    device.transmit(&mut [packet(1)].into()).unwrap();
    let error = port.receiver.try_recv(&mut [0; 99]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("100 bytes does not fit in a buffer of 99")
    );
    assert_eq!(port.receiver.dropped(), 1);
}

#[test]
fn stream_and_sink() {
    let (mut device, mut port) = user_device(small(1));
    let (user, user_waker) = waker();
    let mut cx = Context::from_waker(&user_waker);
    assert!(Pin::new(&mut port).poll_next(&mut cx).is_pending());
    device.transmit(&mut [packet(5)].into()).unwrap();
    assert_eq!(user.take(), 1);
    let item = Pin::new(&mut port).poll_next(&mut cx);
    assert_eq!(item, Poll::Ready(Some(Bytes::from(vec![5; 100]))));
    let mut sink = Pin::new(&mut port);
    assert!(sink.as_mut().poll_ready(&mut cx).is_ready());
    sink.as_mut().start_send(vec![6; 40].into()).unwrap();
    assert!(sink.as_mut().poll_ready(&mut cx).is_pending());
    let mut batch = Vec::new();
    assert_eq!(device.receive(&mut batch, 64).unwrap(), 1);
    assert_eq!((batch[0].to_bytes(), user.take()), (vec![6; 40], 1));
    drop(device);
    assert!(matches!(
        sink.as_mut().poll_ready(&mut cx),
        Poll::Ready(Err(_))
    ));
    assert_eq!(sink.poll_next(&mut cx), Poll::Ready(None));
}
