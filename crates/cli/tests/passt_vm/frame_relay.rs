//! A relay between QEMU's `-netdev stream` and passt.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

/// Relays frames between QEMU, whose connection stays, and passt, whose connection can be replaced:
/// Debian's QEMU cannot connect again itself.
pub(crate) struct FrameRelay {
    to_passt: Arc<Mutex<UnixStream>>,
}

impl FrameRelay {
    pub(crate) fn start(listener: UnixListener, passt: PathBuf) -> Self {
        let connect = move || UnixStream::connect(&passt).expect("passt listens");
        let to_passt = Arc::new(Mutex::new(connect()));
        let shared = to_passt.clone();
        thread::spawn(move || {
            let (mut qemu, _) = listener.accept().unwrap();
            let (mut to_qemu, from_guest) = (qemu.try_clone().unwrap(), shared.clone());
            thread::spawn(move || {
                while let Ok(frame) = read_frame(&mut qemu) {
                    let mut passt = from_guest.lock().unwrap();
                    // A frame of a connection that ends is lost.
                    let _ = passt.write_all(&frame);
                }
            });
            loop {
                let mut passt = shared.lock().unwrap().try_clone().unwrap();
                while let Ok(frame) = read_frame(&mut passt) {
                    if to_qemu.write_all(&frame).is_err() {
                        return;
                    }
                }
                *shared.lock().unwrap() = connect();
            }
        });
        Self { to_passt }
    }

    pub(crate) fn replace_connection(&self) {
        let passt = self.to_passt.lock().unwrap();
        passt.shutdown(Shutdown::Both).unwrap();
    }
}

/// Reads a frame with its length.
fn read_frame(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; 4 + u32::from_be_bytes(length) as usize];
    frame[..4].copy_from_slice(&length);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}
