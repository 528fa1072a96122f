//! SipHash-1-3 over whole words: the keyed hash of values that unauthenticated peers choose (flow
//! table, ports, sequence numbers). It is implemented here because the lengths are fixed and it
//! runs for each packet.

/// A SipHash key, derived from the host's seed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SipKey(pub(crate) u64, pub(crate) u64);

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

impl SipKey {
    /// Derives another key for the purpose `label`.
    pub(crate) fn derive(self, label: u64) -> Self {
        Self(self.hash([label, 0, 0], 0), self.hash([label, 1, 0], 0))
    }

    /// Returns the SipHash-1-3 of `words` and `tail` in little-endian byte order.
    #[inline]
    pub(crate) fn hash<const N: usize>(self, words: [u64; N], tail: u32) -> u64 {
        let mut v = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        for word in words {
            v[3] ^= word;
            round(&mut v);
            v[0] ^= word;
        }
        let last = (N as u64 * 8 + 4) << 56 | u64::from(tail);
        v[3] ^= last;
        round(&mut v);
        v[0] ^= last;
        v[2] ^= 0xff;
        round(&mut v);
        round(&mut v);
        round(&mut v);
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

impl SipKey {
    /// Returns the SipHash-2-4 of `words` in little-endian byte order. It is for values that other
    /// hosts keep or compare with Linux's.
    pub(crate) fn hash_2_4(self, words: &[u64]) -> u64 {
        let mut v = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        let length = (words.len() as u64 * 8) << 56;
        for word in words.iter().chain([&length]) {
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

#[cfg(test)]
mod tests {
    use core::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::{SipHasher13, SipHasher24};

    use super::SipKey;

    proptest! {
        #[test]
        fn matches_the_siphasher_crate(
            key in any::<(u64, u64)>(),
            words in any::<[u64; 4]>(),
            tail in any::<u32>(),
        ) {
            let mut reference = SipHasher13::new_with_keys(key.0, key.1);
            for word in words {
                reference.write(&word.to_le_bytes());
            }
            reference.write(&tail.to_le_bytes());
            prop_assert_eq!(SipKey(key.0, key.1).hash(words, tail), reference.finish());
            let mut reference = SipHasher13::new_with_keys(key.0, key.1);
            reference.write(&words[0].to_le_bytes());
            reference.write(&tail.to_le_bytes());
            prop_assert_eq!(SipKey(key.0, key.1).hash([words[0]], tail), reference.finish());
            for n in 0..=words.len() {
                let mut reference = SipHasher24::new_with_keys(key.0, key.1);
                for word in &words[..n] {
                    reference.write(&word.to_le_bytes());
                }
                prop_assert_eq!(SipKey(key.0, key.1).hash_2_4(&words[..n]), reference.finish());
            }
        }
    }
}
