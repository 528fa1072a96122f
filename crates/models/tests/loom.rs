//! Every model, in every interleaving with at most three preemptions.

use fullsend_models::models;

fn check(model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_block_returns_to_the_pool_once() {
    check(models::a_block_returns_to_the_pool_once);
}

#[test]
fn a_pool_may_be_dropped_before_its_memory() {
    check(models::a_pool_may_be_dropped_before_its_memory);
}

#[test]
fn the_driver_task_sees_queued_work() {
    check(models::the_driver_task_sees_queued_work);
}

#[test]
fn the_driver_thread_sees_queued_work() {
    check(models::the_driver_thread_sees_queued_work);
}

#[test]
fn a_sleeper_wakes() {
    check(models::a_sleeper_wakes);
}

#[test]
fn all_sleepers_wake() {
    check(models::all_sleepers_wake);
}
