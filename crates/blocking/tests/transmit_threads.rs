//! Tests of which thread passes on the packets of a user-driven stack.

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{connected, pair, stack};
use fullsend_blocking::abi::*;
use fullsend_blocking::{Clock, Stack};
use fullsend_offload::{Packet, Slice};

fn deliver(to: &Stack, packet: &Packet) {
    let frame = Slice::copied_from(&packet.to_bytes());
    to.input(&mut vec![Packet::from_frame(frame)]);
}

/// Time limit: a thread between a call and its packets may be descheduled for long.
const STALLED: Duration = Duration::from_secs(30);

/// Waits until `done` has a result. Returns `None` if a packet stays in the outbox of `from` while
/// all threads that could pass it on sleep.
#[allow(clippy::disallowed_methods, reason = "a stall is one of real threads")]
fn result_unless_stalled<R>(from: &Stack, done: &Receiver<R>) -> Option<R> {
    let mut since = None;
    loop {
        if let Ok(result) = done.try_recv() {
            return Some(result);
        }
        let asleep = from.has_sleepers() && !from.has_woken();
        if !asleep || from.outbox().unwrap().is_empty() {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() > STALLED {
            return None;
        }
        thread::yield_now();
    }
}

#[test]
fn a_call_that_finds_another_thread_transmitting_transmits_later() {
    let clock = Clock::manual();
    let a = stack("address=10.0.0.1/24,seed=1", &clock);
    let b = stack("address=10.0.0.2/24,seed=2", &clock);
    let (at_gate, reached) = channel();
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(Some((at_gate, gate)));
    let armed = Arc::new(Mutex::new(false));
    let stops = armed.clone();
    let to = Arc::downgrade(&b);
    a.on_output(move |packet| {
        if *stops.lock().unwrap()
            && let Some((at_gate, gate)) = gate.lock().unwrap().take()
        {
            at_gate.send(()).unwrap();
            gate.recv().unwrap();
        }
        if let Some(to) = to.upgrade() {
            deliver(&to, packet);
        }
    });
    let to = Arc::downgrade(&a);
    b.on_output(move |packet| {
        if let Some(to) = to.upgrade() {
            deliver(&to, packet);
        }
    });
    let (first, _first_server) = connected(&a, &b);
    let (second, server) = connected(&a, &b);
    *armed.lock().unwrap() = true;
    thread::scope(|scope| {
        // One thread is stopped within `output`, with a packet.
        let stopped = scope.spawn(|| a.sendmsg(first, &[b"x"], 0, None, &[]));
        reached.recv().unwrap();
        // Another thread waits in a call that has much to send.
        let data = vec![7; 3_000_000];
        let (result_sender, done) = channel();
        let (stack, len) = (&a, data.len());
        scope.spawn(move || {
            let sent = stack.sendmsg(second, &[&data], 0, None, &[]);
            result_sender.send(sent).unwrap();
        });
        while !a.has_sleepers() {
            thread::yield_now();
        }
        open.send(()).unwrap();
        assert_eq!(stopped.join().unwrap(), Ok(1));
        let b = &b;
        scope.spawn(move || {
            let mut out = vec![0; len];
            let got = b.recvmsg(server, &mut [&mut out], MSG_WAITALL, &mut []);
            assert_eq!(got.unwrap().len, len);
        });
        let Some(sent) = result_unless_stalled(&a, &done) else {
            eprintln!("packets wait, and no thread passes them on");
            std::process::exit(101);
        };
        assert_eq!(sent, Ok(len));
    });
}

#[test]
fn a_packet_sent_inside_the_output_callback_is_transmitted() {
    let (a, b) = pair(&Clock::manual());
    let (client, server) = connected(&a, &b);
    // An answer of `b` makes `a` send from within the output of `b`, and so on.
    let data = vec![1; 100_000];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = vec![0; 100_000];
            b.recvmsg(server, &mut [&mut out], MSG_WAITALL, &mut [])
                .map(|got| got.len)
        });
        assert_eq!(a.sendmsg(client, &[&data], 0, None, &[]), Ok(data.len()));
        assert_eq!(reader.join().unwrap(), Ok(data.len()));
    });
}
