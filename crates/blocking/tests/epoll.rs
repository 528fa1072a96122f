//! Tests of waiting for several handles, and of pipes.

mod common;

use common::{connected, live_pair, while_asleep};
use fullsend_blocking::abi::*;
use fullsend_blocking::{EpollEvent, Errno, Handle, Stack};
use fullsend_wire::Nanos;

fn add(stack: &Stack, set: Handle, handle: Handle, events: u32, data: u64) {
    let event = EpollEvent { events, data };
    stack.epoll_ctl(set, EPOLL_CTL_ADD, handle, event).unwrap();
}

/// Returns the events of the set that are ready now.
fn ready(stack: &Stack, set: Handle) -> Vec<(u32, u64)> {
    let mut found = [EpollEvent::default(); 8];
    let n = stack
        .epoll_wait(set, &mut found, Some(Nanos::ZERO))
        .unwrap();
    found[..n].iter().map(|e| (e.events, e.data)).collect()
}

fn send(stack: &Stack, handle: Handle, data: &[u8]) {
    assert_eq!(stack.sendmsg(handle, &[data], 0, None, &[]), Ok(data.len()));
}

#[test]
fn epoll_wait_wakes_for_any_socket_of_the_set() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let (client2, server2) = connected(&a, &b);
    let set = b.epoll_create().unwrap();
    add(&b, set, server, EPOLLIN, 1);
    add(&b, set, server2, EPOLLIN | EPOLLET, 2);
    for (from, data) in [(client2, 2), (client, 1)] {
        let mut found = [EpollEvent::default(); 8];
        let n = while_asleep(
            || b.epoll_wait(set, &mut found, None),
            || send(&a, from, b"x"),
        );
        assert_eq!((n, found[0].data), (Ok(1), data));
    }
    // Level-triggered events are reported again; edge-triggered ones only when more data arrives.
    assert_eq!(ready(&b, set), [(EPOLLIN, 1)]);
    send(&a, client2, b"y");
    let mut all = ready(&b, set);
    all.sort_unstable();
    assert_eq!(all, [(EPOLLIN, 1), (EPOLLIN, 2)]);
}

#[test]
fn a_one_shot_event_is_reported_once() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let set = b.epoll_create().unwrap();
    add(&b, set, server, EPOLLIN | EPOLLONESHOT, 7);
    send(&a, client, b"x");
    assert_eq!(ready(&b, set), [(EPOLLIN, 7)]);
    send(&a, client, b"y");
    assert_eq!(ready(&b, set), []);
    let again = EpollEvent {
        events: EPOLLIN | EPOLLONESHOT,
        data: 8,
    };
    b.epoll_ctl(set, EPOLL_CTL_MOD, server, again).unwrap();
    assert_eq!(ready(&b, set), [(EPOLLIN, 8)]);
}

#[test]
fn closing_an_epoll_set_wakes_its_waiters() {
    let (_a, b) = live_pair();
    let set = b.epoll_create().unwrap();
    let mut found = [EpollEvent::default(); 1];
    let got = while_asleep(
        || b.epoll_wait(set, &mut found, None),
        || b.close(set).unwrap(),
    );
    assert_eq!(got, Err(Errno::EBADF));
}

#[test]
fn a_pipe_read_blocks_and_splice_moves_pipe_data_to_a_socket() {
    let (a, b) = live_pair();
    let (client, server) = connected(&a, &b);
    let (reader, writer) = a.pipe(false).unwrap();
    let moved = while_asleep(
        || a.splice(reader, client, 100, 0),
        || assert_eq!(a.write(writer, &[b"through ", b"a pipe"]), Ok(14)),
    );
    assert_eq!(moved, Ok(14));
    let mut buffer = [0; 14];
    let got = b.recvmsg(server, &mut [&mut buffer], MSG_WAITALL, &mut []);
    assert_eq!((got.unwrap().len, &buffer), (14, b"through a pipe"));

    // More than a pipe holds: the writer waits until a thread reads.
    let much = vec![3; 300_000];
    let read = |want: usize| {
        let mut out = vec![0; want];
        let n = a.read(reader, &mut [&mut out]).unwrap();
        assert!(out[..n].iter().all(|&b| b == 3));
        n
    };
    let wrote = while_asleep(
        || a.write(writer, &[&much]),
        || {
            let mut left = much.len();
            while left > 0 {
                left -= read(left);
            }
        },
    );
    assert_eq!(wrote, Ok(much.len()));
    a.close(writer).unwrap();
    assert_eq!(a.read(reader, &mut [&mut [0; 4]]), Ok(0));
}
