use super::{AFTER, BEFORE, EXPERIMENT, LINES};
use crate::testing::quick_all;

#[test]
fn small_writes_are_coalesced_and_lines_are_not_delayed() {
    let cases = quick_all(&EXPERIMENT);
    for figure in EXPERIMENT.figures(&cases) {
        assert_ne!(figure.holds, Some(false), "{figure:?}");
    }
    let autocorked = |case: usize| cases[case].get("autocorked");
    assert_eq!(autocorked(BEFORE), 0.0);
    assert!(autocorked(AFTER) > 100.0);
    // The card has no packet of the flow when a line is written.
    assert_eq!(LINES.map(autocorked), [0.0, 0.0]);
}
