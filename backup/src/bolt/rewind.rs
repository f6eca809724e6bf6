//! Writes a database as it was at an earlier revision: without the events that came later. Of all other buckets, leases and
//! users among them, only the later state is there. Whether that revision is still in the history is others' business.

use std::fs::File;

use super::append::AppendError;
use super::history::event;
use super::mvcc::BucketKey;
use super::{Database, Pages, anew, mvcc};

/// Writes `database` to `file`, which is empty, up to this revision, and shows each event that stays. Tells how many came later.
pub fn rewind<P: Pages>(
    database: &Database<P>,
    file: &File,
    revision: u64,
    mut show: impl FnMut(BucketKey, &[u8]),
) -> Result<u64, AppendError> {
    // A database without a history is none of etcd's, and what is made of it would be none either.
    database.bucket(mvcc::KEY)?;
    let mut later = 0;
    anew::write(database, file, |name, mut cursor, filler| {
        if name != mvcc::KEY {
            return filler.take_all(cursor);
        }
        let mut more = cursor.first()?;
        while more {
            let event = event(&cursor)?;
            if event.main <= revision {
                filler.take(&cursor)?;
                show(event, cursor.pair()?.1);
            } else {
                later += 1;
            }
            more = cursor.forward()?;
        }
        Ok(())
    })?;
    Ok(later)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::mvcc::{KEY, LEASE};
    use super::super::tests::{entries, fresh};
    use super::super::{Appender, Tail};
    use super::*;

    /// Found by fuzzing: the root's page was damaged, and with it the bucket's name.
    #[test]
    fn one_without_a_history_is_refused() {
        let found = include_bytes!("../../fuzz/found/pages-rewound");
        let database = Database::open(&found[..]).unwrap();
        let refused = rewind(&database, &tempfile::tempfile().unwrap(), 4, |_, _| ()).unwrap_err();
        assert!(refused.to_string().contains("key"), "{refused}");
    }

    proptest! {
        #[test]
        fn exactly_what_came_later_is_gone(
            sizes in proptest::collection::vec((1_u64..4, 0_usize..3000), 1..120),
            at in any::<prop::sample::Index>(),
        ) {
            let file = fresh(4096);
            let mut appender = Appender::new(&file).unwrap();
            let last = 1 + sizes.len() as u64;
            for (main, (events, size)) in (2..).zip(&sizes) {
                for sub in 0..*events {
                    appender.push(BucketKey { main, sub, tombstone: sub == 1 }, &vec![7; *size]).unwrap();
                }
            }
            appender.change(LEASE, &[(5_i64.to_be_bytes().to_vec(), Some(vec![1]))].into()).unwrap();
            appender.commit().unwrap();
            let (whole, earlier) = (Database::open(&file).unwrap(), tempfile::tempfile().unwrap());
            let revision = 1 + at.index(sizes.len() + 2) as u64;
            let mut shown = Vec::new();
            let later = rewind(&whole, &earlier, revision, |event, _| shown.push(event)).unwrap();
            prop_assert_eq!(shown.len() as u64 + later, entries(&file, KEY).len() as u64);
            let is_kept = |key: &[u8]| BucketKey::decode(key).unwrap().main <= revision;
            let (kept, gone): (Vec<_>, Vec<_>) = entries(&file, KEY).into_iter().partition(|(key, _)| is_kept(key));
            prop_assert_eq!(later, gone.len() as u64);
            prop_assert_eq!(entries(&earlier, KEY), kept);
            prop_assert_eq!(entries(&earlier, LEASE), entries(&file, LEASE));
            let earlier = Database::open(&earlier).unwrap();
            prop_assert_eq!(earlier.buckets().unwrap(), whole.buckets().unwrap());
            prop_assert_eq!(Tail::read(&earlier).unwrap().revision, revision.min(last));
        }
    }
}
