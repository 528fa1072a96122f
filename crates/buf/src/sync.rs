//! Synchronisation primitives of the pool; `crates/models` replaces them by loom's.

pub(crate) use alloc::sync::Arc;

pub use mutex::{Mutex, MutexGuard};

#[cfg(not(feature = "std"))]
mod mutex {
    /// A mutex: the standard library's with the feature `std`, otherwise one that spins, as a
    /// thread cannot sleep without an operating system.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(spin::Mutex<T>);

    /// The access to the value of a locked [`Mutex`].
    pub type MutexGuard<'a, T> = spin::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        /// Returns an unlocked mutex.
        pub const fn new(value: T) -> Self {
            Self(spin::Mutex::new(value))
        }

        /// Locks the mutex, and waits while another thread holds it.
        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }

        /// Locks the mutex unless another thread holds it.
        #[inline]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock()
        }
    }
}

#[cfg(feature = "std")]
mod mutex {
    use std::sync::{PoisonError, TryLockError};

    /// A mutex: the standard library's with the feature `std`, otherwise one that spins, as a
    /// thread cannot sleep without an operating system.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(std::sync::Mutex<T>);

    /// The access to the value of a locked [`Mutex`].
    pub type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        /// Returns an unlocked mutex.
        pub const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        /// Locks the mutex, and waits while another thread holds it.
        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            // No code that holds a lock panics halfway through a change.
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Locks the mutex unless another thread holds it.
        #[inline]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}
