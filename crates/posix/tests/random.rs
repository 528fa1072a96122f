//! Tests that no sequence of calls panics.

#[path = "random/calls.rs"]
mod calls;

use fullsend_wire::{Rng, Seed};

/// A number of bytes from a generator.
struct RandomBytes(Rng, u32);

impl calls::Source for RandomBytes {
    fn byte(&mut self) -> Option<u8> {
        self.1 = self.1.checked_sub(1)?;
        Some(self.0.next_u32() as u8)
    }
}

#[test]
fn any_call_on_any_handle() {
    for seed in 0..2_000 {
        calls::run(&mut RandomBytes(Rng::new(Seed([seed, 1, 2, 3])), 4_000));
    }
}
