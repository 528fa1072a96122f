use alloc::vec::Vec;

use fullsend_wire::{Instant, Nanos};
use proptest::prelude::*;

use super::{TICK_SHIFT, TimerWheel};

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn expired(wheel: &mut TimerWheel, now: Instant) -> Vec<u32> {
    let mut due = Vec::new();
    wheel.expire(now, &mut due);
    due.sort_unstable();
    due
}

#[test]
fn fires_at_its_tick_and_not_before() {
    let mut wheel = TimerWheel::new();
    wheel.arm(3, at(40_000_000));
    assert_eq!(expired(&mut wheel, at(39_999_999)), []);
    assert_eq!(expired(&mut wheel, at(40_000_000 + (1 << TICK_SHIFT))), [3]);
    assert_eq!(wheel.next(), Instant::FAR_FUTURE);
}

#[test]
fn the_last_deadline_set_is_used() {
    let mut wheel = TimerWheel::new();
    wheel.arm(0, at(1_000_000));
    wheel.arm(0, at(2_000_000));
    // The wheel inspects the timer at its old slot and moves it.
    assert!(wheel.next() <= at(1_000_000 + (1 << TICK_SHIFT)));
    assert_eq!(expired(&mut wheel, at(1_500_000)), []);
    assert_eq!(expired(&mut wheel, at(2_000_000 + (1 << TICK_SHIFT))), [0]);
    wheel.arm(0, at(3_000_000));
    wheel.arm(0, Instant::FAR_FUTURE);
    assert_eq!(expired(&mut wheel, at(3_500_000)), []);
    assert_eq!(wheel.next(), Instant::FAR_FUTURE);
    wheel.arm(0, at(5_000_000));
    wheel.arm(0, at(3_600_000));
    assert_eq!(expired(&mut wheel, at(3_700_000)), [0]);
    assert_eq!(expired(&mut wheel, at(6_000_000)), []);
}

#[test]
fn an_earlier_deadline_moves_the_timer() {
    let mut wheel = TimerWheel::new();
    wheel.arm(0, at(1_000_000));
    wheel.arm(0, at(100_000));
    assert_eq!(expired(&mut wheel, at(200_000)), [0]);
    assert_eq!(expired(&mut wheel, at(3_000_000)), []);
}

#[test]
fn a_deadline_in_the_past_fires_at_once() {
    let mut wheel = TimerWheel::new();
    assert_eq!(expired(&mut wheel, at(1 << 40)), []);
    wheel.arm(7, at(5));
    assert!(wheel.next() <= at(1 << 40));
    assert_eq!(expired(&mut wheel, at(1 << 40)), [7]);
}

#[test]
fn far_deadlines_are_kept() {
    let mut wheel = TimerWheel::new();
    wheel.arm(0, Instant::FAR_FUTURE);
    assert_eq!(expired(&mut wheel, at(1 << 50)), []);
    wheel.disarm(0);
    assert_eq!(wheel.next(), Instant::FAR_FUTURE);
}

#[test]
fn waiting_until_next_reaches_every_timer_in_few_steps() {
    let mut wheel = TimerWheel::new();
    let deadline = at(7_200_000_000_123);
    wheel.arm(0, deadline);
    let mut steps = 0;
    let mut due = Vec::new();
    while due.is_empty() {
        let now = wheel.next();
        wheel.expire(now, &mut due);
        steps += 1;
        assert!(now <= deadline + Nanos::from_nanos(1 << TICK_SHIFT));
    }
    assert!(steps <= 8, "{steps}");
}

proptest! {
    /// The wheel fires the same timers as a sorted list, for any order of calls.
    #[test]
    fn behaves_as_a_sorted_list(
        calls in prop::collection::vec((0..4u8, 0..6u32, 0..45u32, any::<u64>()), 1..200)
    ) {
        let mut wheel = TimerWheel::new();
        let mut model: [Option<u64>; 6] = [None; 6];
        let mut now = 0u64;
        for (call, index, bits, random) in calls {
            let span = random & ((1 << bits) - 1);
            match call {
                0 | 1 => {
                    let deadline = now + span;
                    wheel.arm(index, at(deadline));
                    let tick = deadline.div_ceil(1 << TICK_SHIFT);
                    model[index as usize] = Some(tick);
                }
                2 => {
                    wheel.disarm(index);
                    model[index as usize] = None;
                }
                _ => {
                    now += span;
                    let due: Vec<u32> = (0..6u32)
                        .filter(|&i| model[i as usize].is_some_and(|t| t <= now >> TICK_SHIFT))
                        .collect();
                    for &i in &due {
                        model[i as usize] = None;
                    }
                    prop_assert_eq!(expired(&mut wheel, at(now)), due);
                }
            }
            match (model.iter().flatten().min(), wheel.next()) {
                (None, next) => prop_assert_eq!(next, Instant::FAR_FUTURE),
                (Some(&tick), next) => {
                    prop_assert!(next <= at(tick.max(now >> TICK_SHIFT) << TICK_SHIFT));
                }
            }
        }
    }
}
