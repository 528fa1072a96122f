//! Tests that no sequence of C calls panics, reads or writes outside of the memory that it is given, or
//! fails without an errno.

#[path = "random/calls.rs"]
mod calls;
#[path = "../src/lib.rs"]
mod library;

/// A number of bytes from a generator (xorshift).
struct RandomBytes(u64, u32);

impl calls::Source for RandomBytes {
    fn byte(&mut self) -> Option<u8> {
        self.1 = self.1.checked_sub(1)?;
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some((self.0 >> 32) as u8)
    }
}

#[test]
fn any_call_with_any_pointers() {
    for seed in 1..400 {
        calls::run(&mut RandomBytes(
            u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15),
            6_000,
        ));
    }
}
