//! The options of IPv4 headers (RFC 791 3.1), as far as a host must check them.

use super::HEADER_LEN;

/// Option types: end of the list, no operation, record route, timestamp, loose and strict source route,
/// router alert (RFC 2113).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const ROUTER_ALERT: u8 = 148;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Length of an address in a route, in bytes.
const ADDRESS_LEN: u8 = 4;

/// The reason why a packet is dropped for its IPv4 options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// An option is malformed: the packet may be answered with an ICMP Parameter Problem.
    Malformed {
        /// Offset of the fault from the start of the header.
        pointer: u8,
    },
    /// The packet has a source route (RFC 7126 4.3, 4.4).
    SourceRoute,
}

/// Checks the options of an IPv4 header, by Linux's rules: lengths lie within the header, pointers
/// within their options, and no route or timestamp option occurs twice.
///
/// # Errors
/// Returns the reason to drop the packet.
///
/// ```
/// use fullsend_wire::ipv4::{OptionError, check_options};
/// let mut header = [0; 24];
/// header[20..].copy_from_slice(&[1, 7, 3, 4]); // no operation, an empty route record
/// assert_eq!(check_options(&header), Ok(()));
/// header[22] = 4; // it ends beyond the header
/// assert_eq!(check_options(&header), Err(OptionError::Malformed { pointer: 21 }));
/// ```
pub fn check_options(header: &[u8]) -> Result<(), OptionError> {
    let mut at = HEADER_LEN;
    let mut seen = Seen::default();
    while let Some(&kind) = header.get(at) {
        match kind {
            END => break,
            NO_OPERATION => {
                at += 1;
                continue;
            }
            _ => {}
        }
        let malformed = |field: usize| OptionError::Malformed {
            pointer: (at + field) as u8,
        };
        let len = header.get(at + 1).copied().unwrap_or(0);
        let option = header.get(at..at + usize::from(len));
        let Some(option) = option.filter(|_| len >= 2) else {
            return Err(malformed(0));
        };
        check_option(option, &mut seen).map_err(malformed)?;
        at += option.len();
    }
    if seen.source_route {
        return Err(OptionError::SourceRoute);
    }
    Ok(())
}

/// The options that may occur once, as far as they have occurred.
#[derive(Default)]
struct Seen {
    source_route: bool,
    record_route: bool,
    timestamp: bool,
}

/// Checks one option of at least two bytes. Returns the offset of a fault in it.
fn check_option(option: &[u8], seen: &mut Seen) -> Result<(), usize> {
    let (occurred, pointer, entry) = match option[0] {
        LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => (&mut seen.source_route, 4, 0),
        RECORD_ROUTE => (&mut seen.record_route, 4, ADDRESS_LEN),
        TIMESTAMP => (&mut seen.timestamp, 5, ADDRESS_LEN),
        // Its value is two bytes.
        ROUTER_ALERT if option.len() < 4 => return Err(1),
        _ => return Ok(()),
    };
    if core::mem::replace(occurred, true) {
        return Err(0);
    }
    // The pointer counts from 1, and the first entry begins at `pointer`.
    if option.len() + 1 < pointer {
        return Err(1);
    }
    let next = usize::from(option[2]);
    let is_full = next > option.len();
    let fits = next + usize::from(entry) <= option.len() + 1;
    if next < pointer || !is_full && !fits {
        return Err(2);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use proptest::prelude::*;

    use super::{OptionError, check_options};

    fn check(options: &[u8]) -> Result<(), OptionError> {
        let mut header = std::vec![0; 20];
        header.extend_from_slice(options);
        check_options(&header)
    }

    fn malformed(pointer: u8) -> Result<(), OptionError> {
        Err(OptionError::Malformed { pointer })
    }

    #[test]
    fn well_formed_options_are_accepted() {
        let accepted: [&[u8]; 8] = [
            &[],
            &[0, 7, 1, 0],
            &[1, 1, 1, 0],
            &[148, 4, 0, 0],
            &[7, 7, 4, 0, 0, 0, 0, 0],
            // A full record.
            &[7, 7, 8, 0, 0, 0, 0, 0],
            &[68, 8, 5, 0, 0, 0, 0, 0],
            // An unknown option.
            &[200, 3, 9, 0],
        ];
        for options in accepted {
            assert_eq!(check(options), Ok(()), "{options:?}");
        }
    }

    #[test]
    fn malformed_options_are_rejected_at_their_fault() {
        let rejected: [(&[u8], u8); 12] = [
            // Without a length, and with one below 2 or beyond the header.
            (&[1, 1, 1, 200], 23),
            (&[200, 0, 0, 0], 20),
            (&[200, 1, 0, 0], 20),
            (&[1, 200, 4, 0], 21),
            (&[148, 3, 0, 0], 21),
            // Too short for a pointer, a pointer before the data, and an entry that does not fit.
            (&[7, 2, 0, 0], 21),
            (&[68, 3, 5, 0], 21),
            (&[7, 7, 3, 0, 0, 0, 0, 0], 22),
            (&[68, 8, 4, 0, 0, 0, 0, 0], 22),
            (&[7, 7, 5, 0, 0, 0, 0, 0], 22),
            (&[137, 7, 3, 0, 0, 0, 0, 0], 22),
            // Twice.
            (&[7, 3, 4, 7, 3, 4, 0, 0], 23),
        ];
        for (options, pointer) in rejected {
            assert_eq!(check(options), malformed(pointer), "{options:?}");
        }
    }

    /// RFC 7126 4.3, 4.4: whether the route has ended or not.
    #[test]
    fn source_routes_are_rejected() {
        for kind in [131, 137] {
            for next in [4, 8] {
                let options = [1, kind, 7, next, 10, 0, 0, 1];
                assert_eq!(check(&options), Err(OptionError::SourceRoute));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(header in prop::collection::vec(any::<u8>(), 0..61)) {
            let result = check_options(&header);
            if let Err(OptionError::Malformed { pointer }) = result {
                prop_assert!(usize::from(pointer) < header.len());
            }
        }
    }
}
