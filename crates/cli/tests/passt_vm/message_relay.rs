//! A relay between QEMU's vhost-user socket and passt.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Bytes before a message's body: its request, flags and length.
const HEADER_LEN: usize = 12;
/// Room for more descriptors than a message has.
const CONTROL_LEN: usize = 256;

/// Relays messages and the descriptors in them, so that the test can end the connection. QEMU then
/// connects again.
pub(crate) struct MessageRelay {
    connections: Receiver<UnixStream>,
    current: Option<UnixStream>,
}

impl MessageRelay {
    pub(crate) fn start(listener: UnixListener, passt: PathBuf) -> Self {
        let (sender, connections) = channel();
        thread::spawn(move || {
            for qemu in listener.incoming() {
                let qemu = qemu.unwrap();
                let passt = UnixStream::connect(&passt).expect("passt listens");
                let (to_qemu, from_passt) = (qemu.try_clone(), passt.try_clone());
                let (to_qemu, from_passt) = (to_qemu.unwrap(), from_passt.unwrap());
                let _ = sender.send(qemu.try_clone().unwrap());
                thread::spawn(move || relay(&from_passt, &to_qemu));
                relay(&qemu, &passt);
            }
        });
        Self {
            connections,
            current: None,
        }
    }

    /// Waits for the connection of QEMU.
    pub(crate) fn wait_for_connection(&mut self) {
        self.current = Some(self.connections.recv().expect("QEMU connects"));
    }

    /// Ends the connection, and waits for the next one.
    pub(crate) fn replace_connection(&mut self) {
        let current = self.current.take().expect("QEMU has connected");
        current.shutdown(Shutdown::Both).unwrap();
        self.wait_for_connection();
    }
}

/// Relays until `from` ends, and then ends both.
fn relay(from: &UnixStream, to: &UnixStream) {
    while relay_message(from, to).is_ok() {}
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Relays a message. Its descriptors belong to the first byte, so that a call that received several
/// messages would attribute them to the wrong one.
fn relay_message(mut from: &UnixStream, to: &UnixStream) -> io::Result<()> {
    let mut message = vec![0; HEADER_LEN];
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut message)];
    let received = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes < HEADER_LEN {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = message[8..].try_into().expect("4 bytes");
    message.resize(HEADER_LEN + u32::from_ne_bytes(length) as usize, 0);
    from.read_exact(&mut message[HEADER_LEN..])?;
    let files: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    // Messages are shorter than the socket's buffer.
    let sent = sendmsg(
        to,
        &[IoSlice::new(&message)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    assert_eq!(sent, message.len());
    Ok(())
}
