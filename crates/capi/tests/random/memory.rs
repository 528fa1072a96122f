//! Memory that calls are given.

use std::ffi::c_int;
use std::ptr::null_mut;

use libc::{c_void, iovec, msghdr, socklen_t};

use super::Source;

/// The value of bytes that no call has filled.
const UNTOUCHED: u8 = 0xa5;

/// An allocation of exactly some bytes, behind a few that shift its alignment; or none, whose pointer is
/// null.
pub(super) struct Memory {
    bytes: Box<[u8]>,
    shift: usize,
    is_null: bool,
}

impl Memory {
    /// Returns memory with these bytes. One in 32 has a null pointer, one in four is unaligned.
    pub(super) fn of(source: &mut dyn Source, content: &[u8]) -> Option<Self> {
        let choice = source.byte()?;
        let shift = if choice % 4 == 1 {
            1 + usize::from(choice / 64)
        } else {
            0
        };
        let mut bytes = vec![UNTOUCHED; shift];
        bytes.extend_from_slice(content);
        Some(Self {
            bytes: bytes.into(),
            shift,
            is_null: choice % 32 == 31,
        })
    }

    /// Returns memory of `len` bytes from the source.
    pub(super) fn filled(source: &mut dyn Source, len: usize) -> Option<Self> {
        // Four bytes, repeated, leave more of the input for other calls.
        let word = source.word()?.to_le_bytes();
        let content: Vec<u8> = word.into_iter().cycle().take(len).collect();
        Self::of(source, &content)
    }

    /// Returns memory of `len` bytes, in which a change is noticed.
    pub(super) fn untouched(source: &mut dyn Source, len: usize) -> Option<Self> {
        Self::of(source, &vec![UNTOUCHED; len])
    }

    pub(super) fn start(&mut self) -> *mut c_void {
        if self.is_null {
            return null_mut();
        }
        self.bytes[self.shift..].as_mut_ptr().cast()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.shift
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.shift..]
    }

    /// Overwrites the first bytes.
    pub(super) fn set(&mut self, content: &[u8]) {
        let len = content.len().min(self.len());
        self.write_at(0, &content[..len]);
    }

    pub(super) fn write_at(&mut self, at: usize, content: &[u8]) {
        self.bytes[self.shift + at..][..content.len()].copy_from_slice(content);
    }

    /// Returns a length that the memory has, or one that calls refuse before they access the memory.
    pub(super) fn wrong_length(source: &mut dyn Source, len: socklen_t) -> Option<socklen_t> {
        Some(match source.byte()? {
            0..=3 => 1 << 31 | len,
            4..=19 => len / 2,
            _ => len,
        })
    }

    pub(super) fn read<T: Number>(&self) -> T {
        self.field(0)
    }

    /// Returns the value at an offset.
    pub(super) fn field<T: Number>(&self, offset: usize) -> T {
        T::from_bytes(&self.content()[offset..][..size_of::<T>()])
    }
}

/// A value that calls write to memory.
pub(super) trait Number: Sized {
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("of its size"))
            }
        }
    )*};
}

number!(i16, c_int, socklen_t, usize);

impl Number for [c_int; 2] {
    fn from_bytes(bytes: &[u8]) -> Self {
        [
            c_int::from_bytes(&bytes[..4]),
            c_int::from_bytes(&bytes[4..]),
        ]
    }
}

/// Buffers of one call, and the array of entries that describes them.
pub(super) struct Pieces {
    buffers: Vec<Memory>,
    array: Memory,
}

impl Pieces {
    pub(super) fn new(source: &mut dyn Source, mut buffers: Vec<Memory>) -> Option<Self> {
        let mut entries = Vec::new();
        for buffer in &mut buffers {
            entries.extend(buffer.start().expose_provenance().to_ne_bytes());
            entries.extend(buffer.len().to_ne_bytes());
        }
        assert_eq!(entries.len(), buffers.len() * size_of::<iovec>());
        let array = Memory::of(source, &entries)?;
        Some(Self { buffers, array })
    }

    /// Returns the first buffer.
    pub(super) fn first(&mut self) -> *mut c_void {
        self.buffers.first_mut().map_or(null_mut(), Memory::start)
    }

    pub(super) fn first_length(&self) -> usize {
        self.buffers.first().map_or(0, Memory::len)
    }

    pub(super) fn total(&self) -> usize {
        self.buffers.iter().map(Memory::len).sum()
    }

    pub(super) fn array(&mut self) -> *const iovec {
        self.array.start().cast_const().cast()
    }

    /// Returns the number of entries, or one that calls refuse.
    pub(super) fn count(&self, source: &mut dyn Source) -> Option<c_int> {
        Some(match source.byte()? {
            0 => -1,
            1 => 1025,
            _ => self.buffers.len() as c_int,
        })
    }

    /// Returns a message with these buffers.
    pub(super) fn message(
        &mut self,
        name: &mut Memory,
        control: &mut Memory,
        source: &mut dyn Source,
    ) -> Option<Memory> {
        // SAFETY: zeros are a valid message.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = name.start();
        message.msg_namelen = name.len() as socklen_t;
        message.msg_iov = self.array.start().cast();
        message.msg_iovlen = self.count(source)? as usize;
        message.msg_control = control.start();
        message.msg_controllen = control.len();
        for at in [
            message.msg_name,
            message.msg_control,
            message.msg_iov.cast(),
        ] {
            at.expose_provenance();
        }
        // SAFETY: the structure was zeroed, so its padding has values, too.
        let bytes: [u8; size_of::<msghdr>()] = unsafe { std::mem::transmute(message) };
        Memory::of(source, &bytes)
    }

    /// Requires that no call has changed a byte behind the first `len`.
    pub(super) fn assert_unchanged_from(&self, mut len: usize) {
        for buffer in &self.buffers {
            let filled = len.min(buffer.len());
            len -= filled;
            assert!(buffer.content()[filled..].iter().all(|&b| b == UNTOUCHED));
        }
    }
}
