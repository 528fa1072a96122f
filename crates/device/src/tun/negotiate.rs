//! Negotiation of offloads with the kernel: first all requested ones, then fewer.

use std::io;

use libc::c_uint;

use crate::OffloadSet;

/// Returns the bits of `TUNSETOFFLOAD` for a set.
///
/// `TUN_F_TSO_ECN` is set with TSO: software segmentation sets CWR on the first segment only
/// (RFC 3168 6.1.2), as that bit requires.
fn bits(set: OffloadSet) -> c_uint {
    let tso = set.tso4 || set.tso6;
    let table = [
        (set.csum, libc::TUN_F_CSUM),
        (set.tso4, libc::TUN_F_TSO4),
        (set.tso6, libc::TUN_F_TSO6),
        (tso, libc::TUN_F_TSO_ECN),
        (set.uso, libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ];
    table.iter().filter(|t| t.0).map(|t| t.1).sum()
}

/// Returns the largest part of `requested` that `set_offload` accepts, without the newest offloads if
/// necessary. Refused offloads become one warning.
pub(super) fn negotiate(
    requested: OffloadSet,
    mut set_offload: impl FnMut(c_uint) -> io::Result<()>,
    warnings: &mut Vec<String>,
) -> OffloadSet {
    let steps: [fn(&mut OffloadSet); 3] = [
        |set| set.uso = false,
        |set| (set.tso4, set.tso6) = (false, false),
        |set| set.csum = false,
    ];
    let mut steps = steps.iter();
    let mut set = requested;
    while let Err(error) = set_offload(bits(set)) {
        let refused = bits(set);
        while bits(set) == refused {
            let Some(step) = steps.next() else {
                warnings.push(format!(
                    "the kernel refused offload {requested} ({error}); using none"
                ));
                return OffloadSet {
                    vnet_hdr: requested.vnet_hdr,
                    ..OffloadSet::NONE
                };
            };
            step(&mut set);
        }
    }
    if set != requested {
        warnings.push(format!(
            "the kernel refused offload {requested}; using {set}"
        ));
    }
    set
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{bits, negotiate};
    use crate::OffloadSet;

    #[test]
    fn falls_back_to_what_the_kernel_supports() {
        let rows = [
            ("all", "all", "vnet_hdr,csum,tso4,tso6,uso", 0),
            ("all", "tso", "vnet_hdr,csum,tso4,tso6", 1),
            ("all", "csum", "vnet_hdr,csum", 1),
            ("all", "none", "vnet_hdr", 1),
            ("tso4", "csum", "vnet_hdr,csum", 1),
            ("csum,uso", "tso", "vnet_hdr,csum", 1),
            ("vnet_hdr", "none", "vnet_hdr", 0),
        ];
        for (requested, supported, agreed, expected_warnings) in rows {
            let supported = bits(supported.parse().unwrap());
            let kernel = |requested_bits: u32| {
                if requested_bits & !supported == 0 {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(libc::EINVAL))
                }
            };
            let mut warnings = Vec::new();
            let set = negotiate(requested.parse().unwrap(), kernel, &mut warnings);
            assert_eq!(set.to_string(), agreed, "{requested}");
            assert_eq!(
                warnings.len(),
                expected_warnings,
                "{requested}: {warnings:?}"
            );
        }
    }

    #[test]
    fn a_kernel_that_refuses_everything() {
        let mut warnings = Vec::new();
        let refuse = |_| Err(io::Error::from_raw_os_error(libc::EPERM));
        let set = negotiate(OffloadSet::ALL, refuse, &mut warnings);
        assert_eq!(set.to_string(), "vnet_hdr");
        assert!(warnings[0].contains("using none"), "{warnings:?}");
    }
}
