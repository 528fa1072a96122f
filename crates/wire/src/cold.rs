//! A hint to the compiler about branches that are rarely taken.

/// Marks the branch that calls it as rarely taken.
///
/// The compiler places the code of such a branch apart from the common path, so that a packet touches
/// fewer lines of the instruction cache. Its 32 KiB barely hold the path of a packet through a stack.
///
/// Call it first in the branch, even if the branch only returns.
///
/// ```
/// use fullsend_wire::cold_path;
///
/// fn payload(packet: &[u8], header_len: usize) -> Option<&[u8]> {
///     if packet.len() < header_len {
///         cold_path();
///         return None;
///     }
///     Some(&packet[header_len..])
/// }
/// assert_eq!(payload(b"header, data", 8), Some(&b"data"[..]));
/// ```
// Not `core::hint::cold_path`, which needs a later Rust. The compiler takes the weights of the branch from
// the attribute before it inlines the call.
#[cold]
#[inline(always)]
pub fn cold_path() {}
