//! The program's end of a user-driven device.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::{Context, Poll};

use fullsend_offload::{Packet, Slice};

use super::Shared;
use super::queue::unpin;

/// Longest packet that a device accepts, bytes: a full IPv6 payload with its IPv6, Ethernet and VLAN
/// headers.
pub(super) const PACKET_MAX: usize = 65_535 + 40 + 18;

/// The program's end of a [`UserDevice`](super::UserDevice), which receives the packets that the stack
/// sends, and passes packets to it.
///
/// Both halves may be used in different tasks: move them out of the fields. With the feature `futures`,
/// the port and its halves are a `Stream` and a `Sink` of packets (`Bytes`). Dropping both halves ends
/// the device, and with it the stack.
#[derive(Debug)]
pub struct PacketPort {
    /// The half that receives the packets that the stack sends.
    pub receiver: PacketReceiver,
    /// The half that passes packets to the stack.
    pub sender: PacketSender,
}

impl PacketPort {
    /// Receives the next packet that the stack sends: see [`PacketReceiver::recv`].
    ///
    /// # Errors
    /// The errors of [`PacketReceiver::recv`].
    pub async fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.receiver.recv(buf).await
    }

    /// Passes a packet to the stack: see [`PacketSender::send`].
    ///
    /// # Errors
    /// The errors of [`PacketSender::send`].
    pub async fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.sender.send(packet).await
    }
}

/// The half of a [`PacketPort`] that receives the packets that the stack sends. Dropping it makes the
/// device drop all later packets.
pub struct PacketReceiver {
    shared: Arc<Shared>,
}

/// The half of a [`PacketPort`] that passes packets to the stack.
pub struct PacketSender {
    shared: Arc<Shared>,
}

impl PacketReceiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits for the next packet that the stack sends, copies it to `buf`, and returns its length in
    /// bytes. Cancel safe: dropping the future loses no packet.
    ///
    /// # Errors
    /// - `BrokenPipe` when the stack has ended.
    /// - `InvalidInput` if the packet does not fit in `buf`; the packet is dropped and counted.
    pub async fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_recv(cx, buf)).await
    }

    /// Polls for the next packet; see [`recv`](Self::recv).
    ///
    /// # Errors
    /// The errors of [`recv`](Self::recv).
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_recv_packet(cx)
            .map(|packet| self.copy(&packet.ok_or_else(stack_has_ended)?, buf))
    }

    /// Receives the next packet without waiting, and returns its length in bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is none now, and the errors of [`recv`](Self::recv).
    pub fn try_recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let packet = self.try_recv_packet()?;
        self.copy(&packet, buf)
    }

    /// Waits for the next packet, and returns it without copying its payload, with the state of its
    /// offloads, and as a whole super-segment if the device's capabilities allow it. Returns `None` when
    /// the stack has ended. Cancel safe: dropping the future loses no packet.
    pub async fn recv_packet(&mut self) -> Option<Packet> {
        poll_fn(|cx| self.poll_recv_packet(cx)).await
    }

    /// Polls for the next packet; see [`recv_packet`](Self::recv_packet).
    pub fn poll_recv_packet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Packet>> {
        self.shared.outgoing.poll_pop(cx)
    }

    /// Receives the next packet without waiting, with the state of its offloads.
    ///
    /// # Errors
    /// `WouldBlock` if there is none now, and `BrokenPipe` when the stack has ended.
    pub fn try_recv_packet(&mut self) -> io::Result<Packet> {
        let outgoing = &self.shared.outgoing;
        if let Some(packet) = outgoing.pop() {
            return Ok(packet);
        }
        if outgoing.is_closed() {
            return outgoing.pop().ok_or_else(stack_has_ended);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Returns the number of packets that were dropped because they did not fit in the program's buffer.
    pub fn dropped(&self) -> u64 {
        self.shared.outgoing.dropped()
    }

    fn copy(&self, packet: &Packet, buf: &mut [u8]) -> io::Result<usize> {
        let (len, room) = (packet.len(), buf.len());
        if len > room {
            self.shared.outgoing.count_dropped(1);
            let text = format!(
                "a packet of {len} bytes does not fit in a buffer of {room}; pass one of the \
                 device's MTU and link header, or of 64 KiB with offloads"
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let mut at = 0;
        for slice in packet.slices() {
            buf[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        Ok(len)
    }
}

impl PacketSender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits for room, and passes a copy of `packet` to the stack. Cancel safe: if the future is dropped,
    /// the packet is not passed.
    ///
    /// # Errors
    /// `BrokenPipe` when the stack has ended; `InvalidInput` for an empty packet or one above
    /// 65,593 bytes; `OutOfMemory` if the packet cannot be copied.
    pub async fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        poll_fn(|cx| self.shared.incoming.poll_room(cx, packet.len())).await;
        self.try_send(packet)
    }

    /// Polls for room for a packet of `len` bytes. When it is ready, the next packet of at most that
    /// length is accepted, or fails because the stack has ended. It is also ready for a packet longer
    /// than [`send`](Self::send) accepts, which then fails.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<()> {
        self.shared.incoming.poll_room(cx, len)
    }

    /// Passes a copy of `packet` to the stack without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is full, and the errors of [`send`](Self::send).
    pub fn try_send(&mut self, packet: &[u8]) -> io::Result<()> {
        check_len(packet.len())?;
        let copy = Slice::try_copied_from([packet]).ok_or(ErrorKind::OutOfMemory)?;
        self.push(Packet::from_frame(copy))
    }

    /// Passes a copy of `packet` to the stack, or drops and counts it if that is impossible, like a
    /// network card. Returns whether the stack gets it.
    pub fn inject(&mut self, packet: &[u8]) -> bool {
        let passed = self.try_send(packet).is_ok();
        if !passed {
            self.shared.incoming.count_dropped(1);
        }
        passed
    }

    /// Waits for room, and passes a packet with the state of its offloads to the stack: unparsed
    /// ([`Packet::from_frame`]), with `gso_size` and `kind` if it is a super-segment, and with its
    /// `checksum` state. [`vnet_packet`](crate::vnet_packet) makes one of a frame with a
    /// `virtio_net_hdr`. Cancel safe: if the future is dropped, the packet is not passed.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub async fn send_packet(&mut self, packet: Packet) -> io::Result<()> {
        poll_fn(|cx| self.shared.incoming.poll_room(cx, packet.len())).await;
        self.try_send_packet(packet)
    }

    /// Passes a packet with the state of its offloads to the stack without waiting. A packet that is not
    /// accepted is dropped: call [`poll_ready`](Self::poll_ready) before if it must not be lost.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is full, and the errors of [`send`](Self::send).
    pub fn try_send_packet(&mut self, packet: Packet) -> io::Result<()> {
        check_len(packet.len())?;
        self.push(packet)
    }

    /// Returns the number of packets that [`inject`](Self::inject) dropped.
    pub fn dropped(&self) -> u64 {
        self.shared.incoming.dropped()
    }

    /// Returns whether the stack has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.incoming.is_closed()
    }

    fn push(&self, mut packet: Packet) -> io::Result<()> {
        let incoming = &self.shared.incoming;
        if !unpin(&mut packet) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        if incoming.push(packet) {
            return Ok(());
        }
        Err(if incoming.is_closed() {
            stack_has_ended()
        } else {
            ErrorKind::WouldBlock.into()
        })
    }
}

fn check_len(len: usize) -> io::Result<()> {
    if (1..=PACKET_MAX).contains(&len) {
        return Ok(());
    }
    let text = format!("a packet of {len} bytes is not possible; send 1 to {PACKET_MAX}");
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

pub(super) fn stack_has_ended() -> io::Error {
    io::Error::new(
        ErrorKind::BrokenPipe,
        "the stack of this device has ended; build a new one",
    )
}

impl Drop for PacketReceiver {
    fn drop(&mut self) {
        self.shared.outgoing.discard();
    }
}

impl Drop for PacketSender {
    fn drop(&mut self) {
        self.shared.incoming.close();
    }
}

impl std::fmt::Debug for PacketReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketReceiver")
            .field("queued", &self.shared.outgoing.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PacketSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSender")
            .field("queued", &self.shared.incoming.len())
            .finish_non_exhaustive()
    }
}
