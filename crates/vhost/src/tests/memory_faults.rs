//! Guests whose memory is gone.
#![allow(unsafe_code, reason = "it reads the handler of a signal")]

use super::*;

impl Guest {
    /// Returns a guest in memory that its monitor can shorten.
    fn unsealed(pairs: usize, build: impl FnOnce(VhostUserBuilder) -> VhostUserBuilder) -> Self {
        let mut guest = Self::built(pairs, build);
        guest.memory = File::from(memfd_create("guest", MemfdFlags::empty()).unwrap());
        guest.memory.set_len(MEMORY).unwrap();
        guest
    }

    /// Returns a guest whose driver runs, in memory that its monitor can shorten.
    fn running_unsealed(pairs: usize) -> Self {
        let mut guest = Self::unsealed(pairs, VhostUserBuilder::handle_sigbus);
        let mq = if pairs > 1 { 1 << 22 } else { 0 };
        guest.send(2, &words(&[FEATURES | mq]), &[]);
        guest.set_memory(GUEST, MONITOR);
        for ring in 0..2 * pairs as u32 {
            guest.start(ring);
        }
        guest.receive();
        assert_eq!(guest.stats().protocol_errors, 0);
        guest
    }
}

/// Returns whether the device receives nothing any more, and ends with its connection.
fn ends(guest: &mut Guest) -> bool {
    let mut batch = Vec::new();
    let has_ended = (0..3).any(|_| guest.device.receive(&mut batch, 64).is_err());
    has_ended && batch.is_empty()
}

fn frame() -> VecDeque<Packet> {
    VecDeque::from([Packet::from_frame(Slice::copied_from(&[7; 1000]))])
}

/// The variable with which a test runs in a process of its own.
const ALONE: &str = "FULLSEND_NO_SIGBUS";

/// Returns the address of this process's handler of SIGBUS.
fn handler() -> usize {
    // SAFETY: all fields of the structure may be 0, and the pointers are null or valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let done = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action) };
    assert_eq!(done, 0);
    action.sa_sigaction
}

/// A handler belongs to the whole process, and this crate is a library.
#[test]
fn without_permission_no_handler_is_installed_and_memory_that_can_shrink_is_refused() {
    if std::env::var_os(ALONE).is_none() {
        let name = "tests::memory_faults::without_permission_no_handler_is_installed_and_memory_that_can_shrink_is_refused";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name]).env(ALONE, "1").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let before = handler();
    let mut sealed = Guest::running(FEATURES);
    post_frames(&mut sealed, 1, 60);
    assert_eq!(sealed.receive().len(), 1);
    let mut guest = Guest::unsealed(1, |builder| builder);
    guest.send(2, &words(&[FEATURES]), &[]);
    guest.set_memory(GUEST, MONITOR);
    assert!(ends(&mut guest));
    assert_eq!(guest.stats().protocol_errors, 1);
    assert_eq!(handler(), before);
    // The program permits it.
    let mut guest = Guest::running_unsealed(1);
    post_frames(&mut guest, 1, 60);
    assert_eq!(guest.receive().len(), 1);
    assert_ne!(handler(), before);
}

/// The data of a frame is gone, and its rings are there.
#[test]
fn a_frame_whose_page_is_gone_ends_its_guest_alone() {
    let mut other = Guest::running_unsealed(1);
    let mut guest = Guest::running_unsealed(1);
    post_frames(&mut guest, 1, 60);
    assert_eq!(guest.receive().len(), 1);
    post_frames(&mut guest, 1, 60);
    guest.memory.set_len(DATA).unwrap();
    assert!(ends(&mut guest), "or a frame of zeros");
    let stats = guest.stats();
    assert_eq!((stats.memory_faults, stats.protocol_errors), (1, 1));
    assert_eq!((stats.rx_packets, stats.rx_malformed), (1, 1));
    post_frames(&mut other, 2, 60);
    assert_eq!(other.receive().len(), 2);
    assert_eq!(other.stats().memory_faults, 0);
}

#[test]
fn a_receive_buffer_whose_page_is_gone_ends_its_guest() {
    let mut guest = Guest::running_unsealed(1);
    guest.descriptor(0, 0, (GUEST + DATA, 2000, WRITE, 0));
    guest.post(0, 0);
    guest.memory.set_len(DATA).unwrap();
    let mut batch = frame();
    guest.device.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert!(ends(&mut guest));
    assert_eq!(guest.stats().memory_faults, 1);
}

#[test]
fn rings_that_are_gone_end_their_guest() {
    for len in [0, RING, RING + AVAILABLE, RING + USED] {
        let mut guest = Guest::running_unsealed(1);
        post_frames(&mut guest, 1, 60);
        guest.memory.set_len(len).unwrap();
        assert!(ends(&mut guest), "{len}");
        assert_eq!(guest.stats().memory_faults, 1);
    }
    // The memory is gone before the rings are set up.
    let mut guest = Guest::unsealed(1, VhostUserBuilder::handle_sigbus);
    guest.send(2, &words(&[FEATURES]), &[]);
    guest.set_memory(GUEST, MONITOR);
    assert!(guest.alive());
    guest.memory.set_len(0).unwrap();
    guest.start(0);
    assert!(ends(&mut guest));
    assert_eq!(guest.stats().memory_faults, 1);
}

/// The device of another pair finds it, and the first one ends the connection.
#[test]
fn memory_that_is_gone_ends_all_pairs() {
    let mut guest = Guest::running_unsealed(2);
    guest.descriptor(3, 0, (GUEST + DATA, 72, 0, 0));
    guest.post(3, 0);
    guest.memory.set_len(DATA).unwrap();
    let mut batch = Vec::new();
    guest.others[0].receive(&mut batch, 64).unwrap();
    assert!(batch.is_empty());
    assert!(ends(&mut guest));
    assert_eq!(guest.stats().memory_faults, 1);
    let mut batch = frame();
    guest.others[0].transmit(&mut batch).unwrap();
    assert_eq!(guest.others[0].stats().tx_no_guest, 1);
}

/// The monitor shortens the file at any moment while the device uses it, and another guest goes on.
#[test]
fn memory_that_shrinks_under_load_ends_its_guest_alone() {
    let mut other = Guest::running_unsealed(1);
    for round in 0..30 {
        let mut guest = Guest::running_unsealed(1);
        // A write by the driver would make the file longer again.
        let len = Arc::new(std::sync::Mutex::new(MEMORY));
        let (shared, memory) = (len.clone(), guest.memory.try_clone().unwrap());
        let shrinks = std::thread::spawn(move || {
            let step = 0x1000 * (1 + round % 7);
            for shorter in (0..MEMORY).rev().step_by(step).chain([0]) {
                let mut len = shared.lock().unwrap();
                memory.set_len(shorter).unwrap();
                *len = shorter;
            }
        });
        loop {
            let len = len.lock().unwrap();
            if *len > DATA + 0x1000 {
                post_frames(&mut guest, 4, 60);
            }
            drop(len);
            let is_shrunk = shrinks.is_finished();
            // Each access faults now.
            let calls = if is_shrunk { 3 } else { 1 };
            let mut receive = || guest.device.receive(&mut Vec::new(), 64).is_err();
            if (0..calls).any(|_| receive()) {
                break;
            }
            assert!(!is_shrunk);
        }
        shrinks.join().unwrap();
        assert_eq!(guest.stats().memory_faults, 1);
        post_frames(&mut other, 2, 60);
        assert_eq!(other.receive().len(), 2);
    }
}
