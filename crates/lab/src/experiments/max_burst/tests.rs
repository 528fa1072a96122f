use super::{BEFORE, EXPERIMENT};
use crate::testing::quick_all;

#[test]
fn a_loss_shortens_later_sends_only_with_the_legacy_rule() {
    let cases = quick_all(&EXPERIMENT);
    for figure in EXPERIMENT.figures(&cases) {
        assert_ne!(figure.holds, Some(false), "{figure:?}");
    }
    // There was room for larger sends at all times.
    assert!(cases[BEFORE].get("headroom_kib") > 100.0);
}
