use super::EXPERIMENT;
use crate::testing::quick_all;

#[test]
fn reordering_costs_little_compared_to_loss() {
    let cases = quick_all(&EXPERIMENT);
    for figure in EXPERIMENT.figures(&cases) {
        assert_ne!(figure.holds, Some(false), "{figure:?}");
    }
}
