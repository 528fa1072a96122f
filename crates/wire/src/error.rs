//! The error of the header parsers.

use core::fmt;

/// The reason why bytes could not be read as a header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the header does.
    Truncated,
    /// A length field contradicts the header's own size.
    BadLength,
    /// The version (or type) field names another protocol.
    BadVersion,
    /// A field has a value its RFC forbids.
    BadField,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the packet ends before the end of its header",
            Self::BadLength => "a length field contradicts the size of the header",
            Self::BadVersion => "the version field is that of another protocol",
            Self::BadField => "a field has a value that its RFC forbids",
        })
    }
}

impl core::error::Error for WireError {}
