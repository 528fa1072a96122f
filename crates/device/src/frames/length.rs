//! The length field before each frame of a stream.

use std::io;

use super::{FRAME_MAX, FRAME_MIN};

/// The format of a length field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LengthField {
    /// Four bytes in network byte order.
    Be32,
    /// Two bytes in little-endian order.
    Le16,
}

impl LengthField {
    /// Returns the field's own length, in bytes.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::Be32 => 4,
            Self::Le16 => 2,
        }
    }

    /// Returns the length of the first frame in `bytes`, or `None` if its length field is incomplete.
    ///
    /// # Errors
    /// `InvalidData` if no frame can have this length: the stream is corrupt, and the start of the next
    /// frame is unknown.
    pub(super) fn parse(self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let length = match self {
            Self::Be32 => bytes.first_chunk().map(|b| u32::from_be_bytes(*b)),
            Self::Le16 => bytes.first_chunk().map(|b| u16::from_le_bytes(*b).into()),
        };
        let Some(length) = length.map(|length| length as usize) else {
            return Ok(None);
        };
        if (FRAME_MIN..=FRAME_MAX).contains(&length) {
            return Ok(Some(length));
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "a frame has a length of {length} bytes, which is not between {FRAME_MIN} and \
                 {FRAME_MAX}; does the peer use another framing?"
            ),
        ))
    }

    /// Returns the field before a frame of `length` bytes, in the first [`size`](Self::size) bytes of the
    /// array, or `None` if the field cannot express the length.
    pub(super) fn emit(self, length: usize) -> Option<[u8; 4]> {
        match self {
            Self::Be32 => Some(u32::try_from(length).ok()?.to_be_bytes()),
            Self::Le16 => {
                let [low, high] = u16::try_from(length).ok()?.to_le_bytes();
                Some([low, high, 0, 0])
            }
        }
    }
}

/// Returns the number of bytes in the complete frames at the beginning of `bytes`, including their length
/// fields.
///
/// # Errors
/// The error of [`LengthField::parse`], unless complete frames precede the invalid length; the next call
/// then reports it.
pub(super) fn whole_frames(field: LengthField, bytes: &[u8]) -> io::Result<usize> {
    let mut end = 0;
    loop {
        match field.parse(&bytes[end..]) {
            Ok(Some(length)) if end + field.size() + length <= bytes.len() => {
                end += field.size() + length;
            }
            Err(error) if end == 0 => return Err(error),
            Ok(_) | Err(_) => return Ok(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_no_frame_are_errors_that_name_them() {
        for length in [0, 13, 65_594, u32::MAX] {
            let error = LengthField::Be32.parse(&length.to_be_bytes()).unwrap_err();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
        assert!(LengthField::Le16.parse(&[13, 0]).is_err());
        assert_eq!(
            LengthField::Le16.parse(&[0xff, 0xff]).unwrap(),
            Some(65_535)
        );
        assert_eq!(LengthField::Be32.parse(&[0, 1, 0]).unwrap(), None);
    }

    #[test]
    fn whole_frames_end_before_a_part_and_before_an_invalid_length() {
        let frame = [&[14, 0][..], &[7; 14]].concat();
        let two = frame.repeat(2);
        for (rest, expected) in [(&frame[..9], 32), (&[1][..], 32), (&[1, 0][..], 32)] {
            let bytes = [&two, rest].concat();
            assert_eq!(whole_frames(LengthField::Le16, &bytes).unwrap(), expected);
        }
        assert!(whole_frames(LengthField::Le16, &[1, 0]).is_err());
        assert_eq!(whole_frames(LengthField::Le16, &[]).unwrap(), 0);
    }
}
