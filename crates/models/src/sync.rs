//! Loom's primitives with the interface of those that the files use: the locks of `parking_lot` and
//! `spin`, which are never poisoned.

use std::ops::{Deref, DerefMut};

pub use loom::sync::atomic::{AtomicBool, Ordering};
pub use loom::sync::{Arc, Arc as LoanArc};
pub use loom::thread_local;

/// A mutex.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks the mutex.
    ///
    /// # Panics
    /// If a thread panicked while it had the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("a model's panic ends it")))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

/// A guard of a locked mutex; `None` only while a [`Condvar`] waits.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("the lock is held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the lock is held")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.0.take() {
            guard.0 = self.0.wait(inner).ok();
        }
    }

    /// Waits without a timeout, as no time passes in a model.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _span: std::time::Duration) {
        self.wait(guard);
    }
}
