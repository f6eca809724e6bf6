//! The keys that are called at a time. Each is given up after some calls, and soon after calls whose outcome nobody knows:
//! the search for an order of calls is exponential in both.

use std::sync::{Mutex, PoisonError};

use super::history::Key;

/// All keys of a run lie below this.
pub const PREFIX: &str = "chaos/";
/// How many keys are in use at a time: few, so that calls meet.
const SLOTS: usize = 3;
/// How many calls are made to a key.
const CALLS: u32 = 40;
/// After how many calls without a known outcome a key is given up.
const UNKNOWN: u32 = 3;

/// The keys in use.
#[derive(Debug)]
pub struct Keys(Mutex<[Slot; SLOTS]>);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u32,
    calls: u32,
    unknown: u32,
}

impl Slot {
    fn key(self, index: usize) -> Key {
        Key(format!("{PREFIX}{index}-{:06}", self.number))
    }
}

impl Keys {
    /// The first keys.
    pub fn new() -> Self {
        Self(Mutex::new([Slot::default(); SLOTS]))
    }

    /// A key for one call; any number chooses.
    pub fn take(&self, number: usize) -> Key {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = number % SLOTS;
        let slot = &mut slots[index];
        if slot.calls >= CALLS || slot.unknown >= UNKNOWN {
            *slot = Slot { number: slot.number + 1, calls: 0, unknown: 0 };
        }
        slot.calls += 1;
        slot.key(index)
    }

    /// A write to this key may have happened or not.
    pub fn unknown(&self, key: &Key) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, slot) in slots.iter_mut().enumerate() {
            if slot.key(index) == *key {
                slot.unknown += 1;
            }
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_up_after_its_calls() {
        let keys = Keys::new();
        let first = keys.take(4);
        assert!((1..CALLS).all(|_| keys.take(1) == first));
        assert_ne!(keys.take(1), first);
        assert_ne!(keys.take(0), keys.take(2));
    }

    #[test]
    fn a_key_is_given_up_when_too_much_of_it_is_unknown() {
        let keys = Keys::new();
        let (first, other) = (keys.take(0), keys.take(1));
        for _ in 0..UNKNOWN {
            assert_eq!(keys.take(0), first);
            keys.unknown(&first);
        }
        assert_ne!(keys.take(0), first);
        assert_eq!(keys.take(1), other);
        // What is told of a key that was given up before changes nothing.
        keys.unknown(&first);
    }
}
