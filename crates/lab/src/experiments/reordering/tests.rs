use super::EXPERIMENT;
use crate::testing::quick_all;

#[test]
fn overtaking_costs_little_beside_the_loss() {
    let cases = quick_all(&EXPERIMENT);
    for figure in EXPERIMENT.figures(&cases) {
        assert_ne!(figure.holds, Some(false), "{figure:?}");
    }
}
