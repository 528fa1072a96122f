use super::EXPERIMENT;
use crate::testing::quick_all;

#[test]
fn the_limit_bounds_memory_and_costs_no_throughput() {
    let cases = quick_all(&EXPERIMENT);
    for figure in EXPERIMENT.figures(&cases) {
        assert_ne!(figure.holds, Some(false), "{figure:?}");
    }
}
