//! A peer of a stream of frames that passes descriptors with them.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use fullsend_device::{Device, FrameLink, Framing};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Returns a frame of 64 bytes behind its length.
fn frame(fill: u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 64];
    bytes.extend([fill; 12]);
    bytes.extend([8, 0]);
    bytes.extend([fill; 50]);
    bytes
}

/// A read ends at a message with descriptors, though more bytes wait. A link that had one event for all of
/// them must not take that for the end.
#[test]
fn frames_behind_one_with_descriptors_need_no_event_of_their_own() {
    let path = std::env::temp_dir().join(format!("fullsend-rights-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let mut link = FrameLink::new(1500).unwrap();
    link.listen(listener.into(), Framing::Qemu).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let mut batch = Vec::new();
    assert_eq!(link.receive(&mut batch, 64).unwrap(), 0);
    for n in 0..3 {
        let file = [peer.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&file)));
        let bytes = frame(n);
        sendmsg(
            &peer,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }
    peer.write_all(&frame(9)).unwrap();
    link.receive(&mut batch, 64).unwrap();
    assert_eq!(batch.len(), 4);
}
