use super::{EXPERIMENT, PIGGYBACKED};
use crate::experiment::{AFTER, BEFORE};
use crate::testing::{quick, quick_all};

#[test]
fn a_4_kib_write_is_one_packet_instead_of_two() {
    let cases = quick_all(&EXPERIMENT);
    let packets = |case: usize| cases[case].get("packets_per_transaction");
    // Data and a pure ACK; before, the data took two packets.
    assert_eq!(
        [packets(BEFORE), packets(AFTER), packets(PIGGYBACKED)],
        [3.0, 2.0, 1.0]
    );
    let bytes = |case: usize| cases[case].get("bytes_per_packet");
    assert_eq!(bytes(BEFORE), f64::from(4096 + 3 * 52) / 3.0);
    assert_eq!(bytes(AFTER), f64::from(4096 + 2 * 52) / 2.0);
    assert_eq!(bytes(PIGGYBACKED), 4148.0);
    assert!(
        EXPERIMENT
            .figures(&cases)
            .iter()
            .all(|figure| figure.holds != Some(false))
    );
}

#[test]
fn equal_seeds_give_equal_results() {
    assert_eq!(quick(&EXPERIMENT, AFTER), quick(&EXPERIMENT, AFTER));
}
