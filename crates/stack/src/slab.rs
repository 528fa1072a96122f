//! A slab whose handles are never reused.

use alloc::vec::Vec;

use fullsend_wire::cold_path;

/// The low bits of a handle are the slot index; the rest is a count of all insertions.
const INDEX_BITS: u32 = 24;
const MAX_LEN: usize = 1 << INDEX_BITS;

#[derive(Debug)]
struct Slot<T> {
    id: u64,
    value: Option<T>,
}

/// Values, accessed by slot index inside the host and by handle from outside.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    inserted: u64,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            inserted: 0,
        }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts `value` and returns its slot index and its handle, which is never 0. Returns `None`
    /// if the table already holds 2^24 values.
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u64)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < MAX_LEN => {
                self.slots.push(Slot { id: 0, value: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        self.inserted += 1;
        let id = self.inserted << INDEX_BITS | u64::from(index);
        self.slots[index as usize] = Slot {
            id,
            value: Some(value),
        };
        Some((index, id))
    }

    /// Returns the slot index and the value of handle `id`, if the value is still in the table.
    #[inline]
    pub(crate) fn by_id(&mut self, id: u64) -> Option<(u32, &mut T)> {
        let index = (id & (MAX_LEN as u64 - 1)) as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.id != id {
            cold_path();
            return None;
        }
        slot.value.as_mut().map(|value| (index, value))
    }

    /// Returns the value of handle `id`.
    pub(crate) fn peek(&self, id: u64) -> Option<&T> {
        let slot = self.slots.get((id & (MAX_LEN as u64 - 1)) as usize)?;
        slot.value.as_ref().filter(|_| slot.id == id)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// Returns the value of a slot and its handle.
    #[inline]
    pub(crate) fn get_mut_with_id(&mut self, index: u32) -> Option<(&mut T, u64)> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.value.as_mut().map(|value| (value, slot.id))
    }

    /// Returns the handle of a slot in use.
    pub(crate) fn id(&self, index: u32) -> Option<u64> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| slot.id)
    }

    /// Removes and returns the value of a slot. An empty table frees its memory.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.value.take()?;
        self.free.push(index);
        if self.free.len() == self.slots.len() {
            self.slots.clear();
            self.free.clear();
            self.slots.shrink_to(16);
            self.free.shrink_to(16);
        }
        Some(value)
    }

    /// Iterates over the slots in use and their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let used = |(i, slot): (usize, &'_ Slot<T>)| slot.value.is_some().then_some(i as u32);
        self.slots
            .iter()
            .enumerate()
            .filter_map(used)
            .filter_map(|i| Some((i, self.get(i)?)))
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_handle_is_never_reused() {
        let mut table = Slab::new();
        let (index, first) = table.insert('a').unwrap();
        assert_ne!(first, 0);
        assert_eq!(table.by_id(first), Some((index, &mut 'a')));
        assert_eq!(table.remove(index), Some('a'));
        assert_eq!(table.by_id(first), None);
        let (again, second) = table.insert('b').unwrap();
        assert_eq!(again, index);
        assert_ne!(first, second);
        assert_eq!(table.peek(first), None);
        assert_eq!(table.peek(second), Some(&'b'));
        assert_eq!(table.id(again), Some(second));
        assert_eq!(
            table.iter().collect::<alloc::vec::Vec<_>>(),
            [(again, &'b')]
        );
        assert_eq!(table.by_id(u64::MAX), None);
        assert_eq!((table.len(), table.slots()), (1, 1));
    }
}
