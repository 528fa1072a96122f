extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::{RunningSum, Sum, kernel, sum, update, update32};

/// The algorithm of RFC 1071 1, one 16-bit word at a time.
fn naive(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(prop_oneof![Just(0xffu8), Just(0)], 0..600),
        prop::collection::vec(any::<u8>(), 0..5000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]

    #[test]
    fn equals_the_reference_at_any_alignment(data in bytes(), skip in 0usize..64) {
        let data = data.get(skip..).unwrap_or(&[]);
        prop_assert_eq!(sum(data).fold(), naive(data));
        prop_assert_eq!(Sum(kernel::sum_words(data)).fold(), naive(data));
        prop_assert_eq!(Sum(kernel::sum_portable(data)).fold(), naive(data));
        #[cfg(target_arch = "x86_64")]
        for one in kernel::x86::every_path(data) {
            prop_assert_eq!(Sum(one).fold(), naive(data));
        }
    }

    #[test]
    fn joined_sums_equal_the_sum_of_the_whole(data in bytes(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(data.len() + 1)).collect();
        at.sort_unstable();
        at.push(data.len());
        let (mut running, mut from) = (RunningSum::default(), 0);
        for to in at {
            running.push(&data[from..to]);
            from = to;
        }
        prop_assert_eq!(running.sum().fold(), naive(&data));
    }

    #[test]
    fn update_equals_a_new_checksum(mut data in prop::collection::vec(any::<u8>(), 8..64), new: u32) {
        data.truncate(data.len() / 4 * 4);
        let before = sum(&data).checksum();
        let old = u32::from_be_bytes(data[4..8].try_into().unwrap());
        data[4..8].copy_from_slice(&new.to_be_bytes());
        let after = sum(&data).checksum();
        // 0 and 0xffff are the same number; only all-zero data has the checksum 0xffff.
        prop_assert_eq!(update32(before, old, new) % 0xffff, after % 0xffff);
        data[6..8].copy_from_slice(&[7, 9]);
        prop_assert_eq!(update(after, new as u16, 0x0709) % 0xffff, sum(&data).checksum() % 0xffff);
    }
}

#[test]
fn rfc_1071_example() {
    let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum(&data).fold(), 0xddf2);
}

#[test]
fn all_ones_do_not_sum_to_zero() {
    // Only zeros have a zero sum; any other data that is 0 modulo 0xffff folds to 0xffff.
    assert_eq!(sum(&[]).fold(), 0);
    assert_eq!(sum(&[0; 300]).fold(), 0);
    assert_eq!(sum(&[0xff; 300]).fold(), 0xffff);
    assert_eq!(sum(&std::vec![0xff; 65536]).fold(), 0xffff);
    assert_eq!(sum(&[0xff, 0xff]).udp_checksum(), 0xffff);
}

#[test]
fn pseudo_headers_match_the_rfcs() {
    let (a, b) = ([10, 0, 0, 1], [192, 168, 255, 254]);
    let mut drawn = Vec::new();
    drawn.extend(a);
    drawn.extend(b);
    drawn.extend([0, 6, 0xff, 0xff]);
    assert_eq!(
        Sum::pseudo_v4(a.into(), b.into(), 6, 0xffff).fold(),
        naive(&drawn)
    );
    let (a, b) = ([0xfe; 16], [0xffu8; 16]);
    let mut drawn = Vec::new();
    drawn.extend(a);
    drawn.extend(b);
    drawn.extend([0, 9, 0xff, 0xff, 0, 0, 0, 58]);
    assert_eq!(
        Sum::pseudo_v6(a.into(), b.into(), 58, 0x9_ffff).fold(),
        naive(&drawn)
    );
}
