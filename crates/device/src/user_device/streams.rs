//! The implementations of `Stream` and `Sink` for packets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fullsend_offload::{Packet, Slice};
use futures_core::Stream;
use futures_sink::Sink;

use super::port::{PACKET_MAX, stack_has_ended};
use super::{PacketPort, PacketReceiver, PacketSender};

/// A stream of the packets that the stack sends, each in one piece. It ends when the stack has ended.
impl Stream for PacketReceiver {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let packet = ready!(self.poll_recv_packet(cx));
        Poll::Ready(packet.map(into_bytes))
    }
}

/// Returns the bytes of a packet, without a copy if they are in one piece.
fn into_bytes(mut packet: Packet) -> Bytes {
    if packet.header.is_empty()
        && let Some(slice) = packet.payload.take_single()
    {
        return slice.into_bytes();
    }
    packet.to_bytes().into()
}

/// A sink of packets for the stack. `poll_ready` waits for room for the longest packet, or for an empty
/// queue.
impl Sink<Bytes> for PacketSender {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(PacketSender::poll_ready(&mut self, cx, PACKET_MAX));
        if self.is_closed() {
            return Poll::Ready(Err(stack_has_ended()));
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, packet: Bytes) -> io::Result<()> {
        self.try_send_packet(Packet::from_frame(Slice::from(packet)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A stream of the packets that the stack sends, as of the receiver.
impl Stream for PacketPort {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Pin::new(&mut self.receiver).poll_next(cx)
    }
}

/// A sink of packets for the stack, as of the sender.
impl Sink<Bytes> for PacketPort {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Sink::poll_ready(Pin::new(&mut self.sender), cx)
    }

    fn start_send(mut self: Pin<&mut Self>, packet: Bytes) -> io::Result<()> {
        Pin::new(&mut self.sender).start_send(packet)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_close(cx)
    }
}
