//! Makes a failing schedule shorter: delta debugging (Zeller and Hildebrandt, 2002). It knows neither what the items are
//! nor what failing means; whoever asks runs each try.

use anyhow::Result;

/// The shortest part of `items`, in their order, that still fails and that was found within `most` tries: when they
/// suffice, no single item can be left out of it. `items` are known to fail.
pub async fn shrink<T: Clone>(
    items: Vec<T>,
    most: usize,
    mut fails: impl AsyncFnMut(&[T]) -> Result<bool>,
) -> Result<Vec<T>> {
    let mut failing = items;
    let mut parts = 2;
    let mut tries = 0;
    'shorter: while failing.len() > 1 {
        parts = parts.min(failing.len());
        for candidate in candidates(&failing, parts) {
            if tries == most {
                return Ok(failing);
            }
            tries += 1;
            if fails(&candidate).await? {
                // A part alone is cut in two again; of what is left of a whole, the parts stay as small as they were.
                parts = if candidate.len() * 2 <= failing.len() { 2 } else { parts.saturating_sub(1).max(2) };
                failing = candidate;
                continue 'shorter;
            }
        }
        if parts >= failing.len() {
            break;
        }
        parts *= 2;
    }
    Ok(failing)
}

/// Each of the parts alone, then all without each of them.
fn candidates<T: Clone>(items: &[T], parts: usize) -> Vec<Vec<T>> {
    let size = items.len().div_ceil(parts);
    let chunks: Vec<&[T]> = items.chunks(size).collect();
    let alone = chunks.iter().map(|chunk| chunk.to_vec());
    // Of two parts, the one is the whole without the other.
    let without = if chunks.len() > 2 { chunks.len() } else { 0 };
    let without = (0..without).map(|left| {
        let kept = chunks.iter().enumerate().filter(|(index, _)| *index != left);
        kept.flat_map(|(_, chunk)| chunk.iter().cloned()).collect()
    });
    alone.chain(without).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn shrunk(items: Vec<u32>, most: usize, fails: impl Fn(&[u32]) -> bool) -> Vec<u32> {
        // The tries of these tests never wait.
        shrink(items, most, async |items: &[u32]| Ok(fails(items))).now_or_never().unwrap().unwrap()
    }

    #[test]
    fn what_makes_it_fail_is_left() {
        let needed = |items: &[u32]| items.contains(&3) && items.contains(&17);
        assert_eq!(shrunk((0..40).collect(), usize::MAX, needed), [3, 17]);
        assert_eq!(shrunk((0..40).collect(), usize::MAX, |items| items.contains(&39)), [39]);
        assert_eq!(shrunk(vec![5], usize::MAX, |_| true), [5]);
    }

    #[test]
    fn order_counts() {
        let found = shrunk((0..16).collect(), usize::MAX, |items| {
            items.iter().position(|item| *item == 2) < items.iter().position(|item| *item == 9) && items.contains(&2)
        });
        assert_eq!(found, [2, 9]);
    }

    #[test]
    fn it_stops_when_the_tries_are_spent() {
        let tries = Cell::new(0);
        let found = shrunk((0..64).collect(), 5, |items| {
            tries.set(tries.get() + 1);
            items.contains(&1) && items.contains(&63)
        });
        assert_eq!(tries.get(), 5);
        assert!(found.contains(&1) && found.contains(&63));
    }

    proptest! {
        #[test]
        fn exactly_what_is_needed_is_left(
            length in 1_u32..60,
            needed in prop::collection::btree_set(0_u32..60, 1..5),
        ) {
            let needed: BTreeSet<u32> = needed.into_iter().map(|item| item % length).collect();
            let found = shrunk((0..length).collect(), usize::MAX, |items| {
                needed.iter().all(|item| items.contains(item))
            });
            prop_assert_eq!(found, needed.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn of_what_fails_for_any_reason_nothing_can_be_left_out(length in 2_usize..30, threshold in 1_usize..10) {
            let threshold = threshold.min(length);
            let items: Vec<u32> = (0..u32::try_from(length).unwrap()).collect();
            let found = shrunk(items, usize::MAX, |items| items.len() >= threshold);
            prop_assert_eq!(found.len(), threshold);
        }
    }
}
