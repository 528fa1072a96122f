//! `sendfile` from a file of the kernel to a descriptor of the library.

use std::ffi::c_int;

use fullsend_blocking::Errno;
use libc::off_t;

use crate::calls::call_instance;

/// Most bytes read from the file at once.
const CHUNK: usize = 256 << 10;

/// Sends from a file to a descriptor of the library: `sendfile(2)`.
///
/// # Safety
/// The requirements of the system call.
pub(crate) unsafe fn sendfile(to: c_int, file: c_int, offset: *mut off_t, count: usize) -> isize {
    call_instance(|instance| {
        let handle = instance.handle(to)?;
        // SAFETY: the caller guarantees that it is null or an offset.
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
            let part = match instance.stack.write(handle, &[&chunk[..got]]) {
                Ok(part) => part,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => 0,
            };
            sent += part;
            // Bytes that were not accepted stay in the file.
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
    // SAFETY: the bytes are in a buffer of this library.
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
        // SAFETY: a system call whose arguments are numbers. It fails on a file without a position.
        unsafe { libc::lseek(file, -(by as off_t), libc::SEEK_CUR) };
    }
}
