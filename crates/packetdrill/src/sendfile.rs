//! `sendfile` from a file of the kernel's to a descriptor of ours.

use std::ffi::c_int;

use fullsend_blocking::Errno;
use libc::off_t;

use crate::calls::on;

/// Bytes of a file sent at once.
const CHUNK: usize = 256 << 10;

/// `sendfile(2)` to a descriptor of ours.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn sendfile(to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    on(to, |stack, handle| {
        // SAFETY: null, or the caller's.
        let mut offset = unsafe { offset.as_mut() };
        let mut chunk = vec![0; count.min(CHUNK)];
        let mut sent = 0;
        while sent < count {
            let room = (count - sent).min(CHUNK);
            let from = offset.as_deref().copied();
            let got = match read_at(file, &mut chunk[..room], from) {
                Ok(got) => got,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            };
            let part = match stack.write(handle, &[&chunk[..got]]) {
                Ok(part) => part,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => 0,
            };
            sent += part;
            // What was not taken is the file's still.
            match &mut offset {
                Some(offset) => **offset += part as off_t,
                None => seek_back(file, got - part),
            }
            if part < room {
                break;
            }
        }
        Ok(sent)
    })
}

fn read_at(file: c_int, room: &mut [u8], from: Option<off_t>) -> Result<usize, Errno> {
    let start = room.as_mut_ptr().cast();
    // SAFETY: so many bytes of ours.
    let got = unsafe {
        match from {
            Some(from) => libc::pread(file, start, room.len(), from),
            None => libc::read(file, start, room.len()),
        }
    };
    usize::try_from(got).map_err(|_| {
        Errno(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    })
}

fn seek_back(file: c_int, by: usize) {
    if by > 0 {
        // SAFETY: numbers. A file that has no place has nothing to go back to.
        unsafe { libc::lseek(file, -(by as off_t), libc::SEEK_CUR) };
    }
}
