//! A monitor and a guest's driver, which speak vhost-user to a program, in memory that can become shorter.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Addresses of the memory for the guest and for the monitor.
const GUEST: u64 = 0x4000_0000;
const MONITOR: u64 = 0x7f12_0000_0000;
const MEMORY: u64 = 1 << 20;
const SIZE: u16 = 16;
/// Offsets of each ring's parts, and of the frame.
const RING: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x1_0000;

/// `VERSION_1` and `PROTOCOL_FEATURES`.
const FEATURES: u64 = 1 << 32 | 1 << 30;
const HEADER_LEN: u32 = 12;
/// The transmit ring.
const TRANSMIT: u64 = 1;

/// A monitor that has connected.
pub(crate) struct Monitor {
    socket: UnixStream,
    memory: File,
    /// Expires in place of the notifications of a driver.
    kick: TimerFd,
    call: TimerFd,
    posted: u16,
}

fn words(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn pair(a: u64, b: u64) -> u64 {
    a | b << 32
}

impl Monitor {
    /// Connects; the guest's memory will be the file at `memory`.
    pub(crate) fn connect(socket: &Path, memory: &Path) -> Self {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(memory)
            .unwrap();
        file.set_len(MEMORY).unwrap();
        let timer = || TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).unwrap();
        Self {
            socket: UnixStream::connect(socket).unwrap(),
            memory: file,
            kick: timer(),
            call: timer(),
            posted: 0,
        }
    }

    fn send(&self, request: u32, body: &[u8], files: &[RawFd]) {
        let header = [request, 1, body.len() as u32].map(u32::to_ne_bytes);
        let message = [header.as_flattened(), body].concat();
        let rights = [ControlMessage::ScmRights(files)];
        let control = if files.is_empty() { &[][..] } else { &rights };
        let parts = [IoSlice::new(&message)];
        let fd = self.socket.as_raw_fd();
        // The program may have closed the connection.
        let _ = sendmsg::<()>(fd, &parts, control, MsgFlags::MSG_NOSIGNAL, None);
    }

    /// Reads the number of pairs of queues, as a monitor does before it uses the card.
    pub(crate) fn queues(&mut self) -> u64 {
        self.send(16, &words(&[1]), &[]);
        self.send(17, &[], &[]);
        let mut reply = [0; 20];
        self.socket.read_exact(&mut reply).unwrap();
        u64::from_ne_bytes(*reply.last_chunk().unwrap())
    }

    /// Passes the memory and both rings.
    pub(crate) fn start(&self) {
        self.send(2, &words(&[FEATURES]), &[]);
        let table = words(&[1, GUEST, MEMORY, MONITOR, 0]);
        self.send(5, &table, &[self.memory.as_raw_fd()]);
        for ring in 0..2 {
            let at = MONITOR + RING * ring;
            self.send(8, &words(&[pair(ring, SIZE.into())]), &[]);
            self.send(10, &words(&[pair(ring, 0)]), &[]);
            self.send(9, &words(&[ring, at, at + USED, at + AVAILABLE, 0]), &[]);
            self.send(13, &words(&[ring]), &[self.call.as_fd().as_raw_fd()]);
            self.send(12, &words(&[ring]), &[self.kick.as_fd().as_raw_fd()]);
            self.send(18, &words(&[pair(ring, 1)]), &[]);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    /// Sends a frame.
    pub(crate) fn send_frame(&mut self, frame: &[u8]) {
        self.write(DATA, &[0; HEADER_LEN as usize]);
        self.write(DATA + u64::from(HEADER_LEN), frame);
        self.post(frame.len() as u32);
    }

    /// Makes a frame of `len` bytes available, whatever is there.
    pub(crate) fn post(&mut self, len: u32) {
        let ring = RING * TRANSMIT;
        let slot = self.posted % SIZE;
        let chain = [GUEST + DATA, (HEADER_LEN + len).into()];
        self.write(ring + 16 * u64::from(slot), &words(&chain));
        let entry = ring + AVAILABLE + 4 + 2 * u64::from(slot);
        self.write(entry, &slot.to_le_bytes());
        self.posted = self.posted.wrapping_add(1);
        self.write(ring + AVAILABLE + 2, &self.posted.to_le_bytes());
        let now = Expiration::OneShot(Duration::from_nanos(1).into());
        self.kick.set(now, TimerSetTimeFlags::empty()).unwrap();
    }

    /// Returns the number of chains that the program has used.
    pub(crate) fn used(&self) -> u16 {
        let mut bytes = [0; 2];
        let at = RING * TRANSMIT + USED + 2;
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// Makes the file of the memory shorter: the rings are left, and the frame is gone.
    pub(crate) fn shorten(&self) {
        self.memory.set_len(DATA).unwrap();
    }

    /// Waits until the program has closed the connection.
    pub(crate) fn wait_for_end(mut self, limit: Duration) {
        self.socket.set_read_timeout(Some(limit)).unwrap();
        let _ = self.socket.flush();
        let mut rest = Vec::new();
        self.socket
            .read_to_end(&mut rest)
            .expect("the connection ends");
    }
}
