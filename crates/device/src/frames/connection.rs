//! The connection of a virtual machine.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fullsend_offload::{Packet, Pool};

use super::hyperkit::Handshake;
use super::length::LengthField;
use super::reader::StreamReader;
use super::writer::StreamWriter;
use super::{FrameStats, Framing};
use crate::{Device, FrameSocket, sys};

/// Most bytes that a stream holds for a virtual machine that does not read: a few super-segments.
const SEND_BUFFER: usize = 1 << 20;

/// A connection, and the data that was received on it.
pub(super) struct Connection {
    state: State,
    mtu: u32,
    pool: Pool,
}

enum State {
    Handshake(File, Handshake),
    Stream(Box<Stream>),
    Messages(Box<FrameSocket>),
}

struct Stream {
    input: File,
    /// The file to which frames are written; `None` for `input`.
    output: Option<File>,
    reader: StreamReader,
    writer: StreamWriter,
    /// Whether super-segments are sent once the peer has sent one.
    mirrors_super_segments: bool,
    /// Whether writing has failed, so that the peer receives nothing any more.
    is_broken: bool,
}

impl Connection {
    /// Uses a connected socket, which becomes non-blocking.
    pub(super) fn new(
        socket: OwnedFd,
        framing: Framing,
        (mtu, pool): (u32, &Pool),
    ) -> io::Result<Self> {
        let pool = pool.clone();
        if framing == Framing::Messages {
            let state = State::Messages(Box::new(FrameSocket::new(socket, mtu)?));
            return Ok(Self { state, mtu, pool });
        }
        sys::set_nonblocking(socket.as_fd())?;
        // The kernel limits the size; the default suffices.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        let file = File::from(socket);
        let state = match framing {
            Framing::Hyperkit { guest_mac } => {
                State::Handshake(file, Handshake::new(guest_mac, mtu))
            }
            framing => State::Stream(Box::new(Stream::new((file, None), framing, mtu, &pool))),
        };
        Ok(Self { state, mtu, pool })
    }

    /// Uses two pipes, or other files that are streams.
    ///
    /// # Errors
    /// `InvalidInput` for a framing with a handshake or with messages.
    pub(super) fn of_pipes(
        (input, output): (OwnedFd, OwnedFd),
        framing: Framing,
        (mtu, pool): (u32, &Pool),
    ) -> io::Result<Self> {
        if !matches!(framing, Framing::Qemu | Framing::Plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("pipes cannot have the framing {framing:?}; use Qemu or Plain"),
            ));
        }
        sys::set_nonblocking(input.as_fd())?;
        sys::set_nonblocking(output.as_fd())?;
        let pool = pool.clone();
        let files = (File::from(input), Some(File::from(output)));
        let state = State::Stream(Box::new(Stream::new(files, framing, mtu, &pool)));
        Ok(Self { state, mtu, pool })
    }

    /// Implements [`Device::limit_memory`]. Data that was received before is not moved.
    pub(super) fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.pool = pool.clone();
        match &mut self.state {
            State::Handshake(..) => {}
            State::Stream(stream) => stream.reader.set_pool(pool),
            State::Messages(socket) => socket.limit_memory(pool, max_bytes),
        }
    }

    /// Returns the file that becomes readable.
    pub(super) fn input(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Handshake(file, _) => file.as_fd(),
            State::Stream(stream) => stream.input.as_fd(),
            State::Messages(socket) => socket.as_fd(),
        }
    }

    /// Returns the file that becomes writable if it is not `input`.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Stream(stream) => stream.output.as_ref().map(AsFd::as_fd),
            State::Handshake(..) | State::Messages(_) => None,
        }
    }

    /// Appends at most `max` frames to `batch`. Returns their number, including dropped ones, and the
    /// reason if the connection has ended.
    pub(super) fn receive(
        &mut self,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut FrameStats,
    ) -> (usize, Option<io::Error>) {
        if let State::Handshake(file, handshake) = &mut self.state {
            match shake_hands(file, handshake, stats) {
                Ok(false) => return (0, None),
                Ok(true) => {}
                Err(error) => return (0, Some(error)),
            }
            let file = match file.try_clone() {
                Ok(file) => file,
                Err(error) => return (0, Some(error)),
            };
            let stream = Stream::new((file, None), Framing::Plain, self.mtu, &self.pool);
            self.state = State::Stream(Box::new(stream));
        }
        match &mut self.state {
            State::Handshake(..) => (0, None),
            State::Stream(stream) => stream.reader.receive(&stream.input, batch, max, stats),
            State::Messages(socket) => receive_messages(socket, batch, max, stats),
        }
    }

    /// Implements [`Device::transmit`]. A peer that receives nothing is not an error: its packets are
    /// dropped, and the receiving half reports the connection's end.
    pub(super) fn transmit(&mut self, batch: &mut VecDeque<Packet>, stats: &mut FrameStats) {
        match &mut self.state {
            State::Stream(stream) if !stream.is_broken => {
                let whole = stream.mirrors_super_segments && stream.reader.has_super_segments();
                let file = stream.output.as_ref().unwrap_or(&stream.input);
                let Err(error) = stream.writer.transmit(file, batch, whole, stats) else {
                    return;
                };
                tracing::debug!(%error, "the virtual machine receives no frames");
                stream.is_broken = true;
            }
            State::Messages(socket) => {
                let before = batch.len();
                // A failure means that the descriptor is unusable.
                if socket.transmit(batch).is_ok() {
                    stats.tx_frames += (before - batch.len()) as u64;
                    return;
                }
            }
            State::Stream(_) | State::Handshake(..) => {}
        }
        stats.tx_dropped += batch.len() as u64;
        batch.clear();
    }
}

impl Stream {
    fn new((input, output): (File, Option<File>), framing: Framing, mtu: u32, pool: &Pool) -> Self {
        let field = match framing {
            Framing::Qemu => LengthField::Be32,
            Framing::Plain | Framing::Hyperkit { .. } | Framing::Messages => LengthField::Le16,
        };
        Self {
            input,
            output,
            reader: StreamReader::new(field, mtu, pool.clone()),
            writer: StreamWriter::new(field),
            mirrors_super_segments: framing == Framing::Qemu,
            is_broken: false,
        }
    }
}

/// Reads and answers messages of the handshake. Returns whether it is complete.
fn shake_hands(
    mut file: &File,
    handshake: &mut Handshake,
    stats: &mut FrameStats,
) -> io::Result<bool> {
    let mut bytes = [0; 64];
    loop {
        let wanted = handshake.wanted().min(bytes.len());
        stats.rx_calls += 1;
        let len = match file.read(&mut bytes[..wanted]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if let Some((answer, is_complete)) = handshake.receive(&bytes[..len])? {
            // The empty send buffer of the new connection has room for the answer, so the write does not
            // block.
            file.write_all(&answer)?;
            if is_complete {
                return Ok(true);
            }
        }
    }
}

fn receive_messages(
    socket: &mut FrameSocket,
    batch: &mut Vec<Packet>,
    max: usize,
    stats: &mut FrameStats,
) -> (usize, Option<io::Error>) {
    let mut count = 0;
    // The end of a socket is reported by the read after its last frame.
    while count < max {
        match socket.receive(batch, max - count) {
            Ok(0) => break,
            Ok(received) => {
                count += received;
                stats.rx_frames += received as u64;
            }
            Err(error) => return (count, Some(error)),
        }
    }
    (count, None)
}
