//! Connections of monitors, and their messages.

use super::*;

#[test]
fn half_a_message_blocks_nothing_and_bad_ones_end_the_connection() {
    let mut guest = Guest::new();
    guest.socket.write_all(&[1, 0, 0, 0, 1, 0]).unwrap();
    assert!(guest.alive());
    guest.socket.write_all(&[0, 0, 0, 0, 0, 0]).unwrap();
    assert!(guest.alive());
    let mut reply = [0; 20];
    guest.socket.read_exact(&mut reply).unwrap();
    assert_ne!(reply[12..], [0; 8], "features");
    guest
        .socket
        .write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9])
        .unwrap();
    assert!(!guest.alive());
    assert_eq!(guest.stats().protocol_errors, 1);

    // The end within a message.
    let mut guest = Guest::new();
    guest.socket.write_all(&[1, 0, 0]).unwrap();
    guest.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(!guest.alive());

    // A socket as the file of a notification.
    let mut guest = Guest::new();
    guest.send(12, &words(&[0]), &[guest.socket.as_fd()]);
    assert!(!guest.alive());
    assert_eq!(guest.stats().protocol_errors, 1);

    // Rings outside of the memory, and a table whose end overflows.
    for (start, monitor) in [(GUEST, 0), (u64::MAX - 100, MONITOR)] {
        let mut guest = Guest::new();
        guest.send(2, &words(&[FEATURES]), &[]);
        guest.set_memory(start, monitor);
        guest.start(0);
        assert!(!guest.alive());
    }
}

#[test]
fn a_full_counter_that_the_monitor_made_blocking_blocks_nothing() {
    let mut guest = Guest::running(FEATURES);
    let full = (u64::MAX - 1).to_ne_bytes();
    let mut counter = [0; 8];
    rustix::io::read(&guest.call, &mut counter).unwrap();
    rustix::io::write(&guest.call, &full).unwrap();
    fcntl_setfl(&guest.call, OFlags::RDWR).unwrap();
    let before = guest.stats().notifications;
    post_frames(&mut guest, 1, 60);
    assert_eq!(guest.receive().len(), 1);
    assert_eq!(guest.stats().notifications, before);
    rustix::io::read(&guest.call, &mut counter).unwrap();
    assert_eq!(counter, full);
}

#[test]
fn enabling_a_ring_is_acknowledged_if_that_was_negotiated() {
    const NEED_REPLY: u32 = 1 << 3 | 1;
    // The index and state, and the result: the content of a reply or none, and whether it succeeded.
    for (index, enable, negotiated, reply, ok) in [
        (0, 1, false, None, true),
        (0, 1, true, Some(0), true),
        (1, 0, true, Some(0), true),
        (1, 2, true, Some(1), false),
        (2, 1, true, Some(1), false),
        (2, 1, false, None, false),
    ] {
        let mut guest = Guest::running(FEATURES);
        if negotiated {
            guest.send(16, &words(&[1 << 3]), &[]);
        }
        guest.send_with(18, NEED_REPLY, &words(&[pair(index, enable)]), &[]);
        assert_eq!(guest.alive(), ok);
        let mut bytes = [0; 20];
        guest.socket.set_nonblocking(true).unwrap();
        let read = guest.socket.read(&mut bytes).unwrap_or(0);
        let content = (read == 20).then(|| u64::from_ne_bytes(*bytes.last_chunk().unwrap()));
        assert_eq!(content, reply);
    }
    let mut guest = Guest::running(FEATURES);
    guest.send_with(18, 2, &words(&[pair(0, 1)]), &[]);
    assert!(!guest.alive(), "another version of the protocol");
}

#[test]
fn half_a_message_with_the_monitors_own_socket_ends_the_connection_later() {
    let guest = Guest::new();
    guest.send_bytes(&[1, 0, 0], &[guest.socket.as_fd()]);
    let Guest {
        mut device, socket, ..
    } = guest;
    drop(socket);
    loop {
        let file = device.fd().unwrap();
        poll(&mut [PollFd::new(&file, PollFlags::IN)], None).unwrap();
        if device.receive(&mut Vec::new(), 64).is_err() {
            break;
        }
    }
    assert_eq!(device.stats().protocol_errors, 1);
}

/// Calls the device when it is readable, until `is_true`.
fn drive(device: &mut VhostUser, mut is_true: impl FnMut(&VhostUser) -> bool) {
    while !is_true(device) {
        let file = device.fd().unwrap();
        poll(&mut [PollFd::new(&file, PollFlags::IN)], None).unwrap();
        device.receive(&mut Vec::new(), 64).unwrap();
    }
}

#[test]
fn a_device_connects_to_a_monitor_that_listens_also_again() {
    let path = std::env::temp_dir().join(format!("fullsend-vhost-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let ends = Arc::new(AtomicU32::new(0));
    let counted = ends.clone();
    let mut device = VhostUser::connect_to(&path)
        .on_disconnect(move || {
            counted.fetch_add(1, Relaxed);
        })
        .open()
        .unwrap();
    assert_eq!(
        device.stats().connections,
        0,
        "the monitor does not listen yet"
    );
    let listener = UnixListener::bind(&path).unwrap();
    for count in 1..=3 {
        drive(&mut device, |device| device.stats().connections == count);
        let (mut monitor, _) = listener.accept().unwrap();
        monitor
            .write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
            .unwrap();
        drive(&mut device, |_| {
            rustix::io::ioctl_fionread(&monitor).unwrap() == 20
        });
        assert_eq!(u64::from(ends.load(Relaxed)), count - 1);
        drop(monitor);
        drive(&mut device, |_| u64::from(ends.load(Relaxed)) == count);
    }
    assert_eq!(device.stats().protocol_errors, 0);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_device_fails_with_its_only_connection_unless_it_outlives_it() {
    for outlives in [false, true] {
        let (monitor, other) = UnixStream::pair().unwrap();
        let mut builder = VhostUser::from_socket(other.into());
        if outlives {
            builder = builder.outlive_connection();
        }
        let mut device = builder.open().unwrap();
        drop(monitor);
        let received = device.receive(&mut Vec::new(), 64);
        assert_eq!(received.is_ok(), outlives);
        let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
        device.transmit(&mut VecDeque::from([packet])).unwrap();
        assert_eq!(device.stats().tx_no_guest, 1);
    }
}

#[test]
fn a_bound_socket_is_served_and_its_file_stays() {
    let path = std::env::temp_dir().join(format!("fullsend-vhost-own-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let mut device = VhostUser::from_listener(listener).open().unwrap();
    let _monitor = UnixStream::connect(&path).unwrap();
    drive(&mut device, |device| device.stats().connections == 1);
    drop(device);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_guest_without_a_connection_loses_packets() {
    let mut guest = Guest::new();
    let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
    let mut batch = VecDeque::from([packet]);
    guest.device.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(guest.stats().tx_no_guest, 1);
}
