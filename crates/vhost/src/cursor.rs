//! A position in the buffers of descriptor chains.

use vm_memory::{Bytes, GuestMemoryError, GuestMemoryMmap};

use crate::ring::Buffer;

/// A position in consecutive buffers of the guest.
///
/// Each byte is copied once. The guest may change its memory at any time, so copied bytes are not read
/// there again.
pub(crate) struct Cursor<'a> {
    memory: &'a GuestMemoryMmap<()>,
    buffers: &'a [Buffer],
    /// Bytes of the first buffer before the position.
    passed: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(memory: &'a GuestMemoryMmap<()>, buffers: &'a [Buffer]) -> Self {
        Self {
            memory,
            buffers,
            passed: 0,
        }
    }

    /// Fills `out` with the next bytes.
    ///
    /// # Errors
    /// An error if a buffer is not within the guest's memory, or there are fewer bytes.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<(), GuestMemoryError> {
        let mut done = 0;
        while done < out.len() {
            let (buffer, len) = self.next(out.len() - done)?;
            let memory = self.memory;
            memory.read_slice(&mut out[done..done + len], buffer.address)?;
            done += len;
        }
        Ok(())
    }

    /// Writes `bytes` at the position.
    ///
    /// # Errors
    /// An error if a buffer is not within the guest's memory, or there is less room.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), GuestMemoryError> {
        let mut done = 0;
        while done < bytes.len() {
            let (buffer, len) = self.next(bytes.len() - done)?;
            let memory = self.memory;
            memory.write_slice(&bytes[done..done + len], buffer.address)?;
            done += len;
        }
        Ok(())
    }

    /// Advances over up to `want` contiguous bytes, and returns them.
    fn next(&mut self, want: usize) -> Result<(Buffer, usize), GuestMemoryError> {
        loop {
            let [first, rest @ ..] = self.buffers else {
                return Err(GuestMemoryError::InvalidBackendAddress);
            };
            let left = first.len as usize - self.passed;
            if left == 0 {
                (self.buffers, self.passed) = (rest, 0);
                continue;
            }
            let address = first.address.0.checked_add(self.passed as u64);
            let address = address.ok_or(GuestMemoryError::GuestAddressOverflow)?;
            let len = left.min(want);
            self.passed += len;
            let buffer = Buffer {
                address: vm_memory::GuestAddress(address),
                len: len as u32,
            };
            return Ok((buffer, len));
        }
    }
}
